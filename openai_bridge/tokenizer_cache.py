"""The tokenizers of the models that are in use, each loaded once, off the event loop."""

import asyncio
import logging
from collections import OrderedDict
from pathlib import Path

from openai_bridge.pieces import Pieces
from openai_bridge.render import render
from openai_bridge.tokenizer import Tokenizer, load
from openai_bridge.types import ChatRequest, Model, Prompt
from whippletree.errors import ContextLengthExceededError, InternalError
from whippletree.tokens import TokenIds

log = logging.getLogger(__name__)
KEPT = 8
"""Tokenizers in memory at most."""
LONG = 8_192
"""Characters from which text is tokenized in a thread: some milliseconds, for which other calls would have to wait."""

TAIL = 256
"""Characters of a prompt's end that tell whether it opened a reasoning block."""


class Tokenizers:
    """Tokenizers by folder. Invariant: one load per folder at a time."""

    def __init__(self) -> None:
        self._loading: OrderedDict[str, asyncio.Task[Tokenizer]] = OrderedDict()

    async def of(self, model: Model) -> Tokenizer:
        """The model's tokenizer. InternalError where its folder cannot be read; the log says why."""
        path = model.tokenizer_path
        task = self._loading.get(path)
        if task is None:
            task = self._loading[path] = asyncio.create_task(asyncio.to_thread(load, Path(path)))
            if len(self._loading) > KEPT:
                self._loading.popitem(last=False)
        try:
            return task.result() if task.done() else await asyncio.shield(task)
        except Exception as error:  # tokenizers raises bare Exception over a file that it cannot read
            if self._loading.get(path) is task:
                del self._loading[path]
            log.exception("cannot load the tokenizer of model %s", model.name)
            raise InternalError("the model's tokenizer cannot be loaded") from error


async def to_prompt(tokenizer: Tokenizer, request: ChatRequest, *, context_length: int) -> Prompt:
    """Messages -> prompt. InvalidFieldError where the template refuses them, ContextLengthExceededError where they are
    hopelessly long."""
    template = tokenizer.template(with_tools=bool(request.tools))
    text = render(template, request)
    check_length(tokenizer, text, context_length)
    in_reasoning = text[-TAIL:].rstrip().endswith("<think>")
    return Prompt(ids=await _tokenized(tokenizer.pieces, text), in_reasoning=in_reasoning)


def check_length(tokenizer: Tokenizer, text: str, context_length: int) -> None:
    """Raise ContextLengthExceededError where a text cannot fit, whatever its tokens are. Costs nothing where it can."""
    bound = tokenizer.bound
    if bound is None or not bound.may_exceed(text, context_length):
        return
    if (least := bound.least(text)) > context_length:
        raise ContextLengthExceededError(
            f"the prompt has at least {least} tokens, more than the model's context of {context_length}",
            prompt_tokens=f"at least {least}",
            context_length=context_length,
        )


async def _tokenized(pieces: Pieces, text: str) -> TokenIds:
    looked = pieces.look(text)
    long = looked.length > LONG
    return pieces.join(
        looked, await asyncio.to_thread(pieces.encode, looked.missing) if long else pieces.encode(looked.missing)
    )
