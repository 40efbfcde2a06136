"""Dashboard, scrape example and the page of metrics, against what running services and a real Envoy really export."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest_asyncio
import yaml  # type: ignore[import-untyped]
from prometheus_client import CollectorRegistry

from scripts import metrics
from tests.fakes.bridge import BODY
from tests.fakes.controller import controller_process
from tests.fakes.scrape import listener
from tests.fakes.stack import running_envoy
from tests.fakes.system import served
from trainer_svc.recorder import Recorder as TrainerRecorder
from whippletree.settings import MetricsSettings
from whippletree.tracing import Tracing

ROOT = Path(__file__).parents[2]
DASHBOARD = json.loads((ROOT / "deploy/grafana/whippletree.json").read_text())
PATH = "/proxy/rollout/a/attempt/1/mode/train/openai/v1/chat/completions"
METRIC = re.compile(r"\b(?:whippletree|envoy|process|python)_\w+\b(?!\s*(?:=|!=))")
MATCHER = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"")
GROUPING = re.compile(r"\bby \(([^)]*)\)")
SCRAPED = {"job", "instance", "le"}
"""Labels that Prometheus adds, or that every histogram has."""


def queries() -> Iterator[tuple[str, str]]:
    """(title, query) of every panel."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


def used(query: str) -> tuple[set[str], set[str]]:
    """(series, labels) of a query."""
    grouped = {label.strip() for group in GROUPING.findall(query) for label in group.split(",")}
    bare = GROUPING.sub("", query)
    labels = set(MATCHER.findall(bare)) | grouped
    return set(METRIC.findall(re.sub(r"\{[^}]*\}", "", bare))), labels - SCRAPED


def exported(text: str) -> dict[str, set[str]]:
    """Series -> labels, of a scrape; a family without samples has no labels here. By its lines: Prometheus's parser
    gives Envoy's counters another name."""
    found: dict[str, set[str]] = {}
    for name, kind in re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE):
        for suffix in ("_bucket", "_sum", "_count") if kind == "histogram" else ("",):
            found.setdefault(name + suffix, set())
    for name, labels in re.findall(r"^(\w+)(?:\{(.*)\})? \S+$", text, re.MULTILINE):
        found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    return found


def registered() -> dict[str, set[str]]:
    """Series -> labels, of all recorders: what the page of metrics lists."""
    found: dict[str, set[str]] = {}
    for _, _, register in metrics.PARTS:
        registry = CollectorRegistry()
        register(registry)
        for family in metrics.families(registry):
            for name in registry._collector_to_names[family]:
                found[name] = set(family._labelnames)
    return found


async def text_of(settings: MetricsSettings) -> str:
    return await fetched(f"http://{settings.listen}/metrics")


async def fetched(url: str) -> str:
    async with httpx.AsyncClient() as client:
        return (await client.get(url)).raise_for_status().text


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running(tmp_path_factory: Any) -> dict[str, set[str]]:
    """What a whole system exports after one call; the trainer's by its registry."""
    folder = tmp_path_factory.mktemp("dashboards")
    gateway_metrics, controller_metrics = listener(), listener()
    texts: list[str] = []
    async with (
        served(folder, joint=True, metrics=gateway_metrics) as (gateway, bridge, _),
        running_envoy(gateway=gateway.address, bridge=bridge, folder=folder) as envoy,
        controller_process(gateway.address, folder / "controller", "--metrics.listen", controller_metrics.listen),
        httpx.AsyncClient() as client,
    ):
        await gateway.create_run("r")
        await gateway.create_rollout("a")
        (await client.post(envoy.url + PATH, json=BODY, timeout=60)).raise_for_status()
        texts = [await text_of(gateway_metrics), await text_of(controller_metrics)]
        texts.append(await fetched(f"http://{envoy.admin}/stats/prometheus"))
    found: dict[str, set[str]] = {}
    for text in texts:
        for name, labels in exported(text).items():
            found.setdefault(name, set()).update(labels)
    trainer = CollectorRegistry()
    TrainerRecorder(trainer, Tracing())
    for family in metrics.families(trainer):
        found |= {name: set() for name in trainer._collector_to_names[family]}
    return found


async def test_every_query_of_the_dashboard_asks_for_what_is_exported(running: dict[str, set[str]]) -> None:
    known = registered()
    for title, query in queries():
        series, labels = used(query)
        assert series, f"{title}: no metric in {query}"
        missing = series - running.keys()
        assert not missing, f"{title}: nobody exports {sorted(missing)}"
        there = set().union(*(running[name] | known.get(name, set()) for name in series))
        assert labels <= there, f"{title}: no label {sorted(labels - there)} in {sorted(series)}"


async def test_whatever_is_exported_is_on_the_page_of_metrics(running: dict[str, set[str]]) -> None:
    ours = {name for name in running if name.startswith("whippletree_") and not name.endswith("_created")}
    assert ours - registered().keys() == {"whippletree_build_info"}


def test_the_page_of_metrics_is_what_is_registered() -> None:
    assert metrics.PAGE.read_text() == metrics.page(), "run: python scripts/metrics.py"


def test_no_label_names_a_rollout_an_attempt_or_a_call() -> None:
    labels = set().union(*registered().values())
    assert not {label for label in labels if any(word in label for word in ("rollout", "attempt", "call", "request"))}


def test_the_dashboard_has_a_part_for_everything_and_no_panel_over_another() -> None:
    rows = [panel["title"] for panel in DASHBOARD["panels"] if panel["type"] == "row"]
    assert rows == ["Overview", "Serving", "Engines", "Record", "Rollouts", "Training"]
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not taken & cells, panel["title"]
        assert at["x"] + at["w"] <= 24
        taken |= cells


def test_the_scrape_example_has_every_part_once() -> None:
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    jobs = {job["job_name"]: job for job in config["scrape_configs"]}
    assert set(jobs) == {"gateway", "bridge", "controller", "trainer", "envoy"}
    targets = [target for job in jobs.values() for one in job["static_configs"] for target in one["targets"]]
    assert len(targets) == len(set(targets)) == 5
    assert {job.get("metrics_path", "/metrics") for name, job in jobs.items() if name != "envoy"} == {"/metrics"}
    assert jobs["envoy"]["metrics_path"] == "/stats/prometheus"
