"""Two layer parts with hand-written gradients for the CPU, where megatron's own need many passes over memory.

On a GPU both use torch's kernels. Each is tested against the plain formula.
"""

from typing import Any

import torch
import torch.nn.functional as F
from megatron.core.transformer.module import MegatronModule


class _RmsNormFunction(torch.autograd.Function):
    """x / rms(x) * weight."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, epsilon: float) -> torch.Tensor:
        width = x.shape[-1]
        scale = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(width).add_(epsilon).rsqrt_()
        normal = x * scale
        ctx.save_for_backward(normal, scale, weight)
        return normal * weight

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
        normal, scale, weight = ctx.saved_tensors
        width = normal.shape[-1]
        inner = grad * weight
        mean = (inner * normal).sum(-1, keepdim=True).div_(-width)
        return inner.addcmul_(normal, mean).mul_(scale), (grad * normal).view(-1, width).sum(0), None


class RmsNorm(torch.nn.Module):
    """Stands in megatron's layer spec for its norms. The answer has the input's shape."""

    def __init__(self, config: Any, hidden_size: int, eps: float = 1e-6, **_unused: Any) -> None:
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(hidden_size, dtype=config.params_dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., hidden] -> the same."""
        if x.is_cuda:
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        return _RmsNormFunction.apply(x, self.weight, self.eps)


class _SwiGluFunction(torch.autograd.Function):
    """silu(first half) * second half, with the gradient written into one tensor."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, -1)
        active = F.silu(gate)
        ctx.save_for_backward(x, active)
        return active * up

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        x, active = ctx.saved_tensors
        gate, up = x.chunk(2, -1)
        out = torch.empty_like(x)
        out_gate, out_up = out.chunk(2, -1)
        torch.mul(grad, active, out=out_up)
        out_gate.copy_(torch.ops.aten.silu_backward(grad * up, gate))
        return out


class SwiGlu(MegatronModule):
    """Stands in megatron's layer spec for the activation between the two halves of a feed-forward layer.

    A MegatronModule, because checkpoints ask every part of that layer for its shards.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., 2 * width] -> [..., width]."""
        if x.is_cuda:
            gate, up = x.chunk(2, -1)
            return F.silu(gate) * up
        return _SwiGluFunction.apply(x)
