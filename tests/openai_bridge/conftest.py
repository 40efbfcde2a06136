"""Starts bridges for the tests of this folder."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import pytest

from tests.fakes.bridge import Bridge, bridge


@pytest.fixture(params=[False, True], ids=["separate", "together"])
def start_bridge(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., AbstractAsyncContextManager[Bridge]]:
    """`start_bridge(reply=script, setting=value)` as a context; its gateway over the wire, or in its process."""
    return partial(bridge, tmp_path, local=request.param)
