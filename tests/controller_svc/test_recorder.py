"""A real controller, scraped as Prometheus does it."""

from pathlib import Path

from tests.fakes.collector import collector
from tests.fakes.controller import FAILED, SUCCEEDED, controller_process, rollout_in, shell
from tests.fakes.gateway import running_gateway
from tests.fakes.scrape import listener, scrape, scrape_until


async def test_attempts_are_counted_by_how_they_end(tmp_path: Path) -> None:
    metrics = listener()
    arguments = ("--metrics.listen", metrics.listen, "--max_running", "3")
    async with (
        running_gateway(tmp_path) as gateway,
        controller_process(gateway.address, tmp_path / "work", *arguments),
    ):
        await gateway.register_model("http://127.0.0.1:9")
        await gateway.create_run("r")
        for name, text, state in (("good", "true", SUCCEEDED), ("bad", "false", FAILED)):
            await gateway.create_rollout(name, start=False, runner=shell(text))
            await rollout_in(gateway, name, state)
        found = await scrape_until(metrics, lambda s: s.value("whippletree_controller_attempts_ended_total") == 2)
        ended = {s.labels["outcome"]: s.value for s in found.samples if s.name.endswith("attempts_ended_total")}
        assert ended == {"succeeded": 1, "failed": 1, "infrastructure_failure": 0}
        assert found.value("whippletree_controller_attempts_started_total") == 2
        assert found.value("whippletree_controller_attempts_capacity") == 3
        await gateway.create_rollout("long", start=False, runner=shell("sleep 1000"))
        await scrape_until(metrics, lambda s: s.value("whippletree_controller_attempts_under_way") == 1)
        assert (await scrape(metrics)).value("whippletree_build_info", service="controller") == 1


async def test_every_attempt_is_a_span_that_says_what_ran_and_how_it_ended(tmp_path: Path) -> None:
    async with (
        collector() as spans,
        running_gateway(tmp_path) as gateway,
        controller_process(gateway.address, tmp_path / "work", "--telemetry.otlp", spans.url),
    ):
        await gateway.register_model("http://127.0.0.1:9")
        await gateway.create_run("r")
        for name, text in (("good", "true"), ("bad", "exit 3 # secret")):
            await gateway.create_rollout(name, start=False, runner=shell(text))
        found = {s.attributes["whippletree.rollout"]: s for s in await spans.until(lambda found: len(found) == 2)}
    good, bad = found["good"], found["bad"]
    assert (good.service, good.name, good.failed) == ("whippletree-controller", "attempt", False)
    assert good.attributes["whippletree.outcome"] == "succeeded"
    assert (bad.failed, bad.attributes["error.type"]) == (True, "failed")
    assert (bad.attributes["whippletree.attempt"], bad.attributes["process.exit.code"]) == (1, 3)
    assert bad.attributes["process.executable.path"].endswith("sh")
    assert "secret" not in str(bad.attributes)
