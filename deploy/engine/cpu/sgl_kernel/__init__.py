"""A stand-in for SGLang's compiled kernels on a CPU, in plain torch.

It has only what prefill and decode of a dense model call with ``--attention-backend torch_native``. Every other name can be
imported, as SGLang does at start, and raises NotImplementedError when it is called.
"""

from collections.abc import Callable
from typing import Any

import torch

__version__ = "0.0.0+cpu"


def assign_req_to_token_pool_cpu(
    req_pool_indices: torch.Tensor,  # [R] row of each request in the table
    req_to_token: torch.Tensor,  # [rows, positions] where each token's keys and values lie; written
    start: torch.Tensor,  # [R] first position to write
    end: torch.Tensor,  # [R] position after the last one
    out_cache_loc: torch.Tensor,  # [sum(end - start)] the places, request after request
    pool_len: int,
) -> None:
    """Enter the places of newly computed tokens into the table of requests."""
    taken = 0
    for row, first, last in zip(req_pool_indices.tolist(), start.tolist(), end.tolist(), strict=True):
        count = last - first
        req_to_token[row, first:last] = out_cache_loc[taken : taken + count].to(req_to_token.dtype)
        taken += count


def __getattr__(name: str) -> Callable[..., Any]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args: object, **kwargs: object) -> None:
        raise NotImplementedError(f"{name} has no stand-in on a CPU")

    missing.__name__ = name
    return missing
