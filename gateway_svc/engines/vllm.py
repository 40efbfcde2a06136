"""vLLM's HTTP interface (0.32): its token endpoint, and what it has for weights.

The server must run with `--enable-scale-out` and `--logprobs-mode processed_logprobs` (else log-probabilities are those
before temperature and top_p), and with VLLM_SERVER_DEV_MODE=1 where weights are published. It reads new weights from a
directory in place; a directory that it cannot read ends it.
"""

from typing import Any

from gateway_svc import weights
from gateway_svc.engines import answer
from gateway_svc.engines.api import Api, only_set
from gateway_svc.types import Finish, Sampled, Sampling
from whippletree.tokens import unpack_ids

PREFIX = "generate-tokens-"
"""The server puts this before a request's id, and knows it by both alone."""
LOADING = "loading "
"""Before a weight version: a label of an engine whose weights are being changed, or were left in the middle."""
MISSING = -9999.0
"""Stands where a token has no log-probability."""


class Vllm:
    """An `EngineClient`."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def generate(
        self, address: str, rid: str, prompt: bytes, sampling: Sampling, vocabulary_size: int
    ) -> Sampled:
        """See `EngineClient`."""
        body = {"request_id": rid, "token_ids": unpack_ids(prompt), "sampling_params": sampling_params(sampling)}
        found = await self._api.generate(address, "/inference/v1/generate", body, lambda: self.abort(address, rid))
        return sampled(found, vocabulary_size)

    async def abort(self, address: str, rid: str) -> None:
        """See `EngineClient`."""
        await self._api.abort(address, "/inference/v1/abort_requests", {"request_ids": [PREFIX + rid]})

    async def check(self, address: str) -> None:
        """See `EngineClient`."""
        await self._api.check(address)

    async def weight_version(self, address: str) -> str:
        """See `EngineClient`."""
        return await self._api.weight_version(address, "/weight_info")

    async def load_weights(self, address: str, path: str, weight_version: str) -> None:
        """See `EngineClient`."""
        # Until all is done the label is one that no model has: whatever fails halfway is seen, and loaded again.
        await self._label(address, f"{LOADING}{weight_version}")
        body = {"method": "reload_weights", "kwargs": {"weights_path": path}}
        await self._api.post(address, "/collective_rpc", body, seconds=self._api.generate_timeout)
        await self._api.post(address, "/reset_prefix_cache", {}, seconds=self._api.control_timeout)
        await self._label(address, weight_version)

    async def _label(self, address: str, weight_version: str) -> None:
        body = {"new_version": weight_version}
        await self._api.post(address, "/update_weight_version", body, seconds=self._api.control_timeout)


def sampling_params(sampling: Sampling) -> dict[str, Any]:
    """vLLM's names; only what is set. `logprobs` 0 = those of the sampled tokens alone."""
    return only_set(
        {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "max_tokens": sampling.max_tokens,
            "seed": sampling.seed,
            "stop": list(sampling.stop) or None,
            "logprobs": 0,
        }
    )


def sampled(body: object, vocabulary_size: int) -> Sampled:
    """Check and pack one answer. Raises ValueError."""
    with answer.expected_form():
        (choice,) = body["choices"]  # type: ignore[index]
        ids = choice["token_ids"]
        content = (choice["logprobs"] or {}).get("content") or []
        named, values = [one["token_id"] for one in content], [one["logprob"] for one in content]
        finish, reason = Finish(choice["finish_reason"]), choice["stop_reason"]
        spans = weights.spans(choice, len(ids))
        end = ids[-1:] if finish == Finish.STOP else []
    if MISSING in values:
        raise ValueError("a log-probability is missing")
    return answer.packed(
        ids=ids,
        named=named,
        logprobs=values,
        spans=spans,
        finish=finish,
        matched="".join(map(str, end)) if reason is None else str(reason),
        vocabulary_size=vocabulary_size,
    )
