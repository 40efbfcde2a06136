"""Real ranks under torchrun, driven over gRPC: a step, a checkpoint, a kill, and on as if nothing had happened."""

import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest
from safetensors.numpy import load_file
from whippletree.v1 import backend_pb2, backend_pb2_grpc

from tests.trainer_svc.megatron import samples as s
from tests.trainer_svc.megatron.launch import HANG_SECONDS, torchrun
from trainer_svc import commands as c
from trainer_svc.backend_convert import command_to_message, result_from_message
from trainer_svc.microbatch import MicroBatch

SAMPLES = s.make_samples()
PLACED = [s.pack_under(SAMPLES[:4], 50), [s.pack(SAMPLES[4:])]]  # of each data-parallel rank
Script = Sequence[tuple[c.Command, Sequence[Sequence[MicroBatch]] | None]]


class ScriptedDriver(backend_pb2_grpc.TrainerBackendServiceServicer):
    """Sends one list of commands to each rank; keeps what they report."""

    def __init__(self, script: Script, *, hold: bool = False) -> None:
        self._script = script
        self._hold = hold  # keep the stream open after the last command, as a driver does that is busy elsewhere
        self.introductions: list[backend_pb2.StreamCommandsRequest] = []
        self.reports: dict[tuple[int, int], backend_pb2.ReportResultRequest] = {}
        self.gone: set[int] = set()  # ranks whose stream has ended

    def StreamCommands(
        self, request: backend_pb2.StreamCommandsRequest, context: grpc.ServicerContext
    ) -> Iterator[backend_pb2.StreamCommandsResponse]:
        """The script, with the rank's own micro-batches."""
        self.introductions.append(request)
        context.add_callback(lambda: self.gone.add(request.rank))
        for number, (command, placed) in enumerate(self._script, 1):
            yield command_to_message(number, command)
            if placed is not None:
                own = placed[request.data_parallel_rank]
                yield from (command_to_message(number, micro_batch) for micro_batch in own)
                yield command_to_message(number, c.EndOfBatches(micro_batch_count=len(own)))
        while self._hold and context.is_active():
            time.sleep(0.05)

    def ReportResult(
        self, request: backend_pb2.ReportResultRequest, context: grpc.ServicerContext
    ) -> backend_pb2.ReportResultResponse:
        """Keeps the report."""
        self.reports[request.command_id, request.rank] = request
        return backend_pb2.ReportResultResponse()

    def results(self, rank: int) -> list[c.Result]:
        """What a rank reported, in order."""
        numbers = sorted(number for number, reporter in self.reports if reporter == rank)
        return [result_from_message(self.reports[n, rank], self._script[n - 1][0]) for n in numbers]


@contextmanager
def served(driver: ScriptedDriver) -> Iterator[tuple[grpc.Server, str]]:
    """The driver's server and its address."""
    server = grpc.server(ThreadPoolExecutor(8))
    backend_pb2_grpc.add_TrainerBackendServiceServicer_to_server(driver, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield server, f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


def arguments(address: str) -> tuple[str, ...]:
    """Of the ranks."""
    return ("-m", "trainer_svc.megatron", "--driver", address)


def wait_until(condition: Callable[[], bool], process_ended: Callable[[], bool], log: Path) -> None:
    """Returns when the condition holds; fails with the log when the ranks end before, or hang."""
    end = time.monotonic() + HANG_SECONDS
    while not condition():
        assert not process_ended(), log.read_text()
        assert time.monotonic() < end, log.read_text()
        time.sleep(0.05)


def steps(first: int, last: int) -> Script:
    """Training steps over the same samples."""
    return [(s.step_command(c.LossKind.POLICY, step), PLACED) for step in range(first, last + 1)]


@pytest.fixture(scope="module")
def story(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Three steps and a checkpoint; two more; killed; new ranks go on from there; then the driver goes away."""
    folder = tmp_path_factory.mktemp("story")
    weights = [folder / "weights-1", folder / "weights-2"]
    save = c.SaveCheckpoint(path=folder / "checkpoints" / "step-3", extra=b"the driver's own")
    load: Script = [(c.LoadModel(path=model_path), None)]
    first = ScriptedDriver(
        [*load, *steps(1, 3), (save, None), *steps(4, 5), (c.SaveWeights(path=weights[0]), None)], hold=True
    )
    count = len(first._script)
    with served(first) as (_, address), torchrun(2, folder / "log-1", *arguments(address)) as ranks:
        wait_until(
            lambda: {(count, 0), (count, 1)} <= first.reports.keys(), lambda: ranks.poll() is not None, folder / "log-1"
        )
        ranks.kill()  # torchrun alone: its ranks must not outlive it
        wait_until(lambda: first.gone == {0, 1}, lambda: False, folder / "log-1")
    restore: Script = [(c.LoadCheckpoint(path=folder / "checkpoints"), None)]
    second = ScriptedDriver(
        [*load, *restore, *steps(4, 5), (c.SaveWeights(path=weights[1]), None), (c.Logprobs(), PLACED)], hold=True
    )
    count = len(second._script)
    with served(second) as (server, address), torchrun(2, folder / "log-2", *arguments(address)) as ranks:
        wait_until(
            lambda: {(count, 0), (count, 1)} <= second.reports.keys(),
            lambda: ranks.poll() is not None,
            folder / "log-2",
        )
        server.stop(0).wait()
        status = ranks.wait(timeout=HANG_SECONDS)
    return {"first": first, "second": second, "weights": weights, "status": status, "log": folder / "log-2"}


def test_ranks_say_who_they_are(story: dict[str, object]) -> None:
    driver = story["first"]
    assert isinstance(driver, ScriptedDriver)
    places = sorted((i.rank, i.data_parallel_rank, i.data_parallel_size, i.session) for i in driver.introductions)
    assert places == [(0, 0, 2, "test"), (1, 1, 2, "test")]


def test_both_ranks_report_the_same_figures(story: dict[str, object]) -> None:
    driver = story["first"]
    assert isinstance(driver, ScriptedDriver)
    for left, right in zip(driver.results(0), driver.results(1), strict=True):
        if isinstance(left, c.StepDone):
            assert isinstance(right, c.StepDone)
            assert (left.loss, left.gradient_norm, left.kl) == (right.loss, right.gradient_norm, right.kl)
        else:
            assert left == right


def test_training_goes_on_from_a_checkpoint_to_the_bit(story: dict[str, object]) -> None:
    first, second, weights = story["first"], story["second"], story["weights"]
    assert isinstance(first, ScriptedDriver)
    assert isinstance(second, ScriptedDriver)
    assert isinstance(weights, list)
    assert second.results(0)[1] == c.CheckpointLoaded(step=3, extra=b"the driver's own")
    before = [done for done in first.results(0) if isinstance(done, c.StepDone)][3:]
    after = [done for done in second.results(0) if isinstance(done, c.StepDone)]
    assert [(done.step, done.loss, done.gradient_norm) for done in before] == [
        (done.step, done.loss, done.gradient_norm) for done in after
    ]
    left, right = (load_file(path / "model.safetensors") for path in weights)
    assert all(np.array_equal(left[name], right[name]) for name in left)


def test_a_checkpoint_of_two_ranks_goes_on_in_one(story: dict[str, object], world: None, model_path: Path) -> None:
    first = story["first"]
    assert isinstance(first, ScriptedDriver)
    checkpoint = next(done for done in first.results(0) if isinstance(done, c.CheckpointSaved))
    (expected,) = [done for done in first.results(0) if isinstance(done, c.StepDone) and done.step == 5]
    worker = s.load_worker(model_path)
    together = [batch for placed in PLACED for batch in placed]
    one = [s.train_commands(together, s.step_command(c.LossKind.POLICY, step)) for step in (4, 5)]
    *_, done = s.execute(worker, c.LoadCheckpoint(path=checkpoint.path), *one[0], *one[1])
    assert isinstance(done, c.StepDone)
    assert done.loss == pytest.approx(expected.loss, rel=1e-5)


def test_each_rank_answers_with_its_own_sequences(story: dict[str, object]) -> None:
    driver = story["second"]
    assert isinstance(driver, ScriptedDriver)
    for rank, own in enumerate(PLACED):
        answer = driver.results(rank)[-1]
        assert isinstance(answer, c.LogprobsDone)
        assert [row.row for row in answer.rows] == [name for batch in own for name in batch.rows]


def test_ranks_end_with_a_clear_message_when_the_driver_goes_away(story: dict[str, object]) -> None:
    log = story["log"]
    assert isinstance(log, Path)
    assert story["status"] != 0
    assert re.search(r"rank \d ends: the driver at 127.0.0.1:\d+ is gone: ", log.read_text())
