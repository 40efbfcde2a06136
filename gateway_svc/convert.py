"""Protobuf messages <-> values, for everything but model calls (`convert_calls.py`) and models
(`convert_models.py`).

In: requests. Out: checked values (InvalidFieldError where a field is wrong), and messages made of values.
"""

from collections.abc import Iterable
from datetime import timedelta
from hashlib import blake2b

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from whippletree.v1 import attempt_pb2, identity_pb2, phase_pb2, rollout_pb2, run_pb2

from gateway_svc import names
from gateway_svc.convert_sampling import sampling_from_pb, sampling_to_pb
from gateway_svc.issuer import Terms
from gateway_svc.types import (
    Attempt,
    Micros,
    Once,
    Outcome,
    Phase,
    Rollout,
    RolloutSpec,
    RolloutState,
    RolloutStatus,
    Run,
    Split,
)
from whippletree.errors import InvalidFieldError
from whippletree.identity.claims import Scope
from whippletree.identity.folder import public_bytes
from whippletree.identity.tokens import ALGORITHM

_NEW = RolloutStatus()
MAX_HOLD = Micros(timedelta(minutes=10) // timedelta(microseconds=1))
LONGEST = 315_576_000_000
"""Seconds of the longest valid Duration."""
MAX_ATTEMPTS, MOST_ATTEMPTS = 3, 20

STATES = {
    RolloutState.QUEUED: rollout_pb2.ROLLOUT_STATE_QUEUED,
    RolloutState.RUNNING: rollout_pb2.ROLLOUT_STATE_RUNNING,
    RolloutState.SUCCEEDED: rollout_pb2.ROLLOUT_STATE_SUCCEEDED,
    RolloutState.FAILED: rollout_pb2.ROLLOUT_STATE_FAILED,
    RolloutState.CANCELLED: rollout_pb2.ROLLOUT_STATE_CANCELLED,
}
OUTCOMES = {
    Outcome.SUCCEEDED: attempt_pb2.ATTEMPT_OUTCOME_SUCCEEDED,
    Outcome.FAILED: attempt_pb2.ATTEMPT_OUTCOME_FAILED,
    Outcome.INFRASTRUCTURE_FAILURE: attempt_pb2.ATTEMPT_OUTCOME_INFRASTRUCTURE_FAILURE,
    Outcome.CANCELLED: attempt_pb2.ATTEMPT_OUTCOME_CANCELLED,
}
PHASES = {
    Phase.ROLLOUT: phase_pb2.PHASE_ROLLOUT,
    Phase.DRAINING: phase_pb2.PHASE_DRAINING,
    Phase.UPDATING: phase_pb2.PHASE_UPDATING,
}
SPLITS = {Split.TRAIN: rollout_pb2.SPLIT_TRAIN, Split.EVAL: rollout_pb2.SPLIT_EVAL}
SCOPES = {
    identity_pb2.TOKEN_SCOPE_INFER: Scope.INFER,
    identity_pb2.TOKEN_SCOPE_NOTE: Scope.NOTE,
    identity_pb2.TOKEN_SCOPE_REWARD: Scope.REWARD,
}

_STATES = {value: key for key, value in STATES.items()}
_OUTCOMES = {value: key for key, value in OUTCOMES.items()}
_PHASES = {value: key for key, value in PHASES.items()} | {phase_pb2.PHASE_UNSPECIFIED: Phase.ROLLOUT}
_SPLITS = {value: key for key, value in SPLITS.items()} | {rollout_pb2.SPLIT_UNSPECIFIED: Split.TRAIN}


def once(method: str, request_id: str, request: Message, *, scope: str = "") -> Once | None:
    """What makes a request answered once; None where the caller gave no id.

    Equal ids of different scopes have nothing to do with one another: whoever may write in one cannot use up another's.
    """
    if not request_id:
        return None
    if len(request_id) > 128:
        raise InvalidFieldError("request_id is longer than 128 characters", field="request_id")
    body = request.SerializeToString(deterministic=True)
    return Once(request_id=scope + request_id, method=method, digest=blake2b(body, digest_size=16).digest())


def page_size(asked: int, default: int, most: int) -> int:
    """Items of a page."""
    if asked < 0:
        raise InvalidFieldError("page_size is negative", field="page_size")
    return min(asked or default, most)


def timestamp(micros: Micros | None) -> Timestamp | None:
    """Microseconds -> Timestamp; None stays unset."""
    if micros is None:
        return None
    made = Timestamp()
    made.FromMicroseconds(micros)
    return made


def duration(micros: Micros) -> Duration:
    """Microseconds -> Duration."""
    made = Duration()
    made.FromMicroseconds(micros)
    return made


def span(asked: Duration, field: str) -> Micros:
    """Duration -> microseconds. Raises InvalidFieldError where it is negative, or none by the rules of its type."""
    if not (0 <= asked.seconds <= LONGEST and 0 <= asked.nanos < 1_000_000_000):
        raise InvalidFieldError(f"{field} is negative or longer than 10,000 years", field=field)
    return Micros(asked.ToMicroseconds())


def state(value: rollout_pb2.RolloutState.ValueType, field: str = "state") -> RolloutState:
    """A known state."""
    if value not in _STATES:
        raise InvalidFieldError(f"{field} is missing or unknown", field=field)
    return _STATES[value]


def outcome(value: attempt_pb2.AttemptOutcome.ValueType) -> Outcome:
    """A known outcome."""
    if value not in _OUTCOMES:
        raise InvalidFieldError("outcome is missing or unknown", field="outcome")
    return _OUTCOMES[value]


def phase(value: phase_pb2.Phase.ValueType) -> Phase:
    """A known phase."""
    if value not in _PHASES:
        raise InvalidFieldError("phase is unknown", field="phase")
    return _PHASES[value]


def interrupts(value: phase_pb2.InFlight.ValueType) -> bool:
    """Whether generations in flight are interrupted."""
    if value not in phase_pb2.InFlight.values():
        raise InvalidFieldError("in_flight is unknown", field="in_flight")
    return value == phase_pb2.IN_FLIGHT_INTERRUPT


def spec(request: rollout_pb2.CreateRolloutRequest) -> RolloutSpec:
    """What is asked for, with defaults filled in."""
    rollout, runner = request.rollout, request.rollout.runner
    if rollout.split not in _SPLITS:
        raise InvalidFieldError("rollout.split is unknown", field="rollout.split")
    attempts = runner.max_attempts or MAX_ATTEMPTS
    if not 1 <= attempts <= MOST_ATTEMPTS:
        text = f"rollout.runner.max_attempts {attempts} lies outside [1, {MOST_ATTEMPTS}]"
        raise InvalidFieldError(text, field="rollout.runner.max_attempts")
    _check_runner(runner)
    if len(rollout.group_id) > 128:
        raise InvalidFieldError("rollout.group_id is longer than 128 characters", field="rollout.group_id")
    return RolloutSpec(
        rollout_id=names.rollout_id(request.rollout_id),
        run_id=names.run(rollout.run, "rollout.run"),
        group_id=rollout.group_id,
        split=_SPLITS[rollout.split],
        input=rollout.input.SerializeToString(deterministic=True),
        runner=runner.SerializeToString(deterministic=True),
        metadata=rollout.metadata.SerializeToString(deterministic=True) if rollout.HasField("metadata") else b"",
        max_attempts=attempts,
    )


def _check_runner(runner: rollout_pb2.Runner) -> None:
    """Raise InvalidFieldError for what no controller can carry out."""
    if runner.HasField("timeout"):
        span(runner.timeout, "rollout.runner.timeout")
    match runner.WhichOneof("backend"):
        case "local_command" if not runner.local_command.command or not runner.local_command.command[0]:
            field = "rollout.runner.local_command.command"
            raise InvalidFieldError(f"{field} names no program", field=field)
        case "python_program" if not runner.python_program.path.startswith("/"):
            field = "rollout.runner.python_program.path"
            raise InvalidFieldError(f"{field} is no absolute path", field=field)


def terms(runner: bytes) -> Terms:
    """What a stored runner says of its attempts' tokens."""
    said = rollout_pb2.Runner.FromString(runner)
    return Terms(
        timeout=Micros(said.timeout.ToMicroseconds()),
        agent_rewards=said.reward_policy in (rollout_pb2.REWARD_POLICY_UNSPECIFIED, rollout_pb2.REWARD_POLICY_AGENT),
    )


def scopes(asked: Iterable[identity_pb2.TokenScope.ValueType]) -> frozenset[Scope]:
    """Scopes of a token. InvalidFieldError."""
    asked = set(asked)
    if not asked <= SCOPES.keys():
        raise InvalidFieldError("scopes holds an unknown scope", field="scopes")
    return frozenset(SCOPES[scope] for scope in asked)


def key_to_pb(kid: str, key: Ed25519PublicKey) -> identity_pb2.Key:
    """A public key, as RFC 8037 has it."""
    return identity_pb2.Key(kid=kid, kty="OKP", crv="Ed25519", x=public_bytes(key), alg=ALGORITHM, use="sig")


def rollout_to_pb(rollout: Rollout) -> rollout_pb2.Rollout:
    """A rollout as it stands."""
    asked, status = rollout.spec, rollout.status
    made = rollout_pb2.Rollout(
        name=f"rollouts/{asked.rollout_id}",
        run=f"runs/{asked.run_id}",
        group_id=asked.group_id,
        split=SPLITS[asked.split],
        state=STATES[status.state],
        attempt=status.attempt,
        state_message=status.message,
        create_time=timestamp(rollout.create_time),
        start_time=timestamp(status.start_time),
        finish_time=timestamp(status.finish_time),
        revision=status.revision,
    )
    made.input.ParseFromString(asked.input)
    if asked.runner:
        made.runner.ParseFromString(asked.runner)
    if asked.metadata:
        made.metadata.ParseFromString(asked.metadata)
    return made


def created_to_pb(
    made: rollout_pb2.CreateRolloutResponse,
    request: rollout_pb2.CreateRolloutRequest,
    rollout: Rollout,
    existed: bool,
) -> None:
    """Fill the answer of a create. The stored content is the request's: copying it is cheaper than reading it anew."""
    made.existed = existed
    if rollout.status != _NEW:
        made.rollout.CopyFrom(rollout_to_pb(rollout))
        return
    copy, asked = made.rollout, rollout.spec
    copy.CopyFrom(request.rollout)
    copy.ClearField("state_message")
    copy.ClearField("attempt")
    copy.ClearField("start_time")
    copy.ClearField("finish_time")
    if not asked.runner:
        copy.ClearField("runner")
    if not asked.metadata:
        copy.ClearField("metadata")
    copy.name, copy.split = f"rollouts/{asked.rollout_id}", SPLITS[asked.split]
    copy.state, copy.revision = rollout_pb2.ROLLOUT_STATE_QUEUED, rollout.status.revision
    seconds, micros = divmod(rollout.create_time, 1_000_000)
    copy.create_time.seconds, copy.create_time.nanos = seconds, 1000 * micros
    copy.input.SetInParent()


def attempt_to_pb(attempt: Attempt) -> attempt_pb2.Attempt:
    """An attempt."""
    return attempt_pb2.Attempt(
        name=f"rollouts/{attempt.rollout_id}/attempts/{attempt.number}",
        number=attempt.number,
        outcome=attempt_pb2.ATTEMPT_OUTCOME_UNSPECIFIED if attempt.outcome is None else OUTCOMES[attempt.outcome],
        worker=attempt.worker,
        message=attempt.message,
        start_time=timestamp(attempt.start_time),
        finish_time=timestamp(attempt.finish_time),
    )


def run_from_pb(request: run_pb2.CreateRunRequest) -> Run:
    """A run to be made."""
    hold = span(request.run.max_hold, "run.max_hold") if request.run.HasField("max_hold") else MAX_HOLD
    return Run(
        run_id=names.run_id(request.run_id),
        policy=names.model(request.run.policy, "run.policy"),
        train_sampling=sampling_from_pb(request.run.train_sampling, "run.train_sampling"),
        eval_sampling=sampling_from_pb(request.run.eval_sampling, "run.eval_sampling"),
        max_hold=hold,
    )


def run_to_pb(run: Run) -> run_pb2.Run:
    """A run."""
    return run_pb2.Run(
        name=f"runs/{run.run_id}",
        policy=f"models/{run.policy}",
        train_sampling=sampling_to_pb(run.train_sampling),
        eval_sampling=sampling_to_pb(run.eval_sampling),
        max_hold=duration(run.max_hold),
        phase=PHASES[run.phase],
        create_time=timestamp(run.create_time),
    )
