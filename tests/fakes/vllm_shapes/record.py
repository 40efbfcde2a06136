"""Record the answers of a live vLLM server (0.32.0) as the JSON files in this folder, in the form of `sglang_shapes`.

In: the address of a server, and the path of another model of the same architecture on the server's disk.
Run: ``VLLM_SERVER_DEV_MODE=1 vllm serve MODEL --served-model-name tiny --enable-scale-out --logprobs-mode
processed_logprobs``, then ``python -m tests.fakes.vllm_shapes.record http://127.0.0.1:8000 MODEL_PATH``.
"""

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path

import aiohttp

from tests.fakes.sglang_shapes.record import Recorder

HERE = Path(__file__).parent
PROMPT = [1, 30, 31, 32]
LONG = {"max_tokens": 150, "temperature": 1.0, "ignore_eos": True, "logprobs": 0}


def generation(rid: str, sampling: Mapping[str, object], token_ids: list[int]) -> dict[str, object]:
    """The body of a request for tokens with their log-probabilities."""
    return {"request_id": rid, "token_ids": token_ids, "sampling_params": {"logprobs": 0, **sampling}}


async def simple(r: Recorder) -> None:
    """Answers that come at once."""
    short = {"max_tokens": 3, "temperature": 1.0, "ignore_eos": True}
    path = "/inference/v1/generate"
    await r.call("/health", "", "health", "GET")
    await r.call(path, generation("r-1", short, PROMPT), "generate_length")
    await r.call(path, generation("r-2", short | {"stop_token_ids": list(range(1024))}, PROMPT), "generate_stop_token")
    await r.call(
        path, generation("r-3", LONG | {"stop": list("etaoinshr 0123"), "seed": 4}, PROMPT), "generate_stop_string"
    )
    await r.call(path, generation("r-4", short, []), "error_empty_prompt")
    await r.call(path, generation("r-6", short, [5000]), "error_vocabulary")
    await r.call(path, generation("r-7", short | {"temperature": -1}, PROMPT), "error_sampling_parameter")
    await r.call(path, "{", "error_json")


def reload(path: str) -> dict[str, object]:
    """The body that loads weights from a directory."""
    return {"method": "reload_weights", "kwargs": {"weights_path": path}}


async def weights(r: Recorder, model: str) -> None:
    """Weights from a directory, and their label."""
    await r.call("/weight_info", "", "weight_info", "GET")
    await r.call("/collective_rpc", reload(model), "reload_weights")
    await r.call("/reset_prefix_cache", "", "reset_prefix_cache")
    await r.call("/update_weight_version", {"new_version": "v1"}, "update_weight_version")
    await r.call("/weight_info", "", "weight_info_after", "GET")


async def interrupted(r: Recorder) -> None:
    """Generations that are aborted."""
    path = "/inference/v1/generate"
    task = asyncio.create_task(r.call(path, generation("a-1", LONG | {"max_tokens": 1500}, PROMPT), "generate_aborted"))
    await asyncio.sleep(0.3)
    await r.call("/inference/v1/abort_requests", {"request_ids": ["generate-tokens-a-1"]}, "abort_requests")
    await task
    await r.call("/inference/v1/abort_requests", {"request_ids": ["generate-tokens-nobody"]}, "abort_nobody")


async def main(url: str, model: str) -> None:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
        recorder = Recorder(session, url, str(Path(model).parent), HERE)
        await simple(recorder)
        await weights(recorder, model)
        await interrupted(recorder)
        await recorder.call("/collective_rpc", reload(model + "-absent"), "reload_weights_failed")  # this one ends it


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
