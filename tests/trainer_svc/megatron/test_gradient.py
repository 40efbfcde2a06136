"""The step's gradient does not depend on placement: ranks, micro-batches, fill-ins, layouts."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.trainer_svc.megatron import layouts
from tests.trainer_svc.megatron import samples as s
from tests.trainer_svc.megatron.launch import HANG_SECONDS, torchrun
from trainer_svc.commands import LossKind, StepDone
from trainer_svc.microbatch import MicroBatch, empty_micro_batch

SAMPLES = s.make_samples()
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def reference(world: None, model_path: Path) -> dict[LossKind, dict[str, Any]]:
    """One rank, one micro-batch."""
    worker = s.load_worker(model_path)
    return {kind: s.gradients(worker, model_path, [s.pack(SAMPLES)], kind) for kind in LossKind}


@pytest.fixture(scope="module")
def two_ranks(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two ranks wrote."""
    out = tmp_path_factory.mktemp("layouts")
    log = out / "log"
    with torchrun(2, log, "-m", layouts.__name__, str(model_path), str(out)) as process:
        assert process.wait(timeout=HANG_SECONDS) == 0, log.read_text()
    return out


CAPS: dict[str, Callable[[], list[MicroBatch]]] = {
    "one sample each": lambda: s.pack_under(SAMPLES, 1),
    "cap 50": lambda: s.pack_under(SAMPLES, 50),
    "cap 90, other order": lambda: s.pack_under(SAMPLES[::-1], 90),
    "with empty ones": lambda: [empty_micro_batch(), *s.pack_under(SAMPLES, 70), empty_micro_batch()],
}


@pytest.mark.parametrize("kind", list(LossKind))
@pytest.mark.parametrize("cap", CAPS)
def test_gradient_is_the_same_for_any_micro_batch_cap(
    cap: str, kind: LossKind, reference: dict[LossKind, dict[str, Any]], model_path: Path
) -> None:
    worker = s.load_worker(model_path)
    assert s.largest_difference(reference[kind], s.gradients(worker, model_path, CAPS[cap](), kind)) < TOLERANCE


@pytest.mark.parametrize("case", layouts.CASES)
def test_gradient_of_two_ranks_equals_that_of_one(
    case: str, reference: dict[LossKind, dict[str, Any]], two_ranks: Path
) -> None:
    kind = LossKind.POLICY if case == "dp_policy" else LossKind.SFT
    with np.load(two_ranks / f"{case}.npz") as gradient:
        assert s.largest_difference(reference[kind], dict(gradient)) < TOLERANCE


@pytest.mark.parametrize("case", layouts.CASES)
def test_figures_of_two_ranks_equal_those_of_one(case: str, two_ranks: Path, model_path: Path, world: None) -> None:
    kind = LossKind.POLICY if case == "dp_policy" else LossKind.SFT
    worker = s.load_worker(model_path)
    (one,) = s.execute(worker, *s.train_commands([s.pack(SAMPLES)], s.step_command(kind)))
    assert isinstance(one, StepDone)
    two = dict(re.findall(r"(\w+)=([^,)]+)", (two_ranks / f"{case}.txt").read_text()))
    for name in ("loss", "gradient_norm", "ratio_deviation", "kl", "clip_fraction", "entropy"):
        assert float(two[name]) == pytest.approx(getattr(one, name), rel=2e-5, abs=1e-7), name
    assert int(two["trained_tokens"]) == one.trained_tokens == sum((x.loss_weights != 0).sum() for x in SAMPLES)
    assert int(two["forward_tokens"]) == one.forward_tokens == sum(len(x.token_ids) for x in SAMPLES)


def test_a_step_of_empty_micro_batches_adds_nothing(world: None, model_path: Path) -> None:
    worker = s.load_worker(model_path)
    gradient = s.gradients(worker, model_path, [empty_micro_batch()], LossKind.POLICY)
    assert all(not values.any() for values in gradient.values())
