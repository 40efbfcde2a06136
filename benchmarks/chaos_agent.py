"""The agent of the chaos run: a dialogue of a few calls, a note after each, a reward at the end; all repeated while the
system is away, each with its own key. What was acknowledged goes into a file of its own, line by line.

Run by the controller: `chaos_agent.py FOLDER CALLS`. Only the standard library, so that agents start fast.
"""

import http.client
import json
import os
import sys
import time
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

PATIENCE = 120.0
"""Seconds for which one request is repeated."""


class Refused(Exception):
    """An answer that a repeat will not change: the attempt is over."""


def post(url: str, body: dict[str, Any], key: str) -> dict[str, Any]:
    """POST until it is answered. Refused for 4xx."""
    parts, deadline = urlsplit(url), time.monotonic() + PATIENCE
    headers = {
        "content-type": "application/json",
        "authorization": f"Bearer {os.environ['WHIPPLETREE_TOKEN']}",
        "idempotency-key": key,
    }
    while time.monotonic() < deadline:
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        try:
            connection.request("POST", parts.path, json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read()
            if answer.status == 200:
                found: dict[str, Any] = json.loads(text)
                return found
            if 400 <= answer.status < 500 and answer.status not in (408, 429):
                raise Refused(f"{answer.status} {text[:300]!r}")
        except (OSError, http.client.HTTPException, ValueError):
            pass
        finally:
            connection.close()
        time.sleep(0.2)
    raise Refused(f"no answer from {url} within {PATIENCE} s")


def main() -> None:
    """One attempt."""
    folder, calls = Path(sys.argv[1]), int(sys.argv[2])
    rollout, attempt = os.environ["WHIPPLETREE_ROLLOUT"], os.environ["WHIPPLETREE_ATTEMPT"]
    events = f"{os.environ['WHIPPLETREE_API']}/api/rollouts/{rollout}/attempt/{attempt}/events"
    chat = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    with (folder / f"{rollout}.{attempt}.{os.getpid()}.log").open("a", buffering=1) as log:

        def append(event: dict[str, Any]) -> None:
            key = str(uuid.uuid4())
            stored = post(events, {**event, "requestId": key}, key)["event"]
            log.write(json.dumps({"sequence": int(stored["sequence"])}) + "\n")

        messages: list[dict[str, str]] = []
        for turn in range(calls):
            messages.append({"role": "user", "content": f"{rollout} {attempt} {os.getpid()} {turn}"})
            reply = post(chat, {"model": "policy", "messages": messages, "max_tokens": 32}, str(uuid.uuid4()))
            log.write(json.dumps({"call_id": reply["id"].removeprefix("chatcmpl-")}) + "\n")
            messages.append({"role": "assistant", "content": reply["choices"][0]["message"]["content"]})
            append({"note": {"type": "turn", "data": {"key": f"{attempt} {os.getpid()} {turn}"}}})
        append({"reward": {"value": 1.0}})


if __name__ == "__main__":
    try:
        main()
    except Refused as refused:
        sys.exit(str(refused))
