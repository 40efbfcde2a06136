"""Hand-written gradients against plain formulas."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from trainer_svc.megatron.attention import Rotate, grouped_attention
from trainer_svc.megatron.attention_plan import SHORTEST_SHARE, group_sequences, plan_attention
from trainer_svc.megatron.batch import local_positions
from trainer_svc.megatron.layers import RmsNorm, SwiGlu

CONFIG = SimpleNamespace(params_dtype=torch.float64)


def test_rms_norm_has_the_right_gradient() -> None:
    norm = RmsNorm(CONFIG, 8, eps=1e-6)
    x = torch.randn(3, 2, 8, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(norm(x), F.rms_norm(x, (8,), norm.weight, 1e-6))
    assert torch.autograd.gradcheck(norm, (x,))
    assert torch.autograd.gradcheck(lambda w: torch.func.functional_call(norm, {"weight": w}, (x,)), (norm.weight,))


def test_swiglu_has_the_right_gradient() -> None:
    x = torch.randn(3, 8, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(SwiGlu(CONFIG)(x), F.silu(x[:, :4]) * x[:, 4:])
    assert torch.autograd.gradcheck(SwiGlu(CONFIG), (x,))


def test_rotation_has_the_right_gradient() -> None:
    angles = torch.randn(5, 1, 4, dtype=torch.float64)
    x = torch.randn(5, 2, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: Rotate.apply(x, angles.cos(), angles.sin()), (x,))


@pytest.mark.parametrize("lengths", [[7], [5, 5, 5], [9, 3, 8, 1, 9], [1, 1], [40, 39, 2, 3, 24]])
def test_grouped_attention_equals_attention_sequence_by_sequence(lengths: list[int]) -> None:
    sizes = np.array(lengths)
    plan = plan_attention(sizes, [local_positions(sizes, 1, 0)], 0, torch.device("cpu"))
    query, key, value = (
        torch.randn(sum(lengths), heads, 8, dtype=torch.float64, requires_grad=True) for heads in (4, 2, 2)
    )
    grouped = grouped_attention(query, key, value, plan, None)
    single = torch.cat(
        [
            F.scaled_dot_product_attention(*(x.transpose(0, 1) for x in part), is_causal=True, enable_gqa=True)
            .transpose(0, 1)
            .flatten(1)
            for part in zip(*(x.split(lengths) for x in (query, key, value)), strict=True)
        ]
    )
    torch.testing.assert_close(grouped, single)
    upstream = torch.randn_like(grouped)
    ours = torch.autograd.grad(grouped, (query, key, value), upstream)
    theirs = torch.autograd.grad(single, (query, key, value), upstream)
    for left, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(left, right)


def test_groups_waste_little_padding() -> None:
    lengths = np.random.default_rng(0).integers(1, 300, 50)
    groups, slots = group_sequences(lengths)
    places = sum(group.sequence_count * group.length for group in groups)
    assert slots is not None
    assert len(set(slots.tolist())) == lengths.sum()
    assert lengths.sum() <= places <= lengths.sum() / SHORTEST_SHARE
