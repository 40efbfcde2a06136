"""A small vLLM server for tests: the fake engine's scripts, with the paths and fields of vLLM's token endpoint.

Out: the JSON shapes recorded in ``vllm_shapes/``. A request's id is known to it with the prefix that the real server
puts before it.
"""

from typing import Any

from aiohttp import web

from tests.fakes.engine import BODY, Body, FakeEngine, Generation

PREFIX = "generate-tokens-"
VOCABULARY = 1024


class FakeVllm(FakeEngine):
    """One server on a free port of the loopback."""

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/inference/v1/generate", self._tokens),
            web.post("/inference/v1/abort_requests", self._abort_requests),
            web.get("/health", self._health),
            web.get("/weight_info", self._weight_info),
            web.post("/collective_rpc", self._rpc),
            web.post("/reset_prefix_cache", self._reset),
            web.post("/update_weight_version", self._label),
        ]

    async def _tokens(self, request: web.Request) -> web.Response:
        body: Body = request[BODY]
        sampling = dict(body["sampling_params"])
        generation = Generation(
            rid=PREFIX + body["request_id"],
            input_ids=body["token_ids"],
            sampling=sampling | {"max_new_tokens": sampling.get("max_tokens", 16)},
            with_logprobs="logprobs" in sampling,
            reply=self.reply(list(body["token_ids"])),
        )
        if any(not 0 <= token < VOCABULARY for token in generation.input_ids):
            text = f"Token id {max(generation.input_ids)} is out of vocabulary"
            error = {"message": text, "type": "BadRequestError", "param": None, "code": 400}
            return web.json_response({"error": error}, status=400)
        await self.run(generation)
        return web.json_response(answer(generation))

    async def _abort_requests(self, request: web.Request) -> web.Response:
        ids = request[BODY]["request_ids"]
        self.abort_where(lambda rid: rid in ids)
        return web.Response()

    async def _weight_info(self, request: web.Request) -> web.Response:
        return web.json_response({"weight_version": self.weight_version})

    async def _rpc(self, request: web.Request) -> web.Response:
        body: Body = request[BODY]
        assert body["method"] == "reload_weights"
        await self.loading.wait()
        self.model_path = body["kwargs"]["weights_path"]
        return web.json_response({"results": [None]})

    async def _reset(self, request: web.Request) -> web.Response:
        self.flushes += 1
        return web.json_response({"success": True})

    async def _label(self, request: web.Request) -> web.Response:
        self.weight_version = request[BODY]["new_version"]
        return web.json_response({"success": True, "new_version": self.weight_version})


def answer(generation: Generation) -> dict[str, Any]:
    """The body of one response, whole."""
    tokens = [
        {"token_id": token, "logprob": logprob, "rank": 1}
        for token, logprob in zip(generation.ids, generation.logprobs, strict=True)
    ]
    finish = generation.finish or {"type": None}
    matched = finish.get("matched")
    choice = {
        "index": 0,
        "finish_reason": finish["type"],
        "stop_reason": matched if finish["type"] == "stop" else None,
        "token_ids": list(generation.ids),
        "routed_experts": None,
        "sampling_mask": None,
        "weight_versions": generation.spans() or None,
        "logprobs": {"content": [{**one, "top_logprobs": [one]} for one in tokens]},
    }
    prompt, response = len(generation.input_ids), len(generation.ids)
    usage: dict[str, int | None] = {
        "prompt_tokens": prompt,
        "total_tokens": prompt + response,
        "completion_tokens": response,
    }
    usage |= {"prompt_tokens_details": None, "completion_tokens_details": None}
    nothing = ("prompt_logprobs", "prompt_token_id_logprobs", "prompt_token_ids", "mm_placeholders", "metrics")
    return {
        "request_id": generation.rid,
        "model": "tiny",
        "created": 1,
        "usage": usage,
        **dict.fromkeys((*nothing, "kv_transfer_params", "ec_transfer_params")),
        "output_mode": "tokens",
        "choices": [choice],
    }
