"""The attention core of megatron's layers: rotary positions and causal attention over packed sequences.

Stands in the layer spec where TransformerEngine's core would, on every device. Queries, keys and values come packed
[T, heads, D]; the answer is [T, heads * D]. Rotary positions are applied here because megatron's own code for packed
sequences loops over them in Python in every layer. The micro-batch's `AttentionPlan` rides on the packed-sequence
parameters.
"""

from typing import Any

import torch
import torch.nn.functional as F
from megatron.core import parallel_state, tensor_parallel
from megatron.core.transformer.module import MegatronModule

from trainer_svc.megatron.attention_plan import AttentionPlan


class Rotate(torch.autograd.Function):
    """Rotates the two halves of each head by the position's angle; the gradient turns back."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(cos, sin)
        return _rotate(x, cos, sin, 1)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _rotate(grad, cos, sin, -1), None, None


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, sign: int) -> torch.Tensor:
    """[T, heads, D] with cos and sin [T, 1, D/2]."""
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    (first, second), (out_first, out_second) = x.chunk(2, -1), out.chunk(2, -1)
    torch.mul(first, cos, out=out_first).addcmul_(second, sin, value=-sign)
    torch.mul(second, cos, out=out_second).addcmul_(first, sin, value=sign)
    return out


class Pad(torch.autograd.Function):
    """[T, ...] -> [places, ...]; what stands in padding is finite and never seen, so only tokens have gradients."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, slots: torch.Tensor, fill: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(slots)
        return x.index_select(0, fill)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        return grad.index_select(0, ctx.saved_tensors[0]), None, None


class Unpad(torch.autograd.Function):
    """[places, ...] -> [T, ...]: the inverse of Pad; padding gets a gradient of 0."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(slots)
        ctx.size = x.shape[0]
        return x.index_select(0, slots)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad.new_zeros(ctx.size, *grad.shape[1:]).index_copy_(0, ctx.saved_tensors[0], grad), None


class PackedCausalAttention(MegatronModule):
    """Causal attention within each packed sequence, also when sequences are spread over context ranks."""

    def __init__(
        self,
        config: Any,
        layer_number: int,
        attn_mask_type: Any,
        attention_type: str,
        attention_dropout: float | None = None,
        softmax_scale: float | None = None,
        cp_comm_type: str | None = None,
        pg_collection: Any = None,
    ) -> None:
        super().__init__(config=config)
        self.scale = softmax_scale
        self.context_group = parallel_state.get_context_parallel_group()
        self.rotary_base: float = config.rotary_base

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        attn_mask_type: Any = None,
        attention_bias: torch.Tensor | None = None,
        packed_seq_params: Any = None,
    ) -> torch.Tensor:
        """[T, heads, D] each -> [T, heads * D]."""
        plan: AttentionPlan = packed_seq_params.plan
        cos, sin = rotary_tables(packed_seq_params, self.rotary_base, query)
        query, key = Rotate.apply(query, cos, sin), Rotate.apply(key, cos, sin)
        if plan.mask is None:
            return grouped_attention(query, key, value, plan, self.scale)
        key, value = self._all_keys(key), self._all_keys(value)
        out = _attend(query[None], key[None], value[None], self.scale, plan.mask[None, None])
        return out[0].flatten(1)

    def _all_keys(self, local: torch.Tensor) -> torch.Tensor:
        """The context ranks' tokens one after another; its gradient is summed back to each owner."""
        return tensor_parallel.gather_from_sequence_parallel_region(
            local.contiguous(), tensor_parallel_output_grad=True, group=self.context_group
        )


def rotary_tables(packed: Any, base: float, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(cos, sin) [T, 1, D/2] of the micro-batch's positions; made by the first layer, kept for the others."""
    tables: tuple[torch.Tensor, torch.Tensor] | None = packed.rotary
    if tables is None:
        half = torch.arange(0, like.shape[-1], 2, dtype=torch.float32, device=like.device) / like.shape[-1]
        angles = packed.plan.positions.float()[:, None] * (1.0 / base**half)
        tables = packed.rotary = angles.cos()[:, None].to(like.dtype), angles.sin()[:, None].to(like.dtype)
    return tables


def grouped_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, plan: AttentionPlan, scale: float | None
) -> torch.Tensor:
    """One kernel call for each group of the plan."""
    sizes = [group.sequence_count * group.length for group in plan.groups]
    padded = (query, key, value)
    if plan.slots is not None:
        padded = tuple(Pad.apply(x, plan.slots, plan.fill) for x in padded)
    outs = []
    for group, q, k, v in zip(plan.groups, *(x.split(sizes) for x in padded), strict=True):
        shape = (group.sequence_count, group.length)
        out = _attend(q.unflatten(0, shape), k.unflatten(0, shape), v.unflatten(0, shape), scale)
        outs.append(out.flatten(0, 1))
    out = outs[0] if len(outs) == 1 else torch.cat(outs)
    return (out if plan.slots is None else Unpad.apply(out, plan.slots)).flatten(1)


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None, mask: torch.Tensor | None = None
) -> torch.Tensor:
    """[S, N, heads, D] -> the same; causal unless a mask says otherwise."""
    q, k, v = (x.transpose(1, 2) for x in (query, key, value))
    grouped = query.shape[2] != key.shape[2]
    out = F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=grouped
    )
    return out.transpose(1, 2)
