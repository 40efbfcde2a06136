"""A small pure model of the record: what a correct gateway answers to each operation, and what it then holds.

In: a `State` and an operation. Out: the next state and the answer in plain words, or the name of the error. The model
knows nothing of request ids: whoever uses it applies each request once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

Answer = tuple[object, ...]

ENDED = ("succeeded", "failed", "cancelled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Create:
    """Rollouts by (id, content); `batch` = by BatchCreateRollouts."""

    wanted: tuple[tuple[str, int], ...]
    batch: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Open the next attempt."""

    rollout: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finish:
    """End an attempt; `outcome` succeeded | failed | infrastructure_failure."""

    rollout: str
    attempt: int
    outcome: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancel:
    """End a rollout."""

    rollout: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """TransitionRollout; attempt 0 = the current one."""

    rollout: str
    to: str
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """A reward."""

    rollout: str
    attempt: int
    value: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Generate:
    """A call with this prompt."""

    rollout: str
    attempt: int
    prompt: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Deliver:
    """Mark the rollout's call of this number, from 0."""

    rollout: str
    number: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Register:
    """A model of this context length."""

    model: str
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Remove:
    """DeleteModel."""

    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MakeRun:
    """A run with this policy."""

    run: str
    policy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPhase:
    """rollout | draining | updating."""

    run: str
    phase: str


Operation = (
    Create | Start | Finish | Cancel | Move | Append | Generate | Deliver | Register | Remove | MakeRun | SetPhase
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One rollout; `events` as (attempt, kind, what), `outcomes` of its attempts by number."""

    content: int
    state: str = "queued"
    outcomes: tuple[str, ...] = ()
    revision: int = 1
    events: tuple[tuple[int, str, object], ...] = ()
    delivered: frozenset[int] = frozenset()

    @property
    def attempt(self) -> int:
        """Number of the current attempt."""
        return len(self.outcomes)

    @property
    def calls(self) -> int:
        """How many calls it has."""
        return sum(kind == "call" for _, kind, _ in self.events)


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Everything that the gateway holds."""

    rollouts: Mapping[str, Rollout] = field(default_factory=dict)
    models: Mapping[str, int] = field(default_factory=dict)
    runs: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Policy and phase by run."""


MOST_ATTEMPTS = 2
"""What every rollout is created with."""


def apply(state: State, operation: Operation) -> tuple[State, Answer]:
    """The next state and the answer; ("error", reason) where it is refused."""
    match operation:
        case Create():
            return _create(state, operation)
        case Register(model=model, length=length):
            existed = model in state.models
            return replace(state, models={**state.models, model: length}), (existed, length)
        case Remove(model=model):
            left = {name: length for name, length in state.models.items() if name != model}
            return replace(state, models=left), ()
        case MakeRun(run=run, policy=policy):
            if run not in state.runs:
                return replace(state, runs={**state.runs, run: (policy, "rollout")}), (False, "rollout")
            found, phase = state.runs[run]
            return state, (True, phase) if found == policy else error("ALREADY_EXISTS")
        case SetPhase(run=run, phase=phase):
            if run not in state.runs:
                return state, error("NOT_FOUND")
            return replace(state, runs={**state.runs, run: (state.runs[run][0], phase)}), (phase,)
        case _:
            found_rollout = state.rollouts.get(operation.rollout)
            if found_rollout is None:
                return state, error("NOT_FOUND")
            after, answer = _of_rollout(state, found_rollout, operation)
            return replace(state, rollouts={**state.rollouts, operation.rollout: after}), answer


def error(reason: str) -> Answer:
    """A refusal."""
    return ("error", reason)


def _create(state: State, operation: Create) -> tuple[State, Answer]:
    known, answers = dict(state.rollouts), []
    for name, content in operation.wanted:
        if name not in known:
            known[name] = Rollout(content=content)
            answers.append((False, "queued", 0))
        elif known[name].content != content:
            return state, error("ALREADY_EXISTS")
        else:
            answers.append((True, known[name].state, known[name].attempt))
    return replace(state, rollouts=known), tuple(answers)


def _of_rollout(state: State, rollout: Rollout, operation: Operation) -> tuple[Rollout, Answer]:
    match operation:
        case Start():
            return _verb(rollout, _start(rollout))
        case Finish(attempt=attempt, outcome=outcome):
            return _verb(rollout, _finish(rollout, attempt, outcome))
        case Cancel():
            return _verb(rollout, _cancel(rollout))
        case Move(to=to, attempt=attempt):
            return _verb(rollout, _move(rollout, to, attempt))
        case Append(attempt=attempt, value=value):
            return _written(rollout, attempt, "reward", value)
        case Generate(attempt=attempt, prompt=prompt):
            if (refused := _refused(rollout, attempt)) is None and "tiny" not in state.models:
                return rollout, error("NOT_FOUND")
            return (rollout, refused) if refused else _written(rollout, attempt, "call", prompt)
        case Deliver(number=number):
            if number >= rollout.calls:
                return rollout, error("NOT_FOUND")
            return replace(rollout, delivered=rollout.delivered | {number}), ()
        case _:
            raise AssertionError(operation)


def _verb(before: Rollout, after: Rollout | Answer) -> tuple[Rollout, Answer]:
    if not isinstance(after, Rollout):
        return before, after
    return after, (after.state, after.attempt, after.revision)


def _start(rollout: Rollout) -> Rollout | Answer:
    if rollout.state != "queued":
        return error("WRONG_STATE")
    return replace(rollout, state="running", outcomes=(*rollout.outcomes, ""), revision=rollout.revision + 1)


def _finish(rollout: Rollout, attempt: int, outcome: str) -> Rollout | Answer:
    if attempt != rollout.attempt:
        return error("STALE_ATTEMPT")
    if rollout.state != "running":
        return rollout if rollout.outcomes and rollout.outcomes[-1] == outcome else error("WRONG_STATE")
    again = outcome == "infrastructure_failure" and attempt < MOST_ATTEMPTS
    state = "queued" if again else "succeeded" if outcome == "succeeded" else "failed"
    return _ended(rollout, state, outcome)


def _cancel(rollout: Rollout) -> Rollout | Answer:
    if rollout.state == "cancelled":
        return rollout
    if rollout.state in ENDED:
        return error("WRONG_STATE")
    if rollout.state == "queued":
        return replace(rollout, state="cancelled", revision=rollout.revision + 1)
    return _ended(rollout, "cancelled", "cancelled")


def _move(rollout: Rollout, to: str, attempt: int) -> Rollout | Answer:
    if attempt and attempt != rollout.attempt:
        return error("STALE_ATTEMPT")
    if to == rollout.state:
        return rollout
    if to == "running":
        return _start(rollout)
    if to == "cancelled":
        return _cancel(rollout)
    return _finish(rollout, rollout.attempt, to) if rollout.state == "running" else error("WRONG_STATE")


def _ended(rollout: Rollout, state: str, outcome: str) -> Rollout:
    outcomes = (*rollout.outcomes[:-1], outcome)
    return replace(rollout, state=state, outcomes=outcomes, revision=rollout.revision + 1)


def _refused(rollout: Rollout, attempt: int) -> Answer | None:
    if rollout.state in ENDED:
        return error("ROLLOUT_ENDED")
    return error("STALE_ATTEMPT") if attempt != rollout.attempt or rollout.state != "running" else None


def _written(rollout: Rollout, attempt: int, kind: str, what: object) -> tuple[Rollout, Answer]:
    if (refused := _refused(rollout, attempt)) is not None:
        return rollout, refused
    return replace(rollout, events=(*rollout.events, (attempt, kind, what))), (attempt, kind, what)
