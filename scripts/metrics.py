"""Writes docs/metrics.md from the families that the services really register: `python scripts/metrics.py`.

In: the recorders. Out: the page; a test compares it with the file.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from controller_svc.recorder import Recorder as ControllerRecorder
from gateway_svc.recorder import Recorder as GatewayRecorder
from gateway_svc.scrape import Gauges
from openai_bridge.recorder import Recorder as BridgeRecorder
from trainer_svc.recorder import Recorder as TrainerRecorder
from whippletree.observe import Rpcs
from whippletree.tracing import Tracing

PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"
HEAD = """# Metrics

Every service serves Prometheus metrics where its setting `metrics.listen` says; `whippletree up` chooses ports and
names them in `run/endpoints.json`. Envoy has its own at `/stats/prometheus` of its admin interface. A histogram `x` has
the series `x_bucket`, `x_sum` and `x_count`. No label ever holds a rollout, an attempt or a call: those are in logs and
traces. A family has 200 label sets at most (rpcs: 1,700), and counts the rest as `other`.

This page is written by `scripts/metrics.py` from what the services register.
"""
TAIL = """
Beside these: `whippletree_build_info{version, service}`, and `process_*` and `python_gc_*` of the process.
"""
PARTS: tuple[tuple[str, str, Callable[[CollectorRegistry], object]], ...] = (
    (
        "Every service",
        "`whippletree/observe.py`; not counted are health, reflection, and what one process asks itself",
        Rpcs,
    ),
    ("Gateway", "`gateway_svc/recorder.py`", lambda registry: GatewayRecorder(registry, Tracing())),
    ("Gateway, looked up at a scrape", "`gateway_svc/scrape.py`", Gauges),
    ("Bridge", "`openai_bridge/recorder.py`", lambda registry: BridgeRecorder(registry, Tracing())),
    ("Controller", "`controller_svc/recorder.py`", lambda registry: ControllerRecorder(registry, Tracing())),
    (
        "Trainer",
        "`trainer_svc/recorder.py`; `metrics.jsonl` has more",
        lambda registry: TrainerRecorder(registry, Tracing()),
    ),
)


def rows(register: Callable[[CollectorRegistry], object]) -> list[str]:
    """A line for each family that is registered."""
    registry = CollectorRegistry()
    register(registry)
    return [
        f"| `{_name(family)}` | {family._type} | {_labels(family._labelnames)} | {family._documentation} |"
        for family in families(registry)
    ]


def families(registry: CollectorRegistry) -> list[MetricWrapperBase]:
    """All of a registry, in the order of registration."""
    return [family for family in registry._collector_to_names if isinstance(family, MetricWrapperBase)]


def _name(family: MetricWrapperBase) -> str:
    return family._name + ("_total" if family._type == "counter" else "")


def _labels(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def page() -> str:
    """The whole page."""
    text = HEAD
    for title, where, register in PARTS:
        text += f"\n## {title}\nFrom {where}.\n\n| metric | kind | labels | meaning |\n|---|---|---|---|\n"
        text += "\n".join(rows(register)) + "\n"
    return text + TAIL


if __name__ == "__main__":
    PAGE.write_text(page())
