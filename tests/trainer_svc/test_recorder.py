"""What a step of the driver becomes in Prometheus."""

from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from trainer_svc.recorder import Recorder
from whippletree.tracing import Tracing


def test_steps_add_up_and_gauges_show_the_last() -> None:
    registry = CollectorRegistry()
    recorder = Recorder(registry, Tracing())
    figures: dict[str, float] = {
        "rollouts": 6,
        "dropped_rollouts": 2,
        "groups": 3,
        "flat_groups": 1,
        "recorded_tokens": 100,
    }
    figures |= {"trained_tokens": 40, "updates": 1, "reward": 0.5, "plan_excess": 1.25}
    recorder.stepped(1, 1, figures, {"rollouts": 2.0, "train": 1.0}, 0.25)
    recorder.stepped(2, 1, {**figures, "reward": 0.75, "updates": 0}, {"rollouts": 4.0}, None)

    def value(name: str, **labels: Any) -> float | None:
        return registry.get_sample_value(f"whippletree_trainer_{name}", labels)

    assert (value("step"), value("weight_step")) == (2, 1)
    assert (value("rollouts_total", what="kept"), value("rollouts_total", what="dropped")) == (12, 4)
    assert (value("groups_total", what="all"), value("groups_total", what="flat")) == (6, 2)
    assert (value("tokens_total", kind="recorded"), value("tokens_total", kind="trained")) == (200, 80)
    assert value("updates_total") == 1
    assert (value("reward"), value("heldout_accuracy")) == (0.75, 0.25)
    assert value("plan_efficiency") == 0.8
    assert (value("step_seconds_sum", part="rollouts"), value("step_seconds_count", part="train")) == (6.0, 1)


def test_parts_of_a_step_are_spans_under_it_and_a_part_that_fails_fails_both() -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    recorder = Recorder(CollectorRegistry(), Tracing(provider.get_tracer("test")))
    with recorder.doing("step", {"whippletree.step": 1}), recorder.doing("train"):
        pass
    with pytest.raises(KeyError), recorder.doing("step"), recorder.doing("publish"):
        raise KeyError("secret")
    train, step, publish, failed = exporter.get_finished_spans()
    assert [span.name for span in (train, step, publish, failed)] == ["train", "step", "publish", "step"]
    assert train.parent is not None
    assert train.parent.span_id == step.context.span_id
    assert step.attributes == {"whippletree.step": 1}
    assert publish.attributes == failed.attributes == {"error.type": "KeyError"}
