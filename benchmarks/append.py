"""Calls recorded inside the gateway's own process, as where bridge and gateway are together: 16 writers ask the
servicer through the generated stub, without a wire. The writers' own work is counted with it.

Run by `record.py`: `python -m benchmarks.append --store FILE --engine URL --calls 20000`; prints one JSON object.
"""

import argparse
import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import uvloop
from whippletree.v1 import (
    inference_pb2,
    inference_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
    rollout_pb2,
    rollout_pb2_grpc,
    run_pb2,
    run_pb2_grpc,
)

from gateway_svc.server import offering
from gateway_svc.settings import GatewaySettings, StoreSettings
from whippletree.local import LocalChannel
from whippletree.telemetry import observing
from whippletree.tokens import pack_ids

PROMPT, VOCABULARY, TURNS, WRITERS = 4096, 150_000, 30, 16


def requests(name: str) -> list[inference_pb2.GenerateRequest]:
    """The calls of one rollout; no prompt is a prefix of what follows."""
    prompt = np.random.default_rng(list(name.encode())).integers(0, VOCABULARY, PROMPT, dtype=np.int32)
    return [
        inference_pb2.GenerateRequest(
            rollout=f"rollouts/{name}",
            attempt=1,
            prompt_token_ids=pack_ids(np.append(prompt, np.arange(turn, dtype=np.int32))),
            request_id=f"{name}-{turn}",
        )
        for turn in range(TURNS)
    ]


async def prepare(channel: Any, engine: str, names: list[str]) -> None:
    """A model, a run, and rollouts whose attempts are under way."""
    models: Any = model_pb2_grpc.ModelServiceStub(channel)
    runs: Any = run_pb2_grpc.RunServiceStub(channel)
    rollouts: Any = rollout_pb2_grpc.RolloutServiceStub(channel)
    model = model_pb2.Model(name="models/bench", context_length=40_960, vocabulary_size=VOCABULARY)
    model.engines.add(address=engine)
    await models.RegisterModel(model_pb2.RegisterModelRequest(model=model))
    await runs.CreateRun(run_pb2.CreateRunRequest(run_id="bench", run=run_pb2.Run(policy="models/bench")))
    for name in names:
        rollout = rollout_pb2.Rollout(run="runs/bench")
        await rollouts.CreateRollout(rollout_pb2.CreateRolloutRequest(rollout_id=name, rollout=rollout))
        await rollouts.StartRollout(rollout_pb2.StartRolloutRequest(name=f"rollouts/{name}"))


async def write(channel: Any, names: Iterator[str]) -> None:
    """One writer, rollout after rollout."""
    inference: Any = inference_pb2_grpc.InferenceServiceStub(channel)
    for name in names:
        for request in requests(name):
            await inference.Generate(request, timeout=600)


async def main(store: Path, engine: str, calls: int) -> dict[str, float]:
    """All of it; the figures."""
    settings = GatewaySettings(store=StoreSettings(path=store), insecure_dev=True)
    names = [f"joint{number}" for number in range(-(-calls // TURNS))]
    async with (
        observing("gateway", settings.metrics, settings.telemetry) as telemetry,
        offering(settings, telemetry) as offer,
    ):
        channel = LocalChannel.to(offer.services)
        await prepare(channel, engine, names)
        waiting, begin, used = iter(names), time.perf_counter(), time.process_time()
        await asyncio.gather(*(write(channel, waiting) for _ in range(WRITERS)))
        seconds, cpu = time.perf_counter() - begin, time.process_time() - used
    count = len(names) * TURNS
    return {
        "append_4k_joint_per_s": round(count / seconds),
        "append_4k_joint_per_cpu_s": round(count / cpu),
        "append_joint_cpu_ms": round(1000 * cpu / count, 3),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure calls recorded without a wire.")
    parser.add_argument("--store", type=Path, required=True, help="file of a new store")
    parser.add_argument("--engine", required=True, help="URL of benchmarks.engine")
    parser.add_argument("--calls", type=int, default=20_000)
    given = parser.parse_args()
    print(json.dumps(uvloop.run(main(given.store, given.engine, given.calls))))
