"""The shim's list of sites fits the pinned megatron-core."""

import importlib.metadata
import importlib.util
import re
from pathlib import Path

import pytest
import torch

from trainer_svc.megatron import cpu

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the shim does nothing beside CUDA")
CORE = Path(importlib.util.find_spec("megatron.core").submodule_search_locations[0])  # type: ignore[union-attr,index]


def test_the_shim_was_written_for_this_version() -> None:
    assert importlib.metadata.version("megatron-core") == "0.16.1"


def test_every_replaced_call_is_really_used_by_megatron() -> None:
    source = "\n".join(path.read_text() for path in CORE.rglob("*.py"))
    for name in cpu.FACTORIES:
        assert re.search(rf"torch\.{name}\(", source), name
    for name in ("current_device", "current_stream", "synchronize", "empty_cache", "get_rng_state", "set_rng_state"):
        assert f"torch.cuda.{name}(" in source, name
    assert "'torch.cuda.FloatTensor'" in source


def test_megatron_makes_its_cuda_tensors_on_the_cpu(world: None) -> None:
    from megatron.core.optimizer import clip_grads

    assert clip_grads.torch.zeros(1, device="cuda").device.type == "cpu"
    assert clip_grads.torch.zeros(1, device=torch.device("cuda", 0), pin_memory=True).device.type == "cpu"
    assert clip_grads.torch.cuda.current_device() == torch.device("cpu")


def test_torch_itself_is_left_alone(world: None) -> None:
    assert torch.zeros(1).type() == "torch.FloatTensor"
    with pytest.raises((AssertionError, RuntimeError)):
        torch.zeros(1, device="cuda")
