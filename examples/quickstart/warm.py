"""Imported once by the warm interpreter from which agents are forked (`agent.preload` in config.toml).

A fork inherits what is imported, and what the OpenAI client builds at its first answer and first connection: an agent
then costs 0.04 CPU-seconds instead of more than one. `agent.py` does not need this file, and does not know it.
"""

import encodings.idna  # host names
from typing import Any

import httpcore2  # the client's connections
import openai.resources.chat.completions.completions  # imported at the first call otherwise
from openai.types.chat import ChatCompletion

__all__ = ["ChatCompletion", "encodings", "httpcore2", "openai"]

CALL: dict[str, Any] = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
MESSAGE: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": [CALL]}
CHOICE: dict[str, Any] = {"index": 0, "finish_reason": "tool_calls", "message": MESSAGE}
USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}

ChatCompletion.construct(
    id="x", object="chat.completion", created=1, model="m", choices=[CHOICE], usage=USAGE
).model_dump(exclude_none=True)
