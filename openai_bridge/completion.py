"""The way of one request: body -> model -> prompt -> generations -> replies -> bytes.

Streams are buffered: the generation is secured first and then written in true chunks, because harnesses lose a run when
a stream breaks after its first content. Keep-alives pass the time in the dialect's form. After the last byte the calls
are reported as delivered; a harness that went away before, as lost.
"""

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from openai_bridge import parse
from openai_bridge.delivery import Deliveries, Delivery
from openai_bridge.dialects.dialect import Dialect
from openai_bridge.gateway import Ask, Gateway
from openai_bridge.in_flight import Scope
from openai_bridge.models import Models
from openai_bridge.recorder import Recorder
from openai_bridge.settings import LimitSettings
from openai_bridge.tokenizer import Tokenizer
from openai_bridge.tokenizer_cache import Tokenizers, to_prompt
from openai_bridge.types import (
    Caller,
    ChatRequest,
    Choice,
    Completion,
    Finish,
    Generation,
    Model,
    Part,
    Prompt,
    Repeat,
    TokenLogprob,
)
from whippletree.errors import EngineUnavailableError, WhippletreeError

JSON = "application/json"
SSE = "text/event-stream"
MESSAGE = 65_536
"""Bytes of events put together in one message at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Completions:
    """Answers chat completions of every dialect."""

    gateway: Gateway
    models: Models
    tokenizers: Tokenizers
    deliveries: Deliveries
    limits: LimitSettings
    keep_alive: float
    """Seconds between keep-alives; 0 = none."""
    clock: Callable[[], float]
    """Unix time, seconds."""
    recorder: Recorder

    async def answer(
        self, dialect: Dialect, caller: Caller, data: bytes, repeat: Repeat, scope: Scope, *, keeps_alive: bool = True
    ) -> AsyncIterator[Part]:
        """The answer's bytes; `keeps_alive`: a stream that waits may have keep-alives.

        Raises WhippletreeError, before the first part unless a keep-alive was the first part.
        """
        request = dialect.parse(data, self.limits)
        del data  # a hold may be long
        request_ids = [str(uuid.uuid4()) for _ in range(request.choices)]
        delivery = self.deliveries.begin(caller.rollout, request_ids)
        work = scope.start(
            self.recorder.completing(
                dialect.name,
                request.model,
                caller,
                lambda: self._complete(dialect, caller, request, repeat, delivery),
            )
        )
        scope.at_end(delivery.lose)
        if request.stream and keeps_alive and self.keep_alive > 0:
            while not (await asyncio.wait({work}, timeout=self.keep_alive))[0]:
                self.recorder.kept_alive(dialect.name)
                yield Part(content_type=SSE, data=dialect.keep_alive)
        try:
            completion, call_ids = await scope.result(work)
        finally:
            del work  # see `Scope.result`
        if request.stream:
            for chunk in packed(dialect.events(completion, request), MESSAGE):
                yield Part(content_type=SSE, data=chunk)
        else:
            yield Part(content_type=JSON, data=dialect.body(completion))
        delivery.written(call_ids)  # only here has the last part been written

    async def count(self, dialect: Dialect, caller: Caller, data: bytes) -> int:
        """Tokens of the prompt that `answer` would send to the engine for this body. Raises as `answer` does."""
        _, _, prompt = await self._prompt(caller, dialect.parse(data, self.limits))
        return len(prompt.ids)

    async def _prompt(self, caller: Caller, request: ChatRequest) -> tuple[Model, Tokenizer, Prompt]:
        model = await self.models.find(caller.rollout, request.model)
        tokenizer, begin = await self.tokenizers.of(model), time.perf_counter()
        prompt = await to_prompt(tokenizer, request, context_length=model.context_length)
        self.recorder.rendered(time.perf_counter() - begin)
        return model, tokenizer, prompt

    async def _complete(
        self, dialect: Dialect, caller: Caller, request: ChatRequest, repeat: Repeat, delivery: Delivery
    ) -> tuple[Completion, list[str]]:
        model, tokenizer, prompt = await self._prompt(caller, request)
        asks = [
            Ask(
                caller=caller,
                model=model.name,
                prompt=prompt.ids,
                sampling=request.sampling,
                dialect=dialect.name,
                request_id=request_id,
                choice=index,
                choices=request.choices,
                digest=request.digest,
                ignored=request.ignored,
                repeat=repeat,
            )
            for index, request_id in enumerate(delivery.request_ids)
        ]
        delivery.asked = True
        generations = await self._generate(asks)
        completion = Completion(
            id=dialect.id_prefix + generations[0].call_id,
            created=int(self.clock()),
            model=request.model,
            weight_version=generations[0].weight_version,
            prompt_count=len(prompt.ids),
            choices=tuple(choice(generation, tokenizer, request, prompt) for generation in generations),
        )
        return completion, [generation.call_id for generation in generations]

    async def _generate(self, asks: Sequence[Ask]) -> list[Generation]:
        """One generation per choice, all or none. Each has one request id for as long as its request lives."""
        if len(asks) == 1:  # a task of its own would only cost
            generations = [await self.gateway.generate(asks[0])]
        else:
            try:
                async with asyncio.TaskGroup() as tasks:
                    running = [tasks.create_task(self.gateway.generate(ask)) for ask in asks]
            except BaseExceptionGroup as group:
                raise first(group) from group
            generations = [task.result() for task in running]
        if any(generation.finish is Finish.ABORT for generation in generations):
            raise EngineUnavailableError("The generation was aborted by the engine.")
        return generations


def choice(generation: Generation, tokenizer: Tokenizer, request: ChatRequest, prompt: Prompt) -> Choice:
    """A recorded response in the words of a harness."""
    text, stop = parse.cut_at_stop(tokenizer.decode(generation.ids), request.sampling.stop)
    template = tokenizer.template(with_tools=bool(request.tools))
    return Choice(
        reply=parse.parse(
            text,
            call_id=generation.call_id,
            tools=bool(request.tools),
            reasoning=parse.END_THINK in template.source,
            in_reasoning=prompt.in_reasoning,
        ),
        finish=generation.finish,
        stop=stop,
        response_count=len(generation.ids),
        logprobs=token_logprobs(generation, tokenizer) if request.logprobs else None,
    )


def token_logprobs(generation: Generation, tokenizer: Tokenizer) -> tuple[TokenLogprob, ...]:
    """Every sampled token, end token included, with its log-probability."""
    pairs = zip(generation.ids.tolist(), generation.logprobs.tolist(), strict=True)
    return tuple(TokenLogprob(text=tokenizer.token(token_id), logprob=logprob) for token_id, logprob in pairs)


def packed(events: Iterable[bytes], limit: int) -> Iterator[bytes]:
    """Events put together to messages of about `limit` bytes."""
    waiting, size = [], 0
    for event in events:
        waiting.append(event)
        size += len(event)
        if size >= limit:
            yield b"".join(waiting)
            waiting, size = [], 0
    if waiting:
        yield b"".join(waiting)


def first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The failure that a harness is told: ours by preference."""
    failures = list(leaves(group))
    return next((failure for failure in failures if isinstance(failure, WhippletreeError)), failures[0])


def leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    """Every failure in a group, however deep."""
    for failure in group.exceptions:
        if isinstance(failure, BaseExceptionGroup):
            yield from leaves(failure)
        else:
            yield failure
