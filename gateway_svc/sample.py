"""One response for one call, whatever happens to engines and weights meanwhile.

In: a prompt, its sampling, an admission by the gates. Out: the response, and the engine that gave the last of it.
An engine that fails is left for another, where the generation is begun anew: nothing of it has left the gateway yet.
One that is interrupted keeps its tokens (`resume.py`), is held, and goes on with prompt + tokens under the weights of
then.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import count

from gateway_svc import resume, weights
from gateway_svc.catalog import Catalog
from gateway_svc.engines.client import Clients, EngineClient, EngineError
from gateway_svc.engines.pool import GatesClosedError, Pool
from gateway_svc.phase import Admission, Gates, nobody
from gateway_svc.recorder import Recorder
from gateway_svc.types import CallId, Engine, Finish, Model, Question, Sampled
from whippletree import tasks
from whippletree.errors import EngineUnavailableError, InvalidFieldError

log = logging.getLogger(__name__)

REMINDING = 0.5
"""Seconds between two aborts of an interrupted generation: an engine that did not know it yet passes one over."""


class Sampler:
    """`tries` = how often engines are asked for one response, or for one part of it; `pause` = seconds between two."""

    def __init__(
        self,
        catalog: Catalog,
        gates: Gates,
        pool: Pool,
        clients: Clients,
        recorder: Recorder,
        *,
        tries: int,
        pause: float,
    ) -> None:
        self._catalog, self._gates, self._pool, self._clients = catalog, gates, pool, clients
        self._recorder, self._tries, self._pause = recorder, tries, pause

    async def sample(self, question: Question, admission: Admission) -> tuple[str, Sampled]:
        """(engine's address, response). Raises what `inference.proto` names of engines, and as `Gates.again` does."""
        before, address, rids = resume.NOTHING, "", _rids(question.call_id)
        while True:
            model = self._catalog.model(question.model)
            part = await self._part(resume.rest(question, before), model, rids, admission)
            if part is not None:
                address, sampled = part
                if sampled.finish != Finish.ABORT:
                    return address, resume.joined(before, sampled)
                before = resume.joined(before, resume.kept(sampled, question.sampling.stop))
            if resume.over(question, before, model.context_length):
                return address, replace(before, finish=Finish.LENGTH)
            await self._gates.again(admission)

    async def _part(
        self, question: Question, model: Model, rids: Iterator[str], admission: Admission
    ) -> tuple[str, Sampled] | None:
        """One good answer after at most `tries` tries, whole or interrupted; None = weights change, nothing came."""
        avoid: frozenset[str] = frozenset()
        problem = "not asked"
        for number in range(self._tries):
            if number:
                await asyncio.sleep(self._pause * 2 ** (number - 1))
                if self._gates.closed(admission):
                    return None
                model = self._catalog.model(question.model)  # its weights may have changed meanwhile
            try:
                async with self._pool.place(model, question.rollout_id, avoid, admission) as engine:
                    found = await self._ask(question, model, engine, next(rids), admission)
            except GatesClosedError:
                return None
            except EngineError as error:  # there is none
                problem = str(error)
            except _FailedError as error:
                problem = str(error)
                log.warning("engine %s, call %s: %s", error.address, question.call_id, error)
                avoid |= {error.address}
            else:
                return None if found is None else (engine.address, found)
        raise EngineUnavailableError(
            f"no engine of models/{model.name} gave a good answer: {problem}", model=model.name
        )

    async def _ask(
        self, question: Question, model: Model, engine: Engine, rid: str, admission: Admission
    ) -> Sampled | None:
        """One answer of one engine; None = interrupted, and nothing came. Raises _FailedError, InvalidFieldError."""
        client = self._clients[engine.kind]
        try:
            await self._pool.ready(model, engine)
            if admission.interrupted:
                return None
            async with _interruptible(client, engine.address, rid, admission):
                with self._recorder.asking(engine.address):
                    found = await client.generate(
                        engine.address, rid, question.prompt, question.sampling, model.vocabulary_size
                    )
            check(found, model, interrupted=admission.interrupted)
        except (EngineError, ValueError) as error:
            if admission.interrupted:  # an engine may refuse what it aborted before it began
                return None
            self._recorder.engine_failed(engine.address, _cause(error))
            if isinstance(error, EngineError) and error.refused:
                raise InvalidFieldError(f"the engine refused: {error}", field="sampling") from error
            self._pool.failed(engine.address)
            raise _FailedError(str(error), engine.address) from error
        self._pool.answered(engine.address)
        return found


class _FailedError(Exception):
    def __init__(self, message: str, address: str) -> None:
        super().__init__(message)
        self.address = address


def check(found: Sampled, model: Model, *, interrupted: bool) -> None:
    """Raise ValueError where a response cannot be recorded: aborted by the engine, sampled by other weights."""
    if found.finish == Finish.ABORT and not interrupted:
        raise ValueError("the engine aborted the generation")
    if model.weights_path and not weights.agree(found.spans, model.weight_version):
        versions = sorted({span.weight_version for span in found.spans})
        raise ValueError(f"sampled by weights {', '.join(versions)} instead of {model.weight_version}")


def _cause(error: EngineError | ValueError) -> str:
    """As `Recorder.engine_failed` wants it."""
    if isinstance(error, ValueError):
        return "unusable"
    return "refused" if error.refused else "unreachable"


def _rids(call_id: CallId) -> Iterator[str]:
    """The call's id, then others that begin with it: one for each time that an engine is asked."""
    yield call_id
    for number in count(1):
        yield f"{call_id}r{number}"


@asynccontextmanager
async def _interruptible(client: EngineClient, address: str, rid: str, admission: Admission) -> AsyncIterator[None]:
    """While the block runs, an interruption of the admission aborts the generation at its engine."""
    aborting: list[asyncio.Task[None]] = []

    def told() -> None:
        if admission.interrupted and not aborting:
            aborting.append(asyncio.create_task(_abort(client, address, rid)))

    admission.told = told
    try:
        yield
    finally:
        admission.told = nobody
        await tasks.end(*aborting)


async def _abort(client: EngineClient, address: str, rid: str) -> None:
    while True:
        await client.abort(address, rid)
        await asyncio.sleep(REMINDING)
