"""Fixtures of the ranks' tests: a tiny model, one rank in this process, several under torchrun."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.fakes.tiny_model import write_tiny_model

HAS_TORCH = find_spec("torch") is not None and find_spec("megatron") is not None
collect_ignore_glob = [] if HAS_TORCH else ["test_*.py"]
# Said while they are imported or used as their authors ask; nothing of ours.
QUIET = (
    "ignore::UserWarning:megatron",
    "ignore::FutureWarning",
    "ignore::DeprecationWarning",
    "ignore::ResourceWarning",
)


def pytest_configure(config: pytest.Config) -> None:
    """Lets the libraries' own warnings pass."""
    for line in QUIET:
        config.addinivalue_line("filterwarnings", line)


@pytest.fixture(scope="session")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen3."""
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """This process is the only rank of a world of one."""
    import torch.distributed as dist

    from trainer_svc.megatron.device import find_device, join, leave
    from trainer_svc.megatron.settings import Layout

    store = tmp_path_factory.mktemp("world") / "store"
    device = find_device()
    dist.init_process_group(device.backend, init_method=f"file://{store}", rank=0, world_size=1)
    join(device, Layout(), seed=1)
    yield
    leave()
