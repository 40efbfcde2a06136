"""What stops a system before anything of it has started."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from whippletree.cli.console import UserError
from whippletree.cli.system import Options, choose, system


def options(folder: Path, *, run_dir: Path | None = None, port: int = 0, gateway_port: int = 0) -> Options:
    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text('{"max_position_embeddings": 8, "vocab_size": 8}')
    (model / "tokenizer.json").write_text("{}")
    return Options(
        model_dir=model,
        run_dir=run_dir or folder / "run",
        port=port,
        gateway_port=gateway_port,
        engine_url="http://127.0.0.1:1",
    )


@contextlib.contextmanager
def taken() -> Iterator[int]:
    """A port that somebody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def unused(name: str, what: str) -> None:
    raise AssertionError(f"{name} {what}")


def test_a_taken_port_is_told_with_the_option_that_changes_it(tmp_path: Path) -> None:
    with taken() as port, pytest.raises(UserError, match=rf"envoy: port {port} is taken; .* --port$"):
        choose(options(tmp_path, port=port))


def test_so_is_that_of_another_part(tmp_path: Path) -> None:
    with taken() as port, pytest.raises(UserError, match=r"gateway: .* --gateway-port$"):
        choose(options(tmp_path, gateway_port=port))


@pytest.mark.parametrize("run_dir", ["file", "file/below", "/proc/run"])
async def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, run_dir: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"--run-dir .*: cannot write there \("):
        async with system(options(tmp_path, run_dir=tmp_path / run_dir), unused):
            pass


async def test_a_folder_has_one_system(tmp_path: Path) -> None:
    chosen = options(tmp_path)
    async with system(chosen, unused):
        with pytest.raises(UserError, match="another whippletree runs in this folder"):
            async with system(chosen, unused):
                pass
