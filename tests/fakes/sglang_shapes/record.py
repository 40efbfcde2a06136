"""Record the answers of a live SGLang server as the JSON files in this folder.

In: the address of a server, and the path of another model of the same architecture on the server's disk.
Out: one file per case, ``{"method", "path", "request", "status", "content_type", "body"}``; ``body`` is the parsed
JSON, or the text where the answer is not JSON. ``test_engine.py`` holds the fake engine to these files.
Run: ``python tests/fakes/sglang_shapes/record.py http://127.0.0.1:30000 MODEL_PATH``.
"""

import asyncio
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path

import aiohttp

HERE = Path(__file__).parent
PROMPT = [1, 30, 31, 32]
LONG = {"max_new_tokens": 150, "temperature": 1.0, "ignore_eos": True}


class Recorder:
    """Sends requests to one server and keeps the answers that have a case's name."""

    def __init__(self, session: aiohttp.ClientSession, url: str, hide: str, folder: Path = HERE) -> None:
        self._session, self._url, self._hide, self._folder = session, url, hide, folder

    async def call(self, path: str, request: object, case: str = "", method: str = "POST") -> object:
        """Send one request; ``request`` is JSON, or text that is sent as it is. With a case: write the file."""
        data = request if isinstance(request, str) else json.dumps(request)
        headers = {"content-type": "application/json"}
        async with self._session.request(method, self._url + path, data=data, headers=headers) as answer:
            text = await answer.text()
        try:
            body: object = json.loads(text)
        except ValueError:
            body = text
        if case:
            record = {
                "method": method,
                "path": path,
                "request": request,
                "status": answer.status,
                "content_type": answer.content_type,
                "body": body,
            }
            written = json.dumps(record).replace(self._hide, "MODELS")
            written = re.sub(r'File \\"[^"]*site-packages/', r'File \\"', written)
            (self._folder / f"{case}.json").write_text(written + "\n")
        return body

    def start(self, rid: str, case: str) -> "asyncio.Task[object]":
        """Begin a generation of 150 tokens under this id."""
        return asyncio.create_task(self.call("/generate", generation(LONG, rid=rid), case))


def generation(sampling: Mapping[str, object], **more: object) -> dict[str, object]:
    """The body of a request for tokens with their log-probabilities."""
    return {"input_ids": PROMPT, "sampling_params": sampling, "return_logprob": True, **more}


async def simple(r: Recorder, model: str) -> None:
    """Answers that come at once."""
    short = {"max_new_tokens": 3, "temperature": 1.0}
    await r.call("/health", "", "health", "GET")
    await r.call("/model_info", "", "model_info", "GET")
    first = await r.call("/generate", generation(short, rid="r-1"), "generate_length")
    assert isinstance(first, dict)
    everything = list(range(1024))
    await r.call("/generate", generation(short | {"stop_token_ids": everything}, rid="r-2"), "generate_stop_token")
    await r.call("/generate", generation(short, rid="r-3", stream=True), "generate_stream")
    await r.call("/generate", generation(short, input_ids=[]), "error_empty_prompt")
    await r.call("/generate", generation({"max_new_tokens": 10**6}), "error_too_long")
    await r.call("/generate", generation({"no_such_parameter": 1}), "error_sampling_parameter")
    await r.call("/generate", "{", "error_json")
    await r.call("/update_weights_from_disk", {"model_path": model, "weight_version": "v1"}, "update_weights")
    await r.call(
        "/update_weights_from_disk", {"model_path": model + "-absent", "weight_version": "v2"}, "update_weights_failed"
    )
    await r.call("/abort_request", {"rid": "nobody"}, "abort_request")
    await r.call("/flush_cache", "", "flush_cache")


async def interrupted(r: Recorder, model: str) -> None:
    """Generations that are aborted, or whose weights change half way."""
    task = r.start("a-1", "generate_aborted")
    await asyncio.sleep(0.3)
    await r.call("/abort_request", {"rid": "a-1"})
    await task
    task = r.start("p-1", "generate_paused_abort")
    await asyncio.sleep(0.3)
    await r.call("/pause_generation", {"mode": "abort"}, "pause_abort")
    await task
    await r.call("/continue_generation", {}, "continue")
    task = r.start("p-2", "generate_two_versions")
    await asyncio.sleep(0.3)
    await r.call("/pause_generation", {"mode": "in_place"}, "pause_in_place")
    waiting = r.start("q-1", "generate_aborted_while_waiting")
    await asyncio.sleep(0.3)
    await r.call("/abort_request", {"rid": "q-1"})
    update = {"model_path": model, "weight_version": "v3", "flush_cache": False}
    await r.call("/update_weights_from_disk", update, "update_weights_while_paused")
    await r.call("/continue_generation", {})
    await task
    await waiting


async def main(url: str, model: str) -> None:
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)) as session:
        recorder = Recorder(session, url, str(Path(model).parent))
        await simple(recorder, model)
        await interrupted(recorder, model)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
