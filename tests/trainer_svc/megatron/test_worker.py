"""The command loop refuses what does not fit, and says so before it ends."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.trainer_svc.megatron import samples as s
from trainer_svc import commands as c
from trainer_svc.megatron.device import find_device
from trainer_svc.megatron.settings import RankSettings
from trainer_svc.megatron.worker import Worker

BATCH = s.pack(s.make_samples(1))
REFUSED: dict[str, tuple[Callable[[], list[c.Command]], str]] = {
    "a model that is not there": (lambda: [c.LoadModel(path=Path("/nowhere"))], r"LoadModel: .*/nowhere"),
    "a step before a model": (lambda: [*s.train_commands([BATCH], s.step_command())], r"no model is loaded"),
    "a micro-batch on its own": (lambda: [BATCH], r"must follow"),
    "a command among micro-batches": (lambda: [c.Logprobs(), BATCH, c.Stop()], r"not Stop"),
    "a micro-batch that got lost": (lambda: [c.Logprobs(), BATCH, c.EndOfBatches(micro_batch_count=2)], r"1 of 2"),
    "a stream that ends early": (lambda: [c.Logprobs(), BATCH], r"ended among"),
    "no checkpoint": (lambda: [c.LoadCheckpoint(path=Path("/nowhere"))], r"no checkpoint in /nowhere"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_command_that_fails_is_reported_and_raised(case: str, world: None, model_path: Path) -> None:
    make, message = REFUSED[case]
    needs_model = case not in ("a model that is not there", "a step before a model")
    worker = s.load_worker(model_path) if needs_model else Worker(RankSettings(), find_device())
    results: list[c.Result] = []
    with pytest.raises((ValueError, FileNotFoundError)):
        worker.run(iter(make()), results.append)
    (failed,) = results
    assert isinstance(failed, c.Failed)
    assert re.search(message, failed.message)


def test_stop_ends_the_loop_and_leaves_the_rest(world: None) -> None:
    stream: list[c.Command] = [c.Stop(), c.LoadModel(path=Path("/nowhere"))]
    assert s.execute(Worker(RankSettings(), find_device()), *stream) == []
