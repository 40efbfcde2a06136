"""What the record must still hold after chaos, and what must not be there, by the logs of what was acknowledged."""

import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from gateway_svc.archive import look_through
from whippletree.client import Client, Rollout
from whippletree.errors import NotFoundError

ENDED = ("succeeded", "failed", "cancelled")


@dataclass(slots=True, kw_only=True)
class Findings:
    """Counts; everything but `acknowledged` and the informative ones must be 0."""

    acknowledged: int = 0
    missing: int = 0
    doubled: int = 0
    not_terminal: int = 0
    orphans: int = 0
    rollouts: int = 0
    succeeded: int = 0
    attempts: int = 0
    calls: int = 0
    details: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong."""
        return not (self.missing or self.doubled or self.not_terminal or self.orphans)

    def wrong(self, what: str, text: str) -> None:
        """Count one fault."""
        setattr(self, what, getattr(self, what) + 1)
        if len(self.details) < 20:
            self.details.append(f"{what}: {text}")


async def check(client: Client, created: Iterable[str], logs: Path) -> Findings:
    """Read the whole record through the API."""
    found = Findings()
    for rollout_id in created:
        found.acknowledged += 1
        try:
            rollout = await client.rollout(rollout_id)
        except NotFoundError:
            found.wrong("missing", f"rollout {rollout_id}")
            continue
        await _rollout(client, rollout, logs, found)
    return found


async def _rollout(client: Client, rollout: Rollout, logs: Path, found: Findings) -> None:
    found.rollouts += 1
    found.attempts += rollout.attempt
    found.succeeded += rollout.state == "succeeded"
    if rollout.state not in ENDED:
        found.wrong("not_terminal", f"{rollout.rollout_id} is {rollout.state}")
    sequences: set[int] = set()
    things: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    async for event in client.events(rollout.rollout_id, tokens=True):
        sequences.add(event.sequence)
        if event.call is not None:
            calls[event.call.call_id] += 1
            things[f"{event.attempt} call {event.call.prompt_token_ids}"] += 1
        elif event.note is not None:
            things[f"{event.attempt} note {event.note[1]}"] += 1
    found.calls += len(calls)
    for thing, count in [*things.items(), *calls.items()]:
        for _ in range(count - 1):
            found.wrong("doubled", f"{rollout.rollout_id} {thing[:80]}")
    for line in acknowledged(logs, rollout.rollout_id):
        entry = json.loads(line)
        found.acknowledged += 1
        known = entry["sequence"] in sequences if "sequence" in entry else entry["call_id"] in calls
        if not known:
            found.wrong("missing", f"{rollout.rollout_id} {line}")


def acknowledged(logs: Path, rollout_id: str) -> list[str]:
    """What the rollout's agents noted; an agent that was killed may have left half a line, which it had not seen."""
    texts = [path.read_text() for path in logs.glob(f"{rollout_id}.*.log")]
    return [line for text in texts for line in text[: text.rfind("\n") + 1].splitlines()]


def check_store(database: Path, found: Findings) -> None:
    """Whatever `record verify` finds wrong with a stopped gateway's store."""
    for fault in look_through(database).faults:
        found.wrong("orphans", f"{fault.where}: {fault.what}")


def processes(mark: str) -> dict[int, str]:
    """Processes with this text in their environment, but this one: command line by id."""
    left: dict[int, str] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                if mark.encode() in (folder / "environ").read_bytes():
                    left[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:120]
            except OSError:
                continue
    return left
