"""One scripted generation of the fake engine: its tokens, log-probabilities, weight versions and end.

In: a ``Reply`` from the test's script and the request's sampling parameters.
Out: the body of ``/generate`` with exactly the real server's fields (see ``sglang_shapes/generate_*.json``).
"""

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True)
class Reply:
    """What the engine samples for a prompt.

    ``token_ids``: the tokens; the end token belongs to them if the reply is to end by itself.
    ``logprobs``: one natural log-probability per token; default -0.5 for each.
    ``finish``: how it ends after the last token: ``stop`` (``matched`` is the last token), ``length``, or the whole
    ``finish_reason`` object. A reply longer than ``max_new_tokens`` is cut there with ``length``.
    ``gates``: token index -> event; that token is sampled only once the event is set.
    Index ``len(token_ids)`` holds the end.
    """

    token_ids: Sequence[int]
    logprobs: Sequence[float] | None = None
    finish: str | dict[str, Any] = "stop"
    gates: Mapping[int, asyncio.Event] = dataclasses.field(default_factory=dict)
    text: str = ""


class Generation:
    """A running or finished generation. Invariant: ids, logprobs and versions have one entry per sampled token."""

    def __init__(
        self, *, rid: str, input_ids: list[int], sampling: Mapping[str, Any], with_logprobs: bool, reply: Reply
    ) -> None:
        self.rid, self.input_ids, self.reply = rid, input_ids, reply
        self.sampling, self.with_logprobs = sampling, with_logprobs
        self.ids: list[int] = []
        self.logprobs: list[float] = []
        self.versions: list[str] = []  # weight version of each token
        self.finish: dict[str, Any] | None = None
        self.aborted = asyncio.Event()

    def gate(self) -> asyncio.Event | None:
        """Return the event that holds back the next token, if any."""
        return self.reply.gates.get(len(self.ids))

    def abort(self) -> None:
        """End it now, with the tokens that it has."""
        self.aborted.set()
        if self.finish is None:
            self.finish = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}

    def step(self, weight_version: str) -> None:
        """Sample the next token with these weights, or end."""
        if self.aborted.is_set():
            return self.abort()
        limit, total = self.sampling.get("max_new_tokens", 128), len(self.reply.token_ids)
        if len(self.ids) < total:
            self.ids.append(self.reply.token_ids[len(self.ids)])
            self.logprobs.append(-0.5 if self.reply.logprobs is None else self.reply.logprobs[len(self.ids) - 1])
            self.versions.append(weight_version)
            if len(self.ids) == total and total in self.reply.gates:
                return None  # the end waits for its own event
        if len(self.ids) == total:
            self.finish = self._reason()
        elif len(self.ids) >= limit:
            self.finish = {"type": "length", "length": len(self.ids)}
        return None

    def _reason(self) -> dict[str, Any]:
        if isinstance(self.reply.finish, dict):
            return self.reply.finish
        if self.reply.finish == "length":
            return {"type": "length", "length": len(self.ids)}
        return {"type": "stop", "matched": self.ids[-1] if self.ids else 0}

    def spans(self) -> list[dict[str, Any]]:
        """Return the weight versions as the server codes them: ``[{version, start, end}]``, end exclusive."""
        spans: list[dict[str, Any]] = []
        for i, version in enumerate(self.versions):
            if spans and spans[-1]["version"] == version:
                spans[-1]["end"] = i + 1
            else:
                spans.append({"version": version, "start": i, "end": i + 1})
        return spans

    def answer(self, weight_version: str) -> dict[str, Any]:
        """Return the body as of now; ``weight_versions`` comes only with the end, as in the real server."""
        meta: dict[str, Any] = {
            "id": self.rid,
            "finish_reason": self.finish,
            "prompt_tokens": len(self.input_ids),
            "weight_version": weight_version,
            "num_retractions": 0,
            "reasoning_tokens": 0,
            "completion_tokens": len(self.ids),
            "cached_tokens": 0,
            "cached_tokens_details": None,
            "dp_rank": None,
        }
        if self.with_logprobs:
            meta["input_token_logprobs"] = []
            meta["output_token_logprobs"] = [[lp, t, None] for lp, t in zip(self.logprobs, self.ids, strict=True)]
            meta["output_token_logprobs_length"] = len(self.ids)
        if self.finish is not None:
            meta |= {"weight_versions": self.spans(), "e2e_latency": 0.01, "response_sent_to_client_ts": 0.0}
        return {"text": self.reply.text, "output_ids": list(self.ids), "meta_info": meta}
