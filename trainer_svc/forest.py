"""Calls of one attempt -> training samples, by exact token prefix. Pure.

In: calls with full prompts. Order: leave out what is not trained, above all replies that the harness never had; find
each call's parent, the longest recorded `prompt + response` (of any earlier call) that its prompt starts with; one
sample per call that nothing extends, made of its own prompt and response. Every response is trained in exactly one
sample, under exactly the tokens that it was sampled from. Interleaved subagents, forks and compaction thus give the
fewest samples that causal sequences allow.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from trainer_svc.types import Call, Delivery, Finish, RolloutId, Sample
from whippletree.tokens import TokenIds


class Untrained(StrEnum):
    """Why a call is left out."""

    EMPTY = "empty"  # no response token, or no prompt token to predict from
    LENGTHS = "lengths"  # not one log-probability per response token
    SUPERSEDED = "superseded"  # not delivered, and its prompt was asked again
    LOST = "lost"  # the harness went away before it was delivered
    UNREPORTED = "unreported"  # nobody says that it was delivered, as when a bridge was killed


class Break(StrEnum):
    """Why a call after the first opens a sample of its own."""

    RESAMPLED = "resampled"  # an earlier prompt asked again: best-of-n, or a deliberate resample
    RESPONSE = "response"  # an earlier prompt, but its response comes back as other tokens: retokenised or rewritten
    PROMPT = "prompt"  # the prompt itself differs: compaction, a subagent, an edit, the chat template
    FORK = "fork"  # continues a call that another call has continued already


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Forest:
    """The samples of one attempt and how they came about."""

    samples: tuple[Sample, ...]
    call_count: int  # all calls given
    recorded_tokens: int  # response tokens of all calls given
    masked_tokens: int  # response tokens without a finite log-probability: kept as context, not trained
    truncated_calls: int  # trained calls that ended by length
    untrained: Mapping[Untrained, int]
    undecided_calls: int  # left out for want of a report that may still come
    breaks: Mapping[Break, int]

    @property
    def trained_tokens(self) -> int:
        """Tokens with mask True in all samples."""
        return sum(sample.trained_count for sample in self.samples)

    @property
    def undelivered_calls(self) -> int:
        """Calls that are left out because their harness never had the reply, as far as anybody can tell."""
        return sum(self.untrained.get(why, 0) for why in (Untrained.SUPERSEDED, Untrained.LOST, Untrained.UNREPORTED))


def grow(rollout_id: RolloutId, calls: Sequence[Call]) -> Forest:
    """The samples of `calls`, which belong to one attempt and one model, in any order."""
    ordered = sorted(calls, key=lambda call: call.sequence)
    malformed = {call.call_id: reason for call in ordered if (reason := _malformed(call)) is not None}
    sound = [call for call in ordered if call.call_id not in malformed]
    dropped = _undelivered(sound, _parents(sound))
    trained = [call for index, call in enumerate(sound) if index not in dropped]
    parents = _parents(trained)
    samples = _samples(rollout_id, trained, parents)
    return Forest(
        samples=tuple(sample for sample in samples if sample.trained_count),
        call_count=len(ordered),
        recorded_tokens=sum(len(call.response) for call in ordered),
        masked_tokens=sum(int(np.count_nonzero(~np.isfinite(call.logprobs))) for call in trained),
        truncated_calls=sum(call.finish is Finish.LENGTH for call in trained),
        untrained=Counter([*malformed.values(), *dropped.values()]),
        undecided_calls=sum(sound[index].delivery is Delivery.UNKNOWN for index in dropped),
        breaks=_breaks(trained, parents),
    )


def _malformed(call: Call) -> Untrained | None:
    if not len(call.prompt) or not len(call.response):
        return Untrained.EMPTY
    if len(call.logprobs) != len(call.response):
        return Untrained.LENGTHS
    return None


def _parents(calls: Sequence[Call]) -> list[int | None]:
    """The call whose prompt + response is the longest prefix of each call's prompt; among equals the latest."""
    sequences: list[tuple[bytes, int]] = []  # longest first, the latest first among equals
    parents: list[int | None] = []
    for index, call in enumerate(calls):
        prompt = call.prompt.tobytes()
        parents.append(next((earlier for tokens, earlier in sequences if prompt.startswith(tokens)), None))
        sequences.append((prompt + call.response.tobytes(), index))
        sequences.sort(key=lambda item: (-len(item[0]), -item[1]))
    return parents


def _undelivered(calls: Sequence[Call], parents: Sequence[int | None]) -> dict[int, Untrained]:
    """Calls whose reply the harness never had. A later prompt that continues one proves it, whatever was reported."""
    continued = set(parents)
    last_asked = {call.prompt.tobytes(): index for index, call in enumerate(calls)}
    dropped: dict[int, Untrained] = {}
    for index, call in enumerate(calls):
        if call.delivery is Delivery.DELIVERED or index in continued:
            continue
        if last_asked[call.prompt.tobytes()] > index:
            dropped[index] = Untrained.SUPERSEDED
        else:
            dropped[index] = Untrained.LOST if call.delivery is Delivery.LOST else Untrained.UNREPORTED
    return dropped


def _samples(rollout_id: RolloutId, calls: Sequence[Call], parents: Sequence[int | None]) -> list[Sample]:
    """One sample per leaf, in the order of the leaves; a response shared by several is trained in the first."""
    continued, trained, samples = set(parents), set[int](), list[Sample]()
    for leaf, call in enumerate(calls):
        if leaf in continued:
            continue
        token_ids = np.concatenate([call.prompt, call.response]).astype(np.int32)
        mask, logprobs = np.zeros(len(token_ids), np.bool_), np.zeros(len(token_ids), np.float32)
        step: int | None = leaf
        while step is not None and step not in trained:
            start, values = len(calls[step].prompt), calls[step].logprobs
            finite = np.isfinite(values)
            mask[start : start + len(values)] = finite
            logprobs[start : start + len(values)] = np.where(finite, values, 0)
            trained.add(step)
            step = parents[step]  # a trained call's ancestors are trained too: its sample held them all
        samples.append(
            Sample(rollout_id=rollout_id, index=len(samples), token_ids=token_ids, mask=mask, logprobs=logprobs)
        )
    return samples


def _breaks(calls: Sequence[Call], parents: Sequence[int | None]) -> Counter[Break]:
    """Why samples were opened after the first."""
    found: Counter[Break] = Counter()
    continued: set[int] = set()
    for index, parent in enumerate(parents):
        if parent is None:
            if index:
                found[_cause(calls[index].prompt, calls[:index])] += 1
        elif parent in continued:
            found[Break.FORK] += 1
        else:
            continued.add(parent)
    return found


def _cause(prompt: TokenIds, earlier: Sequence[Call]) -> Break:
    """Compares with the earlier call that shares the most tokens."""
    key = prompt.tobytes()
    if any(call.prompt.tobytes() == key for call in earlier):
        return Break.RESAMPLED
    nearest = max(earlier, key=lambda call: _shared(prompt, np.concatenate([call.prompt, call.response])))
    return Break.RESPONSE if _shared(prompt, nearest.prompt) == len(nearest.prompt) else Break.PROMPT


def _shared(one: TokenIds, other: TokenIds) -> int:
    """Length of the common prefix."""
    length = min(len(one), len(other))
    different = np.flatnonzero(one[:length] != other[:length])
    return int(different[0]) if len(different) else length
