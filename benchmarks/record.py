"""The record measured: a real gateway process, asked over gRPC, with durable settings (synchronous FULL).

Run: `make bench-record` (SCALE=0.01 for a short form). Prints one line per part, then one JSON object.

What the names mean:
- create_512_per_s: rollouts created in batches of 512 (1 KB of input, 1.2 KB of template each), 2 callers.
- append_4k_per_s: calls with a prompt of 4,096 and a response of 128 tokens recorded by `Generate`, the only public way
  to record a call, by 16 writers; no call shares its prompt, so all tokens are stored. The engine is
  `benchmarks/engine.py`; its processor time per call is beside it (append_engine_cpu_ms), as is the gateway's.
- append_4k_joint_per_s: the same calls inside the gateway's process, as where it is together with the bridge: no wire,
  no second process (`benchmarks/append.py`). append_4k_per_cpu_s is per second of the gateway's processor time,
  append_4k_joint_per_cpu_s of the whole process's, writers included.
- list_ratio_100k: p50 of one page of 100 rollouts at 100,000 rollouts over the same at 100.
- rss_mb: resident memory of the gateway after 100,000 rollouts and 20,000 calls of 4k tokens.
- stored_over_distinct: bytes of the database file for rollouts of 30 calls that grow to 16k tokens, over distinct
  tokens x 8 bytes (id and log-probability). stored_over_exact divides by 4 bytes for a prompt token instead.
- read_tokens_per_s: prompt and response tokens of whole rollouts (30 calls of 8k tokens), by the typed client.
- watch_*: 1,000 watchers, each on its own run, while rollouts are created in all runs.

Agent Lightning v1.0's gateway on two shared cores, not durable: 13,983 creates/s in batches of 512, 340 appends/s of 4k
calls, list p50 1.5 ms at 100 and 34 ms at 100,000 (ratio 23), 663 MB with 100,000 rollouts and 5,431 MB after 20,000
calls of 4k tokens, 3,900 to 4,700 events read per second, each with its tokens.
"""

import argparse
import asyncio
import itertools
import json
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf.struct_pb2 import Struct
from whippletree.v1 import (
    event_pb2_grpc,
    inference_pb2,
    inference_pb2_grpc,
    model_pb2,
    model_pb2_grpc,
    rollout_pb2,
    rollout_pb2_grpc,
    run_pb2,
    run_pb2_grpc,
)

from benchmarks.machine import cpu_seconds, described, memory_mb, percentile, program, used_bytes
from whippletree.channel import connect
from whippletree.client import open_client
from whippletree.tokens import pack_ids, unpack_ids

BATCH = 512
PROMPT, RESPONSE = 4096, 128
VOCABULARY = 150_000
PEER = {
    "create_512_per_s": 13_983,
    "append_4k_per_s": 340,
    "list_ratio_100k": 22.7,
    "rss_mb": 5_431,
    "events_per_s": 4_300,
}


@dataclass(kw_only=True)
class Bench:
    """One gateway under measurement."""

    channel: Any
    address: str
    pid: int
    engine: str
    engine_pid: int
    database: Path
    scale: float
    figures: dict[str, Any] = field(default_factory=dict)
    ids: Any = field(default_factory=lambda: (f"r{number}" for number in itertools.count()))

    def __post_init__(self) -> None:
        self.rollouts: Any = rollout_pb2_grpc.RolloutServiceStub(self.channel)
        self.inference: Any = inference_pb2_grpc.InferenceServiceStub(self.channel)
        self.events: Any = event_pb2_grpc.EventServiceStub(self.channel)

    def scaled(self, count: int, least: int) -> int:
        """A count of the full form at this scale."""
        return max(least, round(count * self.scale))

    def tell(self, **figures: Any) -> None:
        """Note figures, and print them."""
        self.figures |= figures
        print(json.dumps(figures), flush=True)

    async def create(self, count: int, run: str = "bench", callers: int = 2) -> float:
        """Create rollouts in batches; rollouts per second. Messages are made before the clock starts."""
        batches = [
            batch_of([next(self.ids) for _ in range(min(BATCH, count - begin))], run)
            for begin in range(0, count, BATCH)
        ]
        return count / await by_callers(self.rollouts.BatchCreateRollouts, batches, callers)

    async def started(self, count: int) -> list[str]:
        """New rollouts with an attempt under way."""
        names = [next(self.ids) for _ in range(count)]
        await self.rollouts.BatchCreateRollouts(batch_of(names, "bench"))
        begins = [rollout_pb2.StartRolloutRequest(name=f"rollouts/{name}") for name in names]
        await by_callers(self.rollouts.StartRollout, begins, 16)
        return names

    async def dialogue(self, rollout: str, calls: int, grows: int, first: int = 0) -> int:
        """Calls that each continue the one before by `grows` new prompt tokens; tokens that are distinct."""
        draw = random.Random(rollout)
        prompt = [draw.randrange(VOCABULARY) for _ in range(first or grows)]
        for _ in range(calls):
            answer = await self.generate(rollout, prompt)
            prompt += [*unpack_ids(answer.response_token_ids).tolist(), *random_tokens(draw, grows)]
        return len(prompt) - grows

    async def generate(self, rollout: str, prompt: Sequence[int]) -> inference_pb2.GenerateResponse:
        """One call."""
        request = inference_pb2.GenerateRequest(
            rollout=f"rollouts/{rollout}",
            attempt=1,
            prompt_token_ids=pack_ids(prompt),
            request_id=f"{rollout}-{len(prompt)}",
        )
        answer: inference_pb2.GenerateResponse = await self.inference.Generate(request)
        return answer


def random_tokens(draw: random.Random, count: int) -> list[int]:
    """Token ids."""
    return [draw.randrange(VOCABULARY) for _ in range(count)]


def batch_of(names: Sequence[str], run: str) -> rollout_pb2.BatchCreateRolloutsRequest:
    """A batch whose rollouts have the size of those of a coding agent."""
    content = Struct()
    content.update({"instance_id": "repo__1", "problem_statement": "Fix the bug. " * 60, "tests": ["test_a"] * 10})
    runner = rollout_pb2.Runner(kubernetes_job=rollout_pb2.KubernetesJob(template="kind: Job\n" * 120))
    rollout = rollout_pb2.Rollout(run=f"runs/{run}", group_id="g", input=content, runner=runner)
    made = rollout_pb2.BatchCreateRolloutsRequest(request_id=f"batch-{names[0]}")
    for name in names:
        made.requests.add(rollout_id=name, rollout=rollout)
    return made


async def by_callers(method: Callable[[Any], Awaitable[Any]], requests: Sequence[Any], callers: int) -> float:
    """Send all, `callers` at a time; seconds."""
    left = iter(requests)

    async def caller() -> None:
        for request in left:
            await method(request)

    begin = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(callers)))
    return time.perf_counter() - begin


async def list_p50(bench: Bench) -> float:
    """Milliseconds of one page of 100 queued rollouts."""
    request = rollout_pb2.ListRolloutsRequest(
        run="runs/bench", states=[rollout_pb2.ROLLOUT_STATE_QUEUED], page_size=100
    )
    times = []
    for _ in range(bench.scaled(300, 30)):
        begin = time.perf_counter()
        await bench.rollouts.ListRollouts(request)
        times.append(time.perf_counter() - begin)
    return 1000 * percentile(times, 0.5)


async def creating_and_listing(bench: Bench) -> None:
    """create_512_per_s, list_ratio_100k."""
    count = bench.scaled(100_000, 2_000)
    await bench.create(100)
    few = await list_p50(bench)
    used = cpu_seconds(bench.pid)
    per_second = await bench.create(count - 100)
    bench.tell(create_per_cpu_s=round((count - 100) / (cpu_seconds(bench.pid) - used)))
    bench.tell(create_512_per_s=round(per_second), rollouts=count, rss_rollouts_mb=memory_mb(bench.pid))
    many = await list_p50(bench)
    bench.tell(list_ratio_100k=round(many / few, 2), list_p50_ms_100=round(few, 2), list_p50_ms_100k=round(many, 2))


async def appending(bench: Bench) -> None:
    """append_4k_per_s and rss_mb: 16 writers, 30 calls of 4k tokens in each rollout that share nothing."""
    calls, turns = bench.scaled(20_000, 320), 30
    names = await bench.started(-(-calls // turns))
    left, done = iter(names), 0

    async def writer() -> None:
        nonlocal done
        for name in left:
            draw = random.Random(name)
            prompt = random_tokens(draw, PROMPT)
            for turn in range(turns):
                await bench.generate(name, [*prompt, *range(turn)])
                done += 1

    used, engine_used, begin = cpu_seconds(bench.pid), cpu_seconds(bench.engine_pid), time.perf_counter()
    await asyncio.gather(*(writer() for _ in range(16)))
    seconds = time.perf_counter() - begin
    bench.tell(
        append_4k_per_s=round(done / seconds),
        append_calls=done,
        append_4k_per_cpu_s=round(done / (cpu_seconds(bench.pid) - used)),
        append_gateway_cpu_ms=round(1000 * (cpu_seconds(bench.pid) - used) / done, 3),
        append_engine_cpu_ms=round(1000 * (cpu_seconds(bench.engine_pid) - engine_used) / done, 3),
        rss_mb=memory_mb(bench.pid),
        rss_peak_mb=memory_mb(bench.pid, "VmHWM"),
    )


async def appending_joint(bench: Bench) -> None:
    """append_4k_joint_per_s, in a process and on a store of its own."""
    arguments = ("--store", str(bench.database.with_name("joint.db")), "--engine", bench.engine)
    calls = ("--calls", str(bench.scaled(20_000, 320)))
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.append", *arguments, *calls, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    bench.tell(**json.loads(output.splitlines()[-1]))


async def storing(bench: Bench) -> None:
    """stored_over_distinct: 30 calls growing to 16k tokens. The file is looked at after all has been written to it."""
    count, calls, whole = bench.scaled(100, 8), 30, 16_384
    grows = whole // calls - RESPONSE
    names = await bench.started(count)
    before = await size(bench)
    distinct = sum(await asyncio.gather(*(bench.dialogue(name, calls, grows) for name in names)))
    grown, responses = await size(bench) - before, count * calls * RESPONSE
    bench.tell(
        stored_over_distinct=round(grown / (8 * distinct), 3),
        stored_over_exact=round(grown / (4 * distinct + 4 * responses), 3),
        stored_bytes_per_call=round(grown / (count * calls)),
    )


async def size(bench: Bench) -> int:
    """Bytes of the database in use, its log included."""
    return await asyncio.to_thread(used_bytes, bench.database)


async def reading(bench: Bench) -> None:
    """read_tokens_per_s: whole rollouts with all their tokens through the typed client, one after another."""
    count, calls = bench.scaled(16, 2), 30
    names = await bench.started(count)
    await asyncio.gather(
        *(bench.dialogue(name, calls, 16, first=8_192 - calls * (RESPONSE + 16) // 2) for name in names)
    )
    tokens = events = 0
    begin = time.perf_counter()
    async with open_client(bench.address) as client:
        for name in names:
            async for event in client.events(name, tokens=True):
                assert event.call is not None
                events += 1
                tokens += len(event.call.prompt_token_ids) + len(event.call.response_token_ids)
    seconds = time.perf_counter() - begin
    bench.tell(read_tokens_per_s=round(tokens / seconds), read_events_per_s=round(events / seconds))


async def watching(bench: Bench) -> None:
    """1,000 watchers while rollouts are created: processor time and memory of the gateway."""
    watchers, churn = bench.scaled(1_000, 50), bench.scaled(100_000, 2_000)
    runs: Any = run_pb2_grpc.RunServiceStub(bench.channel)
    names = [f"w{number}" for number in range(watchers)]
    await by_callers(runs.CreateRun, [run_request(name) for name in names], 16)
    seen, expected, all_seen = 0, watchers * max(1, churn // watchers), asyncio.Event()

    async def watch(name: str) -> None:
        nonlocal seen
        async for message in bench.rollouts.WatchRollouts(rollout_pb2.WatchRolloutsRequest(run=f"runs/{name}")):
            seen += message.WhichOneof("record") == "rollout"
            if seen >= expected:
                all_seen.set()

    rest, used, begin = memory_mb(bench.pid), cpu_seconds(bench.pid), time.perf_counter()
    tasks = [asyncio.create_task(watch(name)) for name in names]
    await asyncio.sleep(1)
    memories = [memory_mb(bench.pid)]
    for part in range(4):
        for name in names[part::4]:
            await bench.create(max(1, churn // watchers), run=name, callers=1)
        memories.append(memory_mb(bench.pid))
    await all_seen.wait()
    bench.tell(
        watchers=watchers,
        watch_changes_sent=seen,
        watch_cpu_us_per_change=round(1e6 * (cpu_seconds(bench.pid) - used) / seen, 1),
        watch_cpu_s=round(cpu_seconds(bench.pid) - used, 1),
        watch_seconds=round(time.perf_counter() - begin, 1),
        watch_memory_before_mb=rest,
        watch_memory_mb=memories,
    )
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def run_request(name: str) -> run_pb2.CreateRunRequest:
    """A run of the model."""
    return run_pb2.CreateRunRequest(run_id=name, run=run_pb2.Run(policy="models/bench"))


PARTS: dict[str, Callable[[Bench], Awaitable[None]]] = {
    "create": creating_and_listing,
    "append": appending,
    "joint": appending_joint,
    "store": storing,
    "read": reading,
    "watch": watching,
}


async def main(scale: float, parts: Sequence[str], folder: Path) -> dict[str, Any]:
    """Run the parts on one gateway; all figures."""
    database = folder / "record.db"
    async with (
        program("benchmarks.engine", "--tokens", str(RESPONSE)) as (engine, engine_process),
        program("gateway_svc", "--store.path", str(database), "--log_level", "WARNING", "--insecure_dev", "true") as (
            address,
            process,
        ),
        connect(address) as channel,
    ):
        bench = Bench(
            channel=channel,
            address=address,
            pid=process.pid,
            engine=engine,
            engine_pid=engine_process.pid,
            database=database,
            scale=scale,
        )
        bench.tell(rss_start_mb=memory_mb(process.pid))
        model = model_pb2.Model(name="models/bench", context_length=40_960, vocabulary_size=VOCABULARY)
        model.engines.add(address=engine)
        models: Any = model_pb2_grpc.ModelServiceStub(channel)
        await models.RegisterModel(model_pb2.RegisterModelRequest(model=model))
        runs: Any = run_pb2_grpc.RunServiceStub(channel)
        await runs.CreateRun(run_request("bench"))
        for part in parts:
            await PARTS[part](bench)
    return bench.figures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure the record.")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full counts")
    parser.add_argument("--parts", default=",".join(PARTS), help="which parts, by comma")
    parser.add_argument("--folder", default=None, help="where the stores are made; default a temporary folder")
    given = parser.parse_args()
    how = {"scale": given.scale, "synchronous": "FULL", "transport": "gRPC over loopback", **described()}
    with tempfile.TemporaryDirectory(dir=given.folder) as temporary:
        measured = asyncio.run(main(given.scale, given.parts.split(","), Path(temporary)))
    print(json.dumps({**measured, "peer": PEER, "how": how}))
