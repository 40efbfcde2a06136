"""Prepare the quick start: python prepare.py --out FOLDER [--seed N].

Out, in FOLDER:
  model/                a small Qwen3 with random weights, its tokenizer and chat template
  demonstrations.jsonl  for the warm-up: {"token_ids": [T], "loss_mask": [T]}, mask 1 where the assistant speaks
  train.jsonl           inputs of training rollouts: {"question", "truth", "kind"}
  heldout.jsonl         inputs of held-out rollouts, whose numbers training never has

The seed decides the random weights, the demonstrations and the training questions; the tokenizer and the held-out
questions are the same for every seed. A folder that is complete already is left as it is.
"""

import argparse
import hashlib
import json
import random
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # a checkout, installed or not

from examples.quickstart import model, task

DEMONSTRATIONS = 19_200
"""As many as the warm-up uses: none is seen twice."""
TRAIN_QUESTIONS = 2_048
HELDOUT_QUESTIONS = 240
TOKENIZER_TEXTS = 2_000


def demonstrations(seed: str, count: int) -> Iterator[str]:
    """Conversations as text."""
    rng = random.Random(seed)
    for _ in range(count):
        yield model.render(task.demonstration(rng, task.draw_question(rng, "train")))


def inputs(seed: str, split: task.Split, count: int) -> Iterator[dict[str, str]]:
    """What a rollout's agent reads."""
    rng = random.Random(seed)
    for _ in range(count):
        question = task.draw_question(rng, split)
        yield {"question": question.text, "truth": question.truth, "kind": question.kind}


def encoded(tokenizer: Tokenizer, texts: Iterable[str]) -> Iterator[dict[str, list[int]]]:
    """Token ids and loss mask of each text."""
    for encoding in tokenizer.encode_batch(list(texts), add_special_tokens=False):
        yield {"token_ids": encoding.ids, "loss_mask": model.learned(encoding.ids, tokenizer)}


def write_lines(path: Path, values: Iterable[object]) -> None:
    """One JSON object a line."""
    path.write_text("".join(json.dumps(value, separators=(",", ":")) + "\n" for value in values))


def recipe(seed: int) -> str:
    """Changes with everything that decides the result."""
    sources = (Path(__file__), Path(task.__file__), Path(model.__file__))
    return hashlib.sha256(b"".join([*(path.read_bytes() for path in sources), str(seed).encode()])).hexdigest()


def prepare(out: Path, seed: int) -> None:
    """Write everything, with a line for each part; the stamp comes last."""
    stamp = out / "recipe.txt"
    if stamp.exists() and stamp.read_text() == recipe(seed):
        print(f"{out}: nothing to do", flush=True)
        return
    out.mkdir(parents=True, exist_ok=True)
    stamp.unlink(missing_ok=True)
    tokenizer = model.train_tokenizer(demonstrations("tokenizer", TOKENIZER_TEXTS))
    print(f"tokenizer: {tokenizer.get_vocab_size()} tokens", flush=True)
    model.write_model(out / "model", tokenizer, seed)
    print(f"model: {sum(w.size for w in model.random_weights(tokenizer.get_vocab_size(), 0).values()):,} weights")
    texts = demonstrations(f"demonstrations {seed}", DEMONSTRATIONS)
    write_lines(out / "demonstrations.jsonl", encoded(tokenizer, texts))
    print(f"demonstrations: {DEMONSTRATIONS:,}", flush=True)
    write_lines(out / "train.jsonl", inputs(f"train {seed}", "train", TRAIN_QUESTIONS))
    write_lines(out / "heldout.jsonl", inputs("heldout", "heldout", HELDOUT_QUESTIONS))
    print(f"questions: {TRAIN_QUESTIONS:,} to train on, {HELDOUT_QUESTIONS} held out", flush=True)
    stamp.write_text(recipe(seed))


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder to write")
    parser.add_argument("--seed", type=int, default=1, help="decides weights and data")
    chosen = parser.parse_args()
    prepare(chosen.out, chosen.seed)


if __name__ == "__main__":
    main()
