"""Lets stock megatron-core run where there is no CUDA. Does nothing where there is.

Megatron asks `torch.cuda` for the present device, makes tensors on "cuda" and compares type names with
"torch.cuda.FloatTensor". The global `torch` of every loaded `megatron.core` module is replaced by a thin proxy that
answers for the CPU; torch itself is left alone but for two tensor methods, which can not be proxied per module. `SITES`
lists the replaced calls; tests hold it against the pinned version.
"""

import importlib
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

FACTORIES = (
    "zeros",
    "ones",
    "empty",
    "tensor",
    "full",
    "arange",
    "rand",
    "randn",
    "empty_like",
    "zeros_like",
    "ones_like",
)
# Checkpoint modules that megatron imports late: loaded at once, so that they are proxied too.
LATE_MODULES = ("torch", "filesystem_async", "state_dict_saver", "async_utils", "fully_parallel")
SITES = (
    *(f"torch.{name}(device='cuda')" for name in FACTORIES),
    "torch.cuda.current_device",
    "torch.cuda.current_stream",
    "torch.cuda.synchronize",
    "torch.cuda.empty_cache",
    "torch.cuda.get_rng_state",
    "torch.cuda.set_rng_state",
    "torch.Tensor.type",
    "torch.Tensor.cuda",
    "megatron.core.tensor_parallel.random._get_cuda_rng_state",
    "megatron.core.tensor_parallel.random._set_cuda_rng_state",
)


class _Stream:
    """A stream with nothing to wait for."""

    def wait_stream(self, _other: object) -> None:
        """Returns at once."""

    wait_event = record_event = wait_stream

    def synchronize(self) -> None:
        """Returns at once."""


class _Cuda(types.ModuleType):
    """Stands for `torch.cuda` inside megatron."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch.cuda, name)

    def current_device(self) -> torch.device:
        return torch.device("cpu")

    def current_stream(self, *_args: object) -> _Stream:
        return _Stream()

    def synchronize(self, *_args: object) -> None:
        """Returns at once."""

    def empty_cache(self) -> None:
        """Returns at once."""

    def get_rng_state(self, *_args: object, **_kwargs: object) -> torch.Tensor:
        return torch.get_rng_state()

    def set_rng_state(self, state: torch.Tensor, *_args: object, **_kwargs: object) -> None:
        torch.set_rng_state(state)


class _Torch(types.ModuleType):
    """Stands for `torch` inside megatron."""

    def __init__(self) -> None:
        super().__init__("torch")
        self.cuda = _Cuda("torch.cuda")
        for name in FACTORIES:
            setattr(self, name, _on_cpu(getattr(torch, name)))

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def _on_cpu(factory: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """The factory with "cuda" read as "cpu" and without pinned memory, which needs CUDA."""

    def make(*args: Any, **kwargs: Any) -> torch.Tensor:
        device = kwargs.get("device")
        if device is not None and torch.device(device).type == "cuda":
            kwargs["device"] = "cpu"
        if kwargs.get("pin_memory"):
            kwargs["pin_memory"] = False
        return factory(*args, **kwargs)

    return make


def _patch_tensor() -> None:
    """`Tensor.cuda` stays on the CPU; `Tensor.type()` called from megatron names the CUDA type it compares with."""
    real_type = torch.Tensor.type

    def type_(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        answer = real_type(self, *args, **kwargs)
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if args or kwargs or not caller.startswith("megatron.core"):
            return answer
        return answer.replace("torch.", "torch.cuda.", 1)

    torch.Tensor.type = type_
    torch.Tensor.cuda = lambda self, *_args, **_kwargs: self


def _patch_random() -> None:
    """Megatron's generator states are those of the CPU generator."""
    random: Any = importlib.import_module("megatron.core.tensor_parallel.random")
    random._get_cuda_rng_state = lambda *_args, **_kwargs: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *_args, **_kwargs: torch.set_rng_state(state)


_proxy: _Torch | None = None


def install() -> None:
    """Replaces `torch` in every loaded `megatron.core` module; call again after further imports."""
    global _proxy  # noqa: PLW0603  one proxy a process: it stands for a module
    if torch.cuda.is_available():
        return
    for name in LATE_MODULES:
        importlib.import_module(f"megatron.core.dist_checkpointing.strategies.{name}")
    if _proxy is None:
        _proxy = _Torch()
        _patch_tensor()
        _patch_random()
    for name, module in list(sys.modules.items()):
        if name.startswith("megatron.core") and getattr(module, "__dict__", {}).get("torch") is torch:
            module.torch = _proxy  # type: ignore[attr-defined]
