"""The path of one call: look up, validate, hold, sample, check, record, answer.

In: an `Ask`. Out: a durable `Event` with its `ModelCall`. The same request_id, or a harness's retry, joins the running
generation or gets the recorded one. A generation that no caller came back for is aborted at the engine, and nothing is
recorded.
"""

import zlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from gateway_svc import calls, prefix, requests, rollout_state, rollouts, sampling, turns
from gateway_svc.catalog import Catalog
from gateway_svc.engines.client import RESERVED
from gateway_svc.flights import Flight, Flights
from gateway_svc.phase import Gates
from gateway_svc.recent import Recent
from gateway_svc.recorder import Recorder, told
from gateway_svc.sample import Sampler
from gateway_svc.store import SHARING, Store
from gateway_svc.types import (
    Ask,
    CallHead,
    CallId,
    Event,
    Micros,
    Model,
    ModelName,
    Question,
    Role,
    Run,
    RunId,
)
from whippletree.errors import (
    ContextLengthExceededError,
    InvalidFieldError,
    NotFoundError,
    TokenOutOfVocabularyError,
)
from whippletree.log import about
from whippletree.tokens import unpack_ids

CROWD = 2
"""Generations under way from which on their records may wait for one another."""

Claimed = Callable[[Flight], AbstractAsyncContextManager[None]]
"""Entered when no other replica runs what the flight repeats or retries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """What the store knows when a call comes: the answer of the same request, or what it needs to begin.

    `retried` = a recorded call waits for just this request; `siblings` = others of its turn are recorded.
    """

    earlier: Event | None
    retried: bool
    siblings: bool
    ordinal: int
    run_id: RunId
    match: prefix.Match


class Generator:
    """Runs calls. `retry_grace` = seconds for which a generation whose callers have all gone away waits for a retry;
    `claimed` = how several replicas run one generation once, None = there is one replica."""

    def __init__(
        self,
        *,
        store: Store,
        catalog: Catalog,
        gates: Gates,
        sampler: Sampler,
        clock: Callable[[], Micros],
        new_id: Callable[[], str],
        retry_grace: float,
        recorder: Recorder,
        claimed: Claimed | None = None,
    ) -> None:
        self._store, self._catalog, self._gates, self._sampler = store, catalog, gates, sampler
        self._clock, self._new_id = clock, new_id
        self._flights, self._claimed, self._recorder = Flights(grace=retry_grace), claimed, recorder
        self.recent = Recent()
        """What was recorded last, for whoever reads prompts."""

    async def generate(self, ask: Ask) -> Event:
        """Sample, record, answer. Raises the errors that `inference.proto` names."""
        key = ask.once.request_id if ask.once else f" {self._new_id()}"
        digest = ask.once.digest if ask.once else b""
        flight = self._flights.find(key, digest, ask)
        if flight is not None:
            self._recorder.joined()
        else:
            flight = self._flights.begin(key, digest, ask, self._fly)
        event = await self._flights.wait(flight)
        if ask.once is not None and ask.once != flight.ask.once:  # its answer must be known before it leaves
            await self._store.write(lambda tx: turns.joined(tx, event.sequence, ask))
        return event

    async def close(self) -> None:
        """Abort what still runs."""
        await self._flights.close()

    async def _fly(self, flight: Flight) -> Event:
        """One flight; with several replicas, when none of them runs what it repeats or retries."""
        if self._claimed is None:
            return await self._observed(flight.ask, lambda: flight.left)
        async with self._claimed(flight):
            return await self._observed(flight.ask, lambda: flight.left)

    async def _observed(self, ask: Ask, left: Callable[[], bool]) -> Event:
        with self._recorder.generation(ask) as span:
            event = await self._run(ask, left)
            told(span, event)
            return event

    async def _run(self, ask: Ask, left: Callable[[], bool]) -> Event:
        """`left()` = nobody waits any more."""
        begin = self._clock()
        prompt = ask.hashed or prefix.hashed(ask.prompt)
        seen = await self._look(ask, prompt, left)
        if seen.earlier is not None:
            return seen.earlier
        await self._catalog.refresh()
        run = self._catalog.run(seen.run_id)
        name = ModelName(ask.model) if ask.model else run.policy
        check_callable(run, self._catalog.model(name))
        room = check_prompt(ask.prompt, self._catalog.model(name))
        keys = (f"runs/{run.run_id}", f"models/{name}")
        async with self._gates.admitted(keys, run.max_hold / 1e6) as admission:
            if admission.held:
                seen = await self._look(ask, prompt, left)
                if seen.earlier is not None:
                    return seen.earlier
            self._store.check_room()
            model = self._catalog.model(name)
            used = resolve(ask, run, model, room)
            call_id = CallId(self._new_id())
            about(run=run.run_id, call=call_id)
            sent, before = self._clock(), admission.held
            question = Question(
                model=name, prompt=ask.prompt, sampling=used.sampling, rollout_id=ask.rollout_id, call_id=call_id
            )
            address, found = await self._sampler.sample(question, admission)
            held = round((admission.held - before) * 1e6)
            head = CallHead(
                model=name,
                dialect=ask.dialect,
                mode=ask.mode,
                sampling=used.sampling,
                asked_sampling=used.asked,
                finish=found.finish,
                matched_stop=found.matched_stop,
                engine=address,
                start_time=begin,
                hold=Micros(round(admission.held * 1e6)),
                engine_time=Micros(max(0, self._clock() - sent - held)),
                spans=found.spans,
                role=model.role,
                checksum=zlib.crc32(found.logprobs),
                ignored_fields=ask.ignored_fields,
            )
            siblings = seen.siblings or ask.choice_count > 1
            draft = calls.Draft(
                ask=ask, call_id=call_id, head=head, match=seen.match, prompt=prompt, sampled=found, siblings=siblings
            )
            patience = SHARING if len(self._flights) >= CROWD else 0.0
            event = await self._store.write(
                lambda tx: turns.record(tx, draft, seen.ordinal, lost=left()), patience=patience
            )
            self._recorder.generated(event)
            self.recent.add((ask.rollout_id, ask.attempt), prompt, found.response)
            return event

    async def _look(self, ask: Ask, prompt: prefix.Hashed, left: Callable[[], bool]) -> _Seen:
        """Raises NotFoundError, RequestIdReusedError, StaleAttemptError, RolloutEndedError."""
        seen = await self._store.look(lambda connection: _look(connection, ask, prompt))
        if seen.retried:
            seen = replace(seen, earlier=await self._store.write(lambda tx: turns.take_over(tx, ask, lost=left())))
        if seen.earlier is not None:
            self._recorder.replayed()
        return seen


def check_callable(run: Run, model: Model) -> None:
    """Raise NotFoundError where this run's rollouts may not call this model: it is another run's policy."""
    if model.name != run.policy and model.role != Role.AUXILIARY:
        name = f"models/{model.name}"
        raise NotFoundError(f"{name} is neither the policy of runs/{run.run_id} nor an auxiliary model", name=name)


def check_prompt(prompt: bytes, model: Model) -> int:
    """Room for the response in tokens. Raises where the prompt cannot be given to this model."""
    if not prompt or len(prompt) % 4:
        raise InvalidFieldError("prompt_token_ids is empty or no whole number of int32", field="prompt_token_ids")
    ids = unpack_ids(prompt)
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= model.vocabulary_size:
        token = low if low < 0 else high
        text = f"token {token} lies outside [0, {model.vocabulary_size})"
        raise TokenOutOfVocabularyError(text, token=token, vocabulary_size=model.vocabulary_size)
    room = model.context_length - len(ids)
    if room < RESERVED:
        text = f"the prompt has {len(ids)} tokens: too few of the model's context of {model.context_length} are left"
        raise ContextLengthExceededError(text, prompt_tokens=len(ids), context_length=model.context_length)
    return room


def resolve(ask: Ask, run: Run, model: Model, room: int) -> sampling.Used:
    """What is really used; equal prompts of one request with a seed differ by their choice."""
    asked = ask.sampling
    if asked.seed is not None and ask.choice_index:
        asked = replace(asked, seed=asked.seed + ask.choice_index)
    return sampling.used(mode=ask.mode, role=model.role, run=run, asked=asked, asked_json=ask.asked_sampling, room=room)


def _look(connection: Connection, ask: Ask, prompt: prefix.Hashed) -> _Seen:
    """Raises NotFoundError, RequestIdReusedError, StaleAttemptError, RolloutEndedError."""
    if (earlier := requests.first_answer(connection, ask.once)) is not None:
        event = calls.replayed(connection, earlier)
        return _Seen(
            earlier=event,
            retried=False,
            siblings=False,
            ordinal=0,
            run_id=RunId(""),
            match=prefix.Match(parent=None, shared=0),
        )
    rollout = rollouts.standing(connection, ask.rollout_id, ask.ordinal)
    rollout_state.check_writable(rollout, ask.attempt, f"rollouts/{ask.rollout_id}")
    equal = turns.equal(connection, rollout.ordinal, ask)
    retried = turns.retried(connection, equal, ask) is not None
    match = calls.parent(connection, rollout.ordinal, ask.attempt, prompt)
    return _Seen(
        earlier=None,
        retried=retried,
        siblings=bool(equal),
        ordinal=rollout.ordinal,
        run_id=rollout.run_id,
        match=match,
    )
