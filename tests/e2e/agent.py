"""The quick start's agent with a record of its own: a note for every call it saw, and a reward that any policy earns at
times, so that two short steps have something to learn.

Posts: Note `seen` {"call_id", "messages", "tools"} after each reply; one reward.
"""

import copy
import json
import os
import sys
import uuid
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from openai import OpenAI

from examples.quickstart import agent as quickstart


class Noting:
    """Stands where the client's `chat.completions` does and notes what went out and which call came back."""

    def __init__(self, client: OpenAI, events: str) -> None:
        self._client = client
        self._events = events
        self.chat = self
        self.completions = self

    def create(self, **body: Any) -> Any:
        """One call, then its note."""
        asked = copy.deepcopy(body["messages"])
        answer = self._client.chat.completions.create(**body)
        call_id = answer.id.removeprefix("chatcmpl-")
        seen = {"call_id": call_id, "messages": json.dumps(asked), "tools": json.dumps(body["tools"])}
        self.post({"note": {"type": "seen", "data": seen}})
        return answer

    def post(self, event: dict[str, Any]) -> None:
        """Append an event; repeated by the client with the same request id where the answer is lost."""
        self._client.post(self._events, cast_to=object, body={**event, "request_id": str(uuid.uuid4())})


def main() -> None:
    """One rollout."""
    task = json.loads(Path(os.environ["WHIPPLETREE_INPUT"]).read_text())
    rollout, attempt = os.environ["WHIPPLETREE_ROLLOUT"], os.environ["WHIPPLETREE_ATTEMPT"]
    client = OpenAI(max_retries=8)
    noting = Noting(client, f"{os.environ['WHIPPLETREE_API']}/api/rollouts/{rollout}/attempt/{attempt}/events")
    reply = quickstart.solve(noting, task["question"], nonsense=False)  # type: ignore[arg-type]
    noting.post({"reward": {"value": float(len(reply) % 2)}})


if __name__ == "__main__":
    main()
