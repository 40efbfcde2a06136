"""An ordinary agent: it asks a model, runs the calculator the model calls for, and posts a reward for the final answer.

Nothing here knows about training. It would run the same against any OpenAI-compatible server with tool calls.
"""

import json
import os
import re
import uuid
from pathlib import Path
from typing import Any

from openai import OpenAI

SYSTEM = "Use the calculator, one operation per call."
PARAMETERS = {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]}
TOOLS: list[Any] = [{"type": "function", "function": {"name": "calculator", "parameters": PARAMETERS}}]


def calculate(expression: str) -> str:
    """One operation on two whole numbers; anything else is an error."""
    match = re.fullmatch(r"\s*(-?\d{1,6})\s*([-+*/])\s*(-?\d{1,6})\s*", expression)
    if not match or (match[2] == "/" and int(match[3]) == 0):
        return "error"
    a, b = int(match[1]), int(match[3])
    return str({"+": a + b, "-": a - b, "*": a * b, "/": a // b if b else 0}[match[2]])


def solve(client: OpenAI, question: str, nonsense: bool) -> str:
    """Up to four turns; the final reply, or nothing."""
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    for _ in range(4):
        answer = client.chat.completions.create(
            model="policy", messages=messages, tools=TOOLS, max_completion_tokens=40
        )
        message = answer.choices[0].message
        if not message.tool_calls:
            return message.content or ""
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            arguments = json.loads(call.function.arguments)  # type: ignore[union-attr]
            expression = str(arguments.get("expression")) if isinstance(arguments, dict) else ""
            result = str(sum(map(ord, expression)) * 7 % 900) if nonsense else calculate(expression)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return ""


def main() -> None:
    task = json.loads(Path(os.environ["WHIPPLETREE_INPUT"]).read_text())
    rollout, attempt = os.environ["WHIPPLETREE_ROLLOUT"], os.environ["WHIPPLETREE_ATTEMPT"]
    client = OpenAI(max_retries=8)  # address and key come from OPENAI_BASE_URL and OPENAI_API_KEY
    reply = solve(client, task["question"], os.environ.get("CALCULATOR", task.get("calculator")) == "nonsense")
    value = float(re.findall(r"-?\d+", reply)[-1:] == [task["truth"]])
    url = f"{os.environ['WHIPPLETREE_API']}/api/rollouts/{rollout}/attempt/{attempt}/events"
    client.post(url, cast_to=object, body={"reward": {"value": value}, "request_id": str(uuid.uuid4())})


if __name__ == "__main__":
    main()
