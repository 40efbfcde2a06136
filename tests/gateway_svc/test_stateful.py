"""Random histories of the record against its model: operations repeated, reordered, cut off, with restarts in between.

Each step sends a few operations at once, some of them twice, some cut off by their caller, some with the gateway
stopped (or killed) under them. Then every operation is sent again with its request id. The answers and everything that
the gateway holds must be explained by the model with each request done at most once, in some order.
"""

import asyncio
import contextlib
import itertools
import random
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from tests.fakes import postgresql
from tests.fakes.engine import FakeEngine
from tests.fakes.gateway import RunningGateway, gateway_process, running_gateway
from tests.gateway_svc import record_driver as driver
from tests.gateway_svc import record_model as model
from tests.gateway_svc.record_model import Answer, Operation, State
from whippletree.errors import from_rpc_error

ROLLOUTS = st.sampled_from(["a", "b", "c"])
ATTEMPTS = st.integers(1, 2)
OPERATIONS: st.SearchStrategy[Operation] = st.one_of(
    st.builds(model.Create, wanted=st.tuples(st.tuples(ROLLOUTS, st.integers(0, 1)))),
    st.builds(
        model.Create,
        wanted=st.lists(st.tuples(ROLLOUTS, st.just(0)), min_size=1, max_size=3).map(tuple),
        batch=st.just(True),
    ),
    st.builds(model.Start, rollout=ROLLOUTS),
    st.builds(model.Start, rollout=ROLLOUTS),
    st.builds(
        model.Finish,
        rollout=ROLLOUTS,
        attempt=ATTEMPTS,
        outcome=st.sampled_from(["succeeded", "failed", "infrastructure_failure", "infrastructure_failure"]),
    ),
    st.builds(model.Cancel, rollout=ROLLOUTS),
    st.builds(
        model.Move,
        rollout=ROLLOUTS,
        to=st.sampled_from(["running", "succeeded", "failed", "cancelled"]),
        attempt=st.integers(0, 2),
    ),
    st.builds(model.Append, rollout=ROLLOUTS, attempt=ATTEMPTS, value=st.integers(0, 2)),
    st.builds(
        model.Generate,
        rollout=ROLLOUTS,
        attempt=ATTEMPTS,
        prompt=st.lists(st.integers(0, 9), min_size=1, max_size=4).map(tuple),
    ),
    st.builds(model.Register, model=st.sampled_from(["tiny", "other"]), length=st.sampled_from([1000, 2000])),
    st.builds(model.Remove, model=st.just("other")),
    st.builds(model.MakeRun, run=st.sampled_from(["s", "t"]), policy=st.sampled_from(["tiny", "other"])),
    st.builds(model.SetPhase, run=st.sampled_from(["s", "t"]), phase=st.sampled_from(["rollout", "updating"])),
)
SENDS = st.lists(
    st.tuples(OPERATIONS, st.sampled_from(["once", "twice", "cut"]), st.integers(0, 3)), min_size=1, max_size=3
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """One message that went out; `answer` None = unknown, it may have been carried out or not."""

    key: str
    operation: Operation
    answer: Answer | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """One explanation of what was seen: the state, and what each request id was answered first."""

    state: State
    first: dict[str, Answer]

    def after(self, sent: Sent) -> "Belief | None":
        """With this message carried out; None where its answer would be another."""
        if sent.key in self.first:
            state, answer, first = self.state, self.first[sent.key], self.first
        else:
            state, answer = model.apply(self.state, sent.operation)
            refused = answer[:1] == ("error",)
            first = self.first if refused else {**self.first, sent.key: answer}
        return Belief(state=state, first=first) if sent.answer in (None, answer) else None


def scope(operation: Operation) -> tuple[str, int] | None:
    """Where a request id is its own: appended events of one attempt and kind, or everything else."""
    return (operation.rollout, operation.attempt) if isinstance(operation, model.Append) else None


def explained(belief: Belief, sent: Sequence[Sent]) -> Iterator[Belief]:
    """All beliefs after these messages in any order; those of unknown answer may be left out."""
    if all(one.answer is None for one in sent):
        yield belief
    for number, one in enumerate(sent):
        if (after := belief.after(one)) is not None:
            yield from explained(after, [*sent[:number], *sent[number + 1 :]])


class Histories(RuleBasedStateMachine):
    """One history on a store of its own."""

    runner: asyncio.Runner
    folder: Path
    engine: FakeEngine
    server: postgresql.Server | None
    """Where the records are; None = in files."""
    killed = False
    """Whether the gateway is a process that is killed, or part of this one and stopped."""
    numbers = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self.place = self.folder / f"history-{next(self.numbers)}"
        self.place.mkdir()
        if self.server is None:
            shutil.copy(self.folder / "record.db", self.place)
        else:
            self.server.copy(str(self.folder), str(self.place))
        self.keys = (f"q{number}" for number in itertools.count())
        self.answered: dict[str, tuple[Operation, Any]] = {}
        self.stack = contextlib.AsyncExitStack()
        self.process: asyncio.subprocess.Process | None = None
        self.belief = Belief(state=State(models={"tiny": 2048}, runs={"r": ("tiny", "rollout")}), first={})
        self.runner.run(self.begin())

    def teardown(self) -> None:
        self.runner.run(self.end())
        shutil.rmtree(self.place)
        if self.server is not None:
            self.server.drop(str(self.place))

    @rule(sends=SENDS, accident=st.sampled_from([False, False, False, True]), shuffle=st.integers(0, 5))
    def send(self, sends: list[tuple[Operation, str, int]], accident: bool, shuffle: int) -> None:
        self.runner.run(self.burst(sends, accident, random.Random(shuffle)))

    @rule(pick=st.integers(0, 1000))
    def repeat_an_old_request(self, pick: int) -> None:
        if self.answered:
            key = list(self.answered)[pick % len(self.answered)]
            self.runner.run(self.once_more(key, self.answered[key][0]))

    @rule(pick=st.integers(0, 1000), other=OPERATIONS)
    def reuse_an_old_request_id(self, pick: int, other: Operation) -> None:
        if self.answered:
            key = list(self.answered)[pick % len(self.answered)]
            first = self.answered[key][0]
            if first != other and scope(first) == scope(other):
                self.runner.run(self.reused(key, other))

    @rule(rollout=ROLLOUTS, number=st.integers(0, 3))
    def deliver(self, rollout: str, number: int) -> None:
        self.runner.run(self.delivered(model.Deliver(rollout=rollout, number=number)))

    @rule()
    def restart(self) -> None:
        self.runner.run(self.again())

    # What the rules do, in the loop.

    async def begin(self) -> None:
        if self.killed:
            self.gateway, self.process = await self.stack.enter_async_context(gateway_process(self.place))
        else:
            self.gateway = await self.stack.enter_async_context(running_gateway(self.place, grace=0.0))

    async def end(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
        await self.stack.aclose()

    async def again(self) -> None:
        await self.end()
        await self.begin()
        await self.settle([self.belief])

    async def burst(self, sends: list[tuple[Operation, str, int]], accident: bool, order: random.Random) -> None:
        named = [(next(self.keys), *one) for one in sends]
        out = [(key, operation, delay if how == "cut" else None) for key, operation, how, delay in named]
        out += [(key, operation, None) for key, operation, how, _ in named if how == "twice"]
        order.shuffle(out)
        calls = [asyncio.ensure_future(self.call(*one)) for one in out]
        if accident:
            await asyncio.sleep(order.choice([0, 0.001, 0.003]))
            await self.end()
            await self.begin()
        sent = await asyncio.gather(*calls)
        beliefs = list(explained(self.belief, sent))
        assert beliefs, f"no order of these explains their answers: {sent}"
        for key, operation, _, _ in named:
            repeated = await self.call(key, operation, None)
            beliefs = [after for belief in beliefs if (after := belief.after(repeated)) is not None]
            assert beliefs, f"the repeat {repeated} is not what was answered first"
        await self.settle(beliefs)

    async def settle(self, beliefs: Sequence[Belief]) -> None:
        """Keep the belief that agrees with everything the gateway holds."""
        found = await driver.observed(self.gateway)
        agreeing = [belief for belief in beliefs if belief.state == found]
        assert agreeing, f"the gateway holds {found}, expected {beliefs[0].state}"
        self.belief = agreeing[0]

    async def call(self, key: str, operation: Operation, cut: int | None) -> Sent:
        """Send one message; `cut` = milliseconds after which its caller goes away."""
        pending = driver.method(self.gateway, operation)(driver.request(operation, self.engine.url, key))
        if cut is not None:
            await asyncio.sleep(cut / 1000)
            pending.cancel()
        try:
            response = await pending
        except asyncio.CancelledError:
            return Sent(key=key, operation=operation, answer=None)
        except grpc.aio.AioRpcError as error:
            if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
                return Sent(key=key, operation=operation, answer=None)
            return Sent(key=key, operation=operation, answer=model.error(from_rpc_error(error).reason))
        _, first = self.answered.setdefault(key, (operation, response))
        assert response == first, f"{operation} was answered {first} first"
        return Sent(key=key, operation=operation, answer=driver.answer(operation, response))

    async def once_more(self, key: str, operation: Operation) -> None:
        sent = await self.call(key, operation, None)
        assert sent.answer is not None
        assert sent.answer == self.belief.first[key]
        await self.settle([self.belief])

    async def reused(self, key: str, other: Operation) -> None:
        first = self.answered[key]
        found = (await self.call(key, other, None)).answer
        self.answered[key] = first
        missing = model.apply(self.belief.state, other)[1] == model.error("NOT_FOUND")
        assert found == model.error("REQUEST_ID_REUSED") or (missing and found == model.error("NOT_FOUND"))
        await self.settle([self.belief])

    async def delivered(self, operation: model.Deliver) -> None:
        state, expected = model.apply(self.belief.state, operation)
        found: Answer = ()
        try:
            await driver.deliver(self.gateway, operation.rollout, operation.number)
        except grpc.aio.AioRpcError as error:
            found = model.error(from_rpc_error(error).reason)
        assert found == expected
        await self.settle([replace(self.belief, state=state)])


class KilledHistories(Histories):
    """The same with a process and SIGKILL."""

    killed = True


@pytest.fixture
def prepared(tmp_path: Path, database: str, request: pytest.FixtureRequest) -> Iterator[None]:
    """A loop, a fake engine, and a store with the run `r` and its model that every history begins with."""
    Histories.folder = tmp_path
    Histories.server = request.getfixturevalue("server") if database == "postgresql" else None
    with asyncio.Runner() as runner:
        Histories.runner, Histories.engine = runner, FakeEngine(driver.reply)
        runner.run(prepare())
        yield
        runner.run(Histories.engine.__aexit__())


async def prepare() -> None:
    await Histories.engine.__aenter__()
    async with running_gateway(Histories.folder) as gateway:
        await gateway.register_model(Histories.engine.url)
        await create_run(gateway)


async def create_run(gateway: RunningGateway) -> None:
    await gateway.runs.CreateRun(driver.request(model.MakeRun(run="r", policy="tiny"), "", ""))  # type: ignore[arg-type]


def bounded(histories: int, steps: int) -> settings:
    """The same histories every time, without a deadline for a step."""
    return settings(
        max_examples=histories,
        stateful_step_count=steps,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        print_blob=False,
    )


@pytest.mark.usefixtures("prepared")
def test_the_model_explains_histories_with_restarts() -> None:
    run_state_machine_as_test(Histories, settings=bounded(*(6, 20) if Histories.server else (30, 30)))


@pytest.mark.usefixtures("prepared")
def test_the_model_explains_histories_with_kills() -> None:
    run_state_machine_as_test(KilledHistories, settings=bounded(2, 15))
