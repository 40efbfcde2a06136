"""Synchronous training: rollouts, samples, optimizer steps, new weights, again.

Order of a step: declare rollouts and wait for all; rewards, advantages, weights, plan; optimizer steps; save weights;
publish; evaluate where due; metrics line; checkpoint where due. A step without any gradient changes no weights.
Nothing is lost by a death in between: ids, data order and versions follow from the step, so doing it again finds what
is there.
"""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from trainer_svc import folder as folders
from trainer_svc import ids, plots, step, summary, warmup
from trainer_svc.collect import Collector
from trainer_svc.commands import OptimizerSettings
from trainer_svc.config import Config, ConfigError
from trainer_svc.data import Input, take
from trainer_svc.evaluate import evaluate
from trainer_svc.folder import RunFolder
from trainer_svc.gateway import Gateway
from trainer_svc.metrics import Metrics, MetricsFile
from trainer_svc.optimise import optimise
from trainer_svc.plan import CostModel, cost_model
from trainer_svc.progress import Reporter, Tally
from trainer_svc.ranks import Ranks
from trainer_svc.recorder import Recorder
from trainer_svc.state import DriverState
from trainer_svc.step import Finished, Kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """Rollout inputs."""

    train: list[Input]
    heldout: list[Input]


class Loop:
    """One run from its first to its last step."""

    def __init__(
        self,
        config: Config,
        folder: RunFolder,
        inputs: Inputs,
        *,
        gateway: Gateway,
        ranks: Ranks,
        collector: Collector,
        reporter: Reporter,
        cache: Path,
        context_length: int,
        recorder: Recorder,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._folder = folder
        self._inputs = inputs
        self._gateway = gateway
        self._ranks = ranks
        self._collector = collector
        self._reporter = reporter
        self._cache = cache
        self._context_length = context_length
        self._recorder = recorder
        self._clock = clock
        self._began = clock()
        self._cost: CostModel = cost_model(json.loads((config.model.path / "config.json").read_text()))
        self._metrics = MetricsFile(folder.metrics)
        self._state = DriverState()
        self._maximum_length = 0

    async def run(self) -> summary.Summary:
        """Train to the end; what summary.json says. Raises RanksError, WhippletreeError, DataError, ConfigError."""
        accuracy = await self._begin()
        for number in range(self._state.step + 1, self._config.rl.steps + 1):
            with self._recorder.doing("step", {"whippletree.run": self._folder.run_id, "whippletree.step": number}):
                accuracy = await self._step(number)
        self._plot()
        result = summary.summarise(
            self._state,
            run_id=self._folder.run_id,
            seed=self._config.run.seed,
            accuracy_after=accuracy,
            weight_version=self._version(),
        )
        summary.write(result, self._folder.summary)
        self._reporter.table(f"run {self._folder.run_id}", self._metrics.lines())
        return result

    async def _begin(self) -> float | None:
        """Weights to start from, or the newest checkpoint; the held-out accuracy there."""
        start = self._config.model.path
        resume = self._folder.resumed and self._folder.has_checkpoint()
        if self._config.warmup.steps:
            with self._reporter.bar("warm-up", self._config.warmup.steps) as bar:
                start = await warmup.warm_up(
                    self._config, self._ranks, self._cost, self._cache, lambda _, loss: bar.advance(f"loss {loss:.3f}")
                )
        with self._working("the ranks load the model"):
            optimizer = OptimizerSettings(weight_decay=self._config.rl.weight_decay)
            self._maximum_length = (await self._ranks.load(start, optimizer)).maximum_length
        if self._context_length > self._maximum_length:
            raise ConfigError(
                f"model.path: {self._maximum_length} positions, fewer than the {self._context_length} tokens of a call"
                f" that the gateway admits for {self._config.model.name}"
            )
        if resume:
            loaded = await self._ranks.load_checkpoint(self._folder.checkpoints)
            self._state = DriverState.from_bytes(loaded.extra)
            self._began -= self._state.seconds
            self._reporter.line(f"going on after step {self._state.step} of {self._folder.path}")
        lines = self._metrics.cut(self._state.step if resume else -1)
        await self._publish()
        if resume:
            return next(
                (float(str(x)) for line in lines[::-1] if (x := line.get("heldout_accuracy")) is not None), None
            )
        accuracy = await self._evaluate(0)
        self._state = replace(self._state, accuracy_before=accuracy)
        self._metrics.append({"step": 0, "heldout_accuracy": accuracy, "weight_version": self._version()})
        return accuracy

    async def _step(self, number: int) -> float | None:
        """One batch; the held-out accuracy, where it was measured."""
        seconds: dict[str, float] = {}
        with self._timed(seconds, "rollouts"):
            finished = await self._rollouts(number)
        kept = step.keep(finished, self._config.rl)
        metrics = step.figures(finished, kept)
        with self._timed(seconds, "train"):
            applied = await self._optimise(kept, metrics)
        self._advance(number, metrics, applied)
        with self._timed(seconds, "publish"):
            if applied:
                await self._publish()
        accuracy = None
        if self._due(number, self._config.evaluation.every):
            with self._timed(seconds, "evaluate"):
                accuracy = await self._evaluate(number)
        self._state = replace(self._state, seconds=self._clock() - self._began)
        line: dict[str, object] = {"step": number, **metrics.values(), "heldout_accuracy": accuracy}
        line |= {"weight_version": self._version(), "seconds": round(self._state.seconds, 3)}
        line |= {f"seconds_{part}": round(value, 3) for part, value in seconds.items()}
        self._metrics.append(line)
        self._recorder.stepped(number, self._state.version_step, metrics.values(), seconds, accuracy)
        if accuracy is not None:
            self._plot()
        if self._due(number, self._config.checkpoint.every):
            with self._timed(seconds, "checkpoint"):
                await self._save(number)
            self._metrics.amend(seconds_checkpoint=round(seconds["checkpoint"], 3))
        return accuracy

    async def _rollouts(self, number: int) -> list[Finished]:
        """The rollouts of one step, all ended."""
        rl = self._config.rl
        chosen = take(len(self._inputs.train), self._config.run.seed, self._state.position, rl.groups)
        specs = ids.train_specs(
            self._folder.run_id, number, [self._inputs.train[index] for index in chosen], rl.group_size
        )
        with self._reporter.bar(f"step {number}/{rl.steps}: rollouts", len(specs)) as bar:
            return await self._collector.collect(specs, Tally(bar).add)

    async def _optimise(self, kept: list[Kept], metrics: Metrics) -> int:
        """The optimizer steps of one batch; how many there were."""
        return await optimise(
            kept,
            self._config,
            self._ranks,
            metrics,
            cost=self._cost,
            maximum_length=self._maximum_length,
            updates=self._state.updates,
        )

    def _advance(self, number: int, metrics: Metrics, applied: int) -> None:
        """The state after this batch."""
        values, old = metrics.values(), self._state
        self._state = replace(
            old,
            step=number,
            position=old.position + self._config.rl.groups,
            updates=old.updates + applied,
            version_step=number if applied else old.version_step,
            rollouts=old.rollouts + int(values["rollouts"]),
            samples=old.samples + int(values["samples"]),
            trained_tokens=old.trained_tokens + int(values.get("trained_tokens", 0)),
            recorded_tokens=old.recorded_tokens + int(values.get("recorded_tokens", 0)),
            undelivered_calls=old.undelivered_calls + int(values.get("undelivered_calls", 0)),
        )

    async def _publish(self) -> None:
        """Save the ranks' weights under their version and have the engines load them."""
        path = self._folder.weights / self._version()
        about = {"gen_ai.request.model": self._config.model.name, "whippletree.weight_version": self._version()}
        with self._recorder.doing("weights", about):
            await self._ranks.save_weights(path)
            await self._gateway.publish(self._config.model.name, self._version(), path)
        if self._config.checkpoint.weights != "all":
            folders.prune(self._folder.weights, self._config.checkpoint.weights)

    async def _evaluate(self, number: int) -> float | None:
        """Held-out accuracy of what is published now; None where none is asked for."""
        questions = self._inputs.heldout[: self._config.evaluation.questions]
        if not questions:
            return None
        with self._reporter.bar(f"held out after step {number}", len(questions)) as bar:
            return (await evaluate(self._collector, self._folder.run_id, number, questions, Tally(bar).add)).accuracy

    async def _save(self, number: int) -> None:
        """A checkpoint with the driver's own state in it."""
        await self._ranks.save_checkpoint(self._folder.checkpoint(number), self._state.to_bytes())
        folders.prune(self._folder.checkpoints, self._config.checkpoint.keep)

    def _plot(self) -> None:
        """The picture anew."""
        plots.plot_rewards(self._metrics.lines(), f"run {self._folder.run_id}", self._folder.plots / "reward.png")

    def _version(self) -> str:
        return ids.weight_version(self._folder.run_id, self._state.version_step)

    def _due(self, number: int, every: int) -> bool:
        return number == self._config.rl.steps or bool(every and number % every == 0)

    @contextmanager
    def _timed(self, seconds: dict[str, float], part: str) -> Iterator[None]:
        began = self._clock()
        with self._recorder.doing(part):
            yield
        seconds[part] = self._clock() - began

    @contextmanager
    def _working(self, what: str) -> Iterator[None]:
        began = self._clock()
        self._reporter.line(f"{what} …")
        yield
        self._reporter.line(f"{what}: {self._clock() - began:.1f} s")
