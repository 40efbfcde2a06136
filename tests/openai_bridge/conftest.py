"""Starts bridges for the tests of this folder."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import pytest

from tests.fakes.bridge import Bridge, bridge


@pytest.fixture
def start_bridge(tmp_path: Path) -> Callable[..., AbstractAsyncContextManager[Bridge]]:
    """`start_bridge(reply=script, setting=value)` as a context."""
    return partial(bridge, tmp_path)
