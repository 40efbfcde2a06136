"""The tokenizers of the models that are in use, each loaded once, off the event loop."""

import asyncio
import logging
from collections import OrderedDict
from pathlib import Path

from openai_bridge.render import render
from openai_bridge.tokenizer import Tokenizer, load
from openai_bridge.types import ChatRequest, Model, Prompt
from whippletree.errors import InternalError

log = logging.getLogger(__name__)
KEPT = 8
"""Tokenizers in memory at most."""
LONG = 32_768
"""Characters from which a prompt is tokenized in a thread: shorter ones take less than the thread's hop."""


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
            return await asyncio.shield(task)
        except Exception as error:  # tokenizers raises bare Exception over a file that it cannot read
            if self._loading.get(path) is task:
                del self._loading[path]
            log.exception("cannot load the tokenizer of model %s", model.name)
            raise InternalError("the model's tokenizer cannot be loaded") from error


async def to_prompt(tokenizer: Tokenizer, request: ChatRequest) -> Prompt:
    """Messages -> prompt. InvalidFieldError where the template refuses them."""
    template = tokenizer.template(with_tools=bool(request.tools))
    text = render(template, request)
    ids = await asyncio.to_thread(tokenizer.encode, text) if len(text) > LONG else tokenizer.encode(text)
    return Prompt(ids=ids, in_reasoning=text.rstrip().endswith("<think>"))
