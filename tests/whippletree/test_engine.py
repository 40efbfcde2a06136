"""The engine's command line, by device."""

from pathlib import Path

import pytest

from whippletree.cli.engine import EngineCommand, engine_command

LAUNCHER = Path(__file__).parents[2] / "deploy/engine/cpu/launch.py"


def command(device: str, *, cuda: bool = False, extra: tuple[str, ...] = ()) -> EngineCommand:
    return engine_command(Path("/m"), port=7, python=Path("/p"), device=device, extra=extra, cuda_present=lambda: cuda)


def option(command: EngineCommand, name: str) -> str:
    return command.argv[command.argv.index(name) + 1]


@pytest.mark.parametrize(
    ("device", "cuda", "ours"),
    [("cpu", False, True), ("cpu", True, True), ("cuda", False, False), ("auto", False, True), ("auto", True, False)],
)
def test_device_decides_between_our_launcher_and_stock_sglang(device: str, cuda: bool, ours: bool) -> None:
    made = command(device, cuda=cuda)
    assert made.argv[0] == "/p"
    assert (made.argv[1] == str(LAUNCHER)) is ours
    assert (made.argv[1:3] == ("-m", "sglang.launch_server")) is not ours
    assert (option(made, "--model-path"), option(made, "--host"), option(made, "--port")) == ("/m", "127.0.0.1", "7")
    assert made.environment["HF_HUB_OFFLINE"] == "1"


def test_cpu_server_is_bounded_and_exact() -> None:
    made = command("cpu")
    assert (option(made, "--device"), option(made, "--dtype")) == ("cpu", "float32")
    assert option(made, "--attention-backend") == "torch_native"
    assert int(option(made, "--max-total-tokens")) > 0
    assert int(option(made, "--max-running-requests")) > 0
    assert made.environment["SGLANG_USE_CPU_ENGINE"] == "1"
    assert made.environment["OMP_NUM_THREADS"] == "1"


def test_cuda_server_is_stock() -> None:
    made = command("cuda")
    assert set(made.environment) == {"HF_HUB_OFFLINE", "PYTHONDONTWRITEBYTECODE"}
    assert "--device" not in made.argv
    assert "--max-total-tokens" not in made.argv


def test_extra_arguments_come_last() -> None:
    assert command("cpu", extra=("--dtype", "bfloat16")).argv[-2:] == ("--dtype", "bfloat16")


def test_unknown_device_is_refused() -> None:
    with pytest.raises(ValueError, match="auto, cpu or cuda, not gpu"):
        command("gpu")


def test_the_launcher_and_what_it_brings_are_there() -> None:
    package = command("cpu").environment["SGLANG_EXTERNAL_MODEL_PACKAGE"]
    assert LAUNCHER.is_file()
    assert (LAUNCHER.parent / "sgl_kernel/__init__.py").is_file()
    assert (LAUNCHER.parent / package / "__init__.py").is_file()
