"""SGLang's HTTP interface (0.5.23); what it answers to a generation is read by `answer.sampled`."""

from collections.abc import Mapping
from typing import Any

from gateway_svc.engines import answer
from gateway_svc.engines.api import Api, only_set
from gateway_svc.engines.client import EngineError
from gateway_svc.types import Sampled, Sampling
from whippletree.tokens import unpack_ids


class Sglang:
    """An `EngineClient`."""

    def __init__(self, api: Api) -> None:
        self._api = api

    async def generate(
        self, address: str, rid: str, prompt: bytes, sampling: Sampling, vocabulary_size: int
    ) -> Sampled:
        """See `EngineClient`."""
        body = {
            "rid": rid,
            "input_ids": unpack_ids(prompt),
            "sampling_params": sampling_params(sampling),
            "return_logprob": True,
        }
        found = await self._api.generate(address, "/generate", body, lambda: self.abort(address, rid))
        return answer.sampled(found, vocabulary_size)

    async def abort(self, address: str, rid: str) -> None:
        """See `EngineClient`."""
        await self._api.abort(address, "/abort_request", {"rid": rid})

    async def check(self, address: str) -> None:
        """See `EngineClient`."""
        await self._api.check(address)

    async def weight_version(self, address: str) -> str:
        """See `EngineClient`."""
        return await self._api.weight_version(address, "/model_info")

    async def load_weights(self, address: str, path: str, weight_version: str) -> None:
        """See `EngineClient`."""
        body = {"model_path": path, "weight_version": weight_version, "flush_cache": True}
        found = await self._api.post(address, "/update_weights_from_disk", body, seconds=self._api.generate_timeout)
        if not isinstance(found, Mapping) or found.get("success") is not True:
            raise EngineError("the engine did not load the weights")
        wait = int(self._api.control_timeout / 2)
        await self._api.post(address, f"/flush_cache?timeout={wait}", {}, seconds=self._api.control_timeout)


def sampling_params(sampling: Sampling) -> dict[str, Any]:
    """SGLang's names; only what is set."""
    return only_set(
        {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "max_new_tokens": sampling.max_tokens,
            "sampling_seed": sampling.seed,
            "stop": list(sampling.stop) or None,
        }
    )
