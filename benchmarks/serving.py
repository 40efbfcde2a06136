"""Serving measured: real Envoy, bridge and gateway with durable settings (synchronous FULL), asked over HTTP.

Run: `make bench-serving` (SCALE=0.1 for a short form; TOGETHER=0 for bridge and gateway as two processes, by default
they are one; KEYS=0 without identity, by default every call carries its attempt's token, which Envoy and the bridge
check). Prints one line per part, then one JSON object.

What the names mean; "per CPU-second" counts the processor time of Envoy, bridge and gateway together, and neither that
of the engine (`benchmarks/engine.py`, which answers at once with 128 tokens of real text) nor that of the clients:
- chat_2kb_per_cpu_s: calls of conversations that grow from 1 to 3 KB in five calls, each its own rollout; 16 clients.
- chat_2kb_unshared_per_cpu_s: the same with prompts of 2 KB that have nothing in common.
- chat_200kb_per_cpu_s: calls of conversations that grow from 180 to 220 KB in 20 calls; 8 clients. What a conversation
  was before (its first 180 KB) is asked once before the clock starts.
- chat_200kb_unshared_per_cpu_s: conversations of 200 KB that nothing was ever asked of.
- added_p50_ms: p50 with one client and 2 KB, less p50 of the engine asked directly, by turns in the same run.
- p99_over_p50: at 64 clients, 2 KB.
- floor_per_cpu_s: calls of 2 KB to a servicer behind Envoy that does nothing (`benchmarks/bare.py`): the most that any
  servicer in Python could reach here and now. Envoy checks the token there too, the servicer does not.
- reader_slowdown: chat rate with a program that reads all tokens of long rollouts over and over, over the rate without.
- inflight_2000: the longest time from the last start to the last end of 2,000 calls of 6 s, over 6 s; they start within
  5 s, so that all are under way at once.

Agent Lightning v1.0's gateway on two shared cores, not durable: 210 to 290 calls per CPU-second at 2 KB, 55 to 65 at
200 KB; p99 over p50 5.7 at 16 clients; one reader of events takes chat clients from 324/s to 96/s; 300 calls of 6 s
take 34.6 s.
"""

import argparse
import asyncio
import itertools
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import uvloop
from whippletree.v1 import rollout_pb2, rollout_pb2_grpc, run_pb2, run_pb2_grpc

from benchmarks import load, words
from benchmarks.load import Load, Request, Requests
from benchmarks.machine import cpu_seconds, described, memory_mb, percentile, program
from benchmarks.record import by_callers
from tests.fakes.chat_model import END
from whippletree.channel import connect
from whippletree.cli import identity, plan
from whippletree.cli.envoy import render, templates, write
from whippletree.cli.health import GrpcHealth
from whippletree.cli.parts import Part
from whippletree.cli.supervisor import Supervisor
from whippletree.cli.system import Options, choose, prepare_keys
from whippletree.client import Model, open_client

SMALL = words.Shape(first=1_000, grows=110, turns=5)
SINGLE = words.Shape(first=2_000, grows=0, turns=1)
LARGE = words.Shape(first=170_000, grows=1_600, turns=20)
LARGE_SINGLE = words.Shape(first=188_000, grows=0, turns=1)
RESPONSE = 128
DELAY = 6.0
"""Seconds of a slow generation."""
SPREAD = 5.0
"""Seconds over which slow generations start."""
PATH = b"/proxy/rollout/%s/attempt/1/mode/train/openai/v1/chat/completions"
SERVING = ("envoy", "bridge", "gateway", "together")
PEER = {
    "chat_2kb_per_cpu_s": [210, 290],
    "chat_200kb_per_cpu_s": [55, 65],
    "p99_over_p50_16": 5.7,
    "reader_slowdown": 0.3,
    "inflight_300_s": 34.6,
}


@dataclass(kw_only=True)
class Bench:
    """A running system under measurement."""

    supervisor: Supervisor
    layout: plan.Layout
    engine: str
    """host:port of the engine that answers at once."""
    channel: Any
    text: str
    reply: str
    scale: float
    figures: dict[str, Any] = field(default_factory=dict)
    started: int = 0
    """Rollouts so far."""

    @property
    def envoy(self) -> str:
        """host:port."""
        return f"{plan.HOST}:{self.layout.ports.envoy}"

    @property
    def gateway(self) -> str:
        """host:port."""
        return f"{plan.HOST}:{self.layout.ports.gateway}"

    def tell(self, **figures: Any) -> None:
        """Note figures, and print them."""
        self.figures |= figures
        print(json.dumps(figures), flush=True)

    def seconds(self, full: float) -> float:
        """A time of the full form at this scale."""
        return max(1.0, full * self.scale)

    def cpu(self) -> dict[str, float]:
        """Processor time of each serving process so far."""
        pids = self.supervisor.pids
        return {name: cpu_seconds(pids[name]) for name in SERVING if name in pids}

    async def agents(self, shape: words.Shape, count: int, run: str = "bench") -> list[Requests]:
        """So many conversations, each with a rollout whose attempt is under way."""
        names = [f"s{self.started + number}" for number in range(count)]
        self.started += count
        rollouts: Any = rollout_pb2_grpc.RolloutServiceStub(self.channel)
        for begin in range(0, count, 500):
            batch = rollout_pb2.BatchCreateRolloutsRequest(request_id=f"batch-{names[begin]}")
            for name in names[begin : begin + 500]:
                batch.requests.add(rollout_id=name, rollout=rollout_pb2.Rollout(run=f"runs/{run}"))
            await rollouts.BatchCreateRollouts(batch)
        tokens: dict[str, bytes] = {}

        async def start(name: str) -> None:
            answer = await rollouts.StartRollout(rollout_pb2.StartRolloutRequest(name=f"rollouts/{name}"))
            tokens[name] = answer.token.encode()

        await by_callers(start, names, 32)
        model = "slow" if run == "slow" else "policy"
        return [self.calls(name, tokens[name], shape, model) for name in names]

    def calls(self, name: str, token: bytes, shape: words.Shape, model: str) -> Requests:
        """The calls of one agent."""
        path = PATH % name.encode()
        conversation = words.Conversation(shape, model, self.reply, self.text, random.Random(name))
        return (Request(path, body, token) for body in conversation.bodies())

    async def chat(self, agents: Sequence[Requests], clients: int, seconds: float) -> "Chat":
        """Let agents call; what it took."""
        waiting = iter(agents)
        made = Load(address=self.envoy, begin=lambda: next(waiting, None), clients=clients)
        return await taken(made, seconds, self.cpu)


@dataclass(frozen=True, slots=True, kw_only=True)
class Chat:
    """What calls took."""

    latencies: list[float]
    """Seconds of each."""
    seconds: float
    used: dict[str, float]
    """Processor time by process."""

    @property
    def per_cpu_s(self) -> float:
        """Calls per second of processor time of all serving processes."""
        return round(len(self.latencies) / sum(self.used.values()), 1)

    @property
    def per_s(self) -> float:
        """Calls per second."""
        return round(len(self.latencies) / self.seconds, 1)

    def milliseconds(self) -> dict[str, float]:
        """Processor time of one call by process."""
        return {name: round(1000 * used / len(self.latencies), 3) for name, used in self.used.items()}


async def taken(made: Load, seconds: float, cpu: Callable[[], dict[str, float]]) -> Chat:
    """Run a load; what it took."""
    before = cpu()
    await made.run(seconds)
    used = {name: value - before[name] for name, value in cpu().items()}
    return Chat(latencies=made.latencies, seconds=made.seconds, used=used)


async def small(bench: Bench) -> None:
    """chat_2kb_per_cpu_s and its unshared form."""
    for name, shape, each in (("chat_2kb", SMALL, SMALL.turns), ("chat_2kb_unshared", SINGLE, 1)):
        seconds = bench.seconds(10)
        await bench.chat(await bench.agents(shape, 100), 16, 2.0)
        found = await bench.chat(await bench.agents(shape, int(1_500 * seconds / each)), 16, seconds)
        report(bench, name, found)


async def large(bench: Bench) -> None:
    """chat_200kb_per_cpu_s and its unshared form."""
    seconds = bench.seconds(15)
    agents = await bench.agents(LARGE, max(8, int(400 * seconds / LARGE.turns)))
    firsts: list[Requests] = [iter([next(agent)]) for agent in agents]
    await bench.chat(firsts, 4, 600.0)
    report(bench, "chat_200kb", await bench.chat(agents, 8, seconds))
    cold = await bench.agents(LARGE_SINGLE, int(60 * seconds))
    report(bench, "chat_200kb_unshared", await bench.chat(cold, 8, seconds / 2))


def report(bench: Bench, name: str, found: Chat) -> None:
    """The figures of one load."""
    bench.tell(
        **{
            f"{name}_per_cpu_s": found.per_cpu_s,
            f"{name}_per_s": found.per_s,
            f"{name}_cpu_ms": found.milliseconds(),
            f"{name}_calls": len(found.latencies),
            f"{name}_p50_ms": round(1000 * percentile(found.latencies, 0.5), 2),
        }
    )


async def floor(bench: Bench) -> None:
    """floor_per_cpu_s: an Envoy of its own in front of a servicer that does nothing."""
    layout = choose(
        Options(
            model_dir=bench.layout.model_dir,
            run_dir=bench.layout.run_dir / "bare",
            port=0,
            together=True,
            insecure_dev=bench.layout.insecure_dev,
        )
    )
    at, http = (f"{plan.HOST}:{port}" for port in (layout.ports.bridge, layout.ports.bridge_http))
    bare = Part(
        name="bare",
        command=(sys.executable, "-m", "benchmarks.bare", "--listen", at, "--http", http),
        ready=GrpcHealth(address=at),
        address=at,
        port_setting="",
    )
    call = next((await bench.agents(SINGLE, 1))[0])
    async with Supervisor(layout.run_dir, lambda name, what: None) as supervisor:
        config = plan.envoy_config(layout)
        values = replace(plan.envoy_values(layout), gateway=bench.gateway)  # which has the keys
        write(render(templates(), values, config), config)
        await supervisor.start([bare, plan.envoy(layout)])
        address = f"{plan.HOST}:{layout.ports.envoy}"
        made = Load(address=address, begin=lambda: itertools.repeat(call), clients=16)
        await made.run(1.0)
        made.latencies.clear()
        pids = supervisor.pids
        report(bench, "floor", await taken(made, bench.seconds(5), lambda: {n: cpu_seconds(pids[n]) for n in pids}))


async def adding(bench: Bench) -> None:
    """added_p50_ms: one client by turns through the product and straight to the engine."""
    direct = await load.connect(bench.engine)
    through = await load.connect(bench.envoy)
    count = max(100, int(1_000 * bench.scale))
    bare: list[float] = []
    whole: list[float] = []
    for agent in await bench.agents(SMALL, count // SMALL.turns):
        for request in agent:
            asked = Request(b"/generate", request.body)
            for connection, post, times in ((direct, asked, bare), (through, request, whole)):
                begin = time.perf_counter()
                await connection.post(post)
                times.append(time.perf_counter() - begin)
    direct.transport.close()
    through.transport.close()
    added = statistics.median(whole) - statistics.median(bare)
    bench.tell(added_p50_ms=round(1000 * added, 2), bare_p50_ms=round(1000 * statistics.median(bare), 2))


async def spreading(bench: Bench) -> None:
    """p99_over_p50 at 64 clients."""
    seconds = bench.seconds(10)
    agents = await bench.agents(SMALL, int(1_500 * seconds / SMALL.turns))
    found = await bench.chat(agents, 64, seconds)
    p50, p99 = percentile(found.latencies, 0.5), percentile(found.latencies, 0.99)
    bench.tell(p99_over_p50=round(p99 / p50, 2), p50_ms_64=round(1000 * p50, 1), p99_ms_64=round(1000 * p99, 1))
    bench.tell(per_s_64=found.per_s, per_cpu_s_64=found.per_cpu_s)


async def reading(bench: Bench) -> None:
    """reader_slowdown: the chat rate by turns without and with the reader."""
    shape = words.Shape(first=30_000, grows=1_600, turns=30)
    long = [f"s{bench.started + number}" for number in range(4)]
    await bench.chat(await bench.agents(shape, 4), 4, 600.0)
    seconds = bench.seconds(6)
    rates: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(3):
        rates[False].append(await chat_rate(bench, seconds))
        async with program("benchmarks.reader", bench.envoy, str(bench.layout.run_dir), *long) as (_, process):
            drained = asyncio.create_task(drain(process))
            rates[True].append(await chat_rate(bench, seconds))
        read = await drained
    without, beside = statistics.median(rates[False]), statistics.median(rates[True])
    bench.tell(reader_slowdown=round(beside / without, 3), reader_rates=rates, reader_events=read[0])


async def chat_rate(bench: Bench, seconds: float) -> float:
    """Calls per second of 16 clients."""
    agents = await bench.agents(SMALL, int(1_500 * seconds / SMALL.turns))
    return (await bench.chat(agents, 16, seconds)).per_s


async def drain(process: asyncio.subprocess.Process) -> list[int]:
    """Read what the reader prints until its end; its last line: events and tokens."""
    assert process.stdout is not None
    last = b"0 0"
    async for line in process.stdout:
        last = line
    return [int(number) for number in last.split()]


async def flying(bench: Bench) -> None:
    """inflight_2000: slow calls, all under way at once."""
    count = max(50, int(2_000 * min(1.0, bench.scale)))
    agents = await bench.agents(SINGLE, count, run="slow")
    connections = [await load.connect(bench.envoy) for _ in agents]
    begin, spread = time.perf_counter(), SPREAD * count / 2_000
    starts: list[float] = []
    ends: list[float] = []

    async def call(number: int, request: Request) -> None:
        await asyncio.sleep(begin + spread * number / count - time.perf_counter())
        starts.append(time.perf_counter())
        await connections[number].post(request)
        ends.append(time.perf_counter())

    async with asyncio.TaskGroup() as tasks:
        for number, agent in enumerate(agents):
            tasks.create_task(call(number, next(agent)))
    for connection in connections:
        connection.transport.close()
    assert len(ends) == count
    assert max(starts) < min(ends), "not all were under way at once"
    bench.tell(
        inflight_2000=round((max(ends) - max(starts)) / DELAY, 3),
        inflight_calls=count,
        inflight_starts_s=round(max(starts) - min(starts), 2),
    )


PARTS: dict[str, Callable[[Bench], Awaitable[None]]] = {
    "floor": floor,
    "small": small,
    "large": large,
    "added": adding,
    "spread": spreading,
    "reader": reading,
    "inflight": flying,
}


@asynccontextmanager
async def serving(folder: Path, scale: float, together: bool, keys: bool) -> AsyncIterator[Bench]:
    """The system, its model and its runs; two engines, one of them slow."""
    text = words.corpus()
    made = words.tokenizer(text)
    model_dir = words.write_model(folder / "model", made)
    said = made.encode(text[20_000:24_000]).ids[: RESPONSE - 1]
    (folder / "said.json").write_text(json.dumps([*said, made.token_to_id(END)]))
    arguments = ("--ids", str(folder / "said.json"))
    async with (
        program("benchmarks.engine", *arguments) as (engine, _),
        program("benchmarks.engine", *arguments, "--delay", str(DELAY)) as (slow, _),
        Supervisor(folder, lambda name, what: None) as supervisor,
    ):
        layout = choose(Options(model_dir=model_dir, run_dir=folder, port=0, together=together, insecure_dev=not keys))
        prepare_keys(layout)
        await supervisor.start([plan.gateway(layout)])
        gateway = f"{plan.HOST}:{layout.ports.gateway}"
        config = plan.envoy_config(layout)
        write(render(templates(), plan.envoy_values(layout), config), config)
        await supervisor.start([*plan.bridges(layout), plan.envoy(layout)])
        access = identity.access(folder)
        async with open_client(gateway, access) as client, connect(gateway, access) as channel:
            runs: Any = run_pb2_grpc.RunServiceStub(channel)
            for run, model, address in (("bench", "policy", engine), ("slow", "slow", slow)):
                await client.register_model(
                    Model(
                        model_id=model,
                        engine=address,
                        tokenizer_path=str(model_dir),
                        context_length=words.CONTEXT,
                        vocabulary_size=words.VOCABULARY,
                    )
                )
                new = run_pb2.Run(policy=f"models/{model}")
                await runs.CreateRun(run_pb2.CreateRunRequest(run_id=run, run=new))
            reply = made.decode(said, skip_special_tokens=False)
            yield Bench(
                supervisor=supervisor,
                layout=layout,
                engine=engine.removeprefix("http://"),
                channel=channel,
                text=text,
                reply=reply,
                scale=scale,
            )


async def main(scale: float, parts: Sequence[str], folder: Path, together: bool, keys: bool) -> dict[str, Any]:
    """Run the parts on one system; all figures."""
    async with serving(folder, scale, together, keys) as bench:
        for part in parts:
            await PARTS[part](bench)
        bench.tell(rss_mb={name: memory_mb(bench.supervisor.pids[name]) for name in bench.cpu()})
    return bench.figures


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure serving.")
    parser.add_argument("--scale", type=float, default=1.0, help="share of the full times and counts")
    parser.add_argument("--parts", default=",".join(PARTS), help="which parts, by comma")
    parser.add_argument("--together", type=int, choices=(0, 1), default=1, help="bridge and gateway in one process")
    parser.add_argument("--keys", type=int, choices=(0, 1), default=1, help="identity is on")
    parser.add_argument("--folder", default=None, help="where the record is made; default a temporary folder")
    given = parser.parse_args()
    together, keys = bool(given.together), bool(given.keys)
    how = {
        "scale": given.scale,
        "together": together,
        "keys": keys,
        "synchronous": "FULL",
        "response_tokens": RESPONSE,
        **described(),
    }
    with tempfile.TemporaryDirectory(dir=given.folder) as temporary:
        folder = Path(temporary).resolve()
        measured = uvloop.run(main(given.scale, given.parts.split(","), folder, together, keys))
    print(json.dumps({**measured, "peer": PEER, "how": how}))
