"""The model computes what transformers computes, and its weights come and go without a bit lost."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

from tests.fakes.tiny_model import write_tiny_model, write_tokenizer
from tests.trainer_svc.megatron import samples as s
from trainer_svc import commands as c

SAMPLES = s.make_samples()
QWEN2: dict[str, int] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def plain_logprobs(model: torch.nn.Module, token_ids: np.ndarray) -> torch.Tensor:
    """[T - 1] of tokens 1 to T - 1."""
    ids = torch.from_numpy(token_ids.astype(np.int64))[None]
    return model(ids).logits[0, :-1].log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]


@pytest.fixture(scope="module", params=["qwen3 tied", "qwen3 untied", "qwen2"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model."""
    directory = tmp_path_factory.mktemp("plain") / "tiny"
    if request.param != "qwen2":
        return write_tiny_model(directory, tied=request.param == "qwen3 tied", seed=3)
    torch.manual_seed(3)
    model = Qwen2ForCausalLM(Qwen2Config(**QWEN2))
    for parameter in model.parameters():  # biases, which start at 0, too
        torch.nn.init.normal_(parameter, mean=float(parameter.ndim == 1), std=0.05)
    model.save_pretrained(directory)
    write_tokenizer(directory, QWEN2["vocab_size"])
    return directory


def test_logprobs_equal_those_of_transformers(world: None, path: Path) -> None:
    plain = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    (answer,) = s.execute(s.load_worker(path), c.Logprobs(), s.pack(SAMPLES[:3]), s.pack(SAMPLES[3:]), c.EndOfBatches())
    assert isinstance(answer, c.LogprobsDone)
    assert [row.row for row in answer.rows] == [sample.name for sample in SAMPLES]
    for row, sample in zip(answer.rows, SAMPLES, strict=True):
        assert row.logprobs[0] == 0
        np.testing.assert_allclose(row.logprobs[1:], plain_logprobs(plain, sample.token_ids).detach(), atol=1e-4)


def test_loss_and_gradient_equal_those_of_transformers(world: None, path: Path) -> None:
    plain = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    loss = torch.zeros(())
    for sample in SAMPLES:
        loss = loss - (plain_logprobs(plain, sample.token_ids) * torch.from_numpy(sample.loss_weights[1:])).sum()
    loss.backward()
    worker = s.load_worker(path)
    ours = s.gradients(worker, path, [s.pack(SAMPLES)], c.LossKind.SFT)
    theirs = {name: parameter.grad.numpy() for name, parameter in plain.named_parameters()}
    assert s.largest_difference(theirs, ours) < 1e-4
    (done,) = s.execute(worker, *s.train_commands([s.pack(SAMPLES)], s.step_command()))
    assert isinstance(done, c.StepDone)
    assert done.loss == pytest.approx(loss.item(), rel=1e-4)


def test_export_of_an_import_is_equal_to_the_bit(world: None, path: Path, tmp_path: Path) -> None:
    s.execute(s.load_worker(path), c.SaveWeights(path=tmp_path / "out"))
    before, after = load_file(path / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) and before[name].dtype == after[name].dtype for name in before)


def test_export_loads_in_transformers_and_carries_what_was_trained(world: None, path: Path, tmp_path: Path) -> None:
    worker = s.load_worker(path)
    out = tmp_path / "out"
    _, _, answer = s.execute(
        worker,
        *s.train_commands([s.pack(SAMPLES)], s.step_command()),
        c.SaveWeights(path=out),
        c.Logprobs(),
        s.pack(SAMPLES[:1]),
        c.EndOfBatches(),
    )
    assert isinstance(answer, c.LogprobsDone)
    trained = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    expected = plain_logprobs(trained, SAMPLES[0].token_ids).detach()
    np.testing.assert_allclose(answer.rows[0].logprobs[1:], expected, atol=1e-4)
    assert AutoTokenizer.from_pretrained(out).encode("ab") == [97, 98]


def test_export_replaces_a_directory_whole(world: None, path: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "stale").write_text("old")
    s.execute(s.load_worker(path), c.SaveWeights(path=out))
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]
    assert not (out / "stale").exists()
    assert json.loads((out / "config.json").read_text())["dtype"] == "float32"
