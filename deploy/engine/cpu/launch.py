"""Start SGLang on a machine without a GPU: ``python launch.py`` takes the arguments of ``sglang.launch_server``.

What it adds to the stock server, none of which changes a result:

- ``sgl_kernel`` beside this file stands in for the compiled kernels, which exist for GPUs only.
- Processes are forked instead of spawned. A spawned one imports everything again: 15 CPU-seconds and 0.5 GB, twice.
- Beside a CPU-only torch, PyPI's torchvision (a CUDA build) cannot load its operators and fails to import. They are declared
  here first, without an implementation: nothing calls them. Beside PyPI's own torch they exist, and declaring an operator
  twice would abort the process.
"""

import multiprocessing
import runpy
import sys


def keep_forking() -> None:
    """Choose fork, and keep that choice when the server asks for spawn."""
    multiprocessing.set_start_method("fork")

    def keep(method: "str | None", force: bool = False) -> None:
        """Ignore the request."""

    multiprocessing.set_start_method = keep


def declare_vision_operators() -> object:
    """Declare what a torchvision whose library does not load lacks; the answer must be kept alive."""
    import torch

    if torch.version.cuda is not None:
        return None
    library = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        library.define(operator + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


if __name__ == "__main__":
    keep_forking()
    kept = declare_vision_operators()
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=True)
