"""Renders prompts and computes log-probabilities again with plain transformers. Runs in the environment with torch.

In: `recompute.py CALLS TOKENIZER WEIGHTS`; CALLS has one JSON object a line: call_id, prompt, response, logprobs,
version, and messages and tools where the agent noted them; WEIGHTS is the folder of directories by version.
Out: one JSON object: calls, tokens, worst (largest difference), versions, rendered (prompts compared), wrong (call ids
whose prompt is rendered otherwise).
"""

import collections
import json
import sys
from pathlib import Path
from typing import Any

import torch
import transformers


def main() -> None:
    """Compare."""
    calls_file, tokenizer_dir, weights_dir = map(Path, sys.argv[1:])
    calls: list[dict[str, Any]] = [json.loads(line) for line in calls_file.read_text().splitlines()]
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(tokenizer_dir)
    noted = [call for call in calls if "messages" in call]
    wrong = [call["call_id"] for call in noted if rendered(tokenizer, call) != call["prompt"]]
    by_version: dict[str, list[dict[str, Any]]] = collections.defaultdict(list)
    for call in calls:
        by_version[call["version"]].append(call)
    worst = 0.0
    for version, group in by_version.items():
        model = transformers.AutoModelForCausalLM.from_pretrained(weights_dir / version, dtype=torch.float32).eval()
        for call in group:
            worst = max(worst, difference(model, call))
    print(
        json.dumps(
            {
                "calls": len(calls),
                "tokens": sum(len(call["response"]) for call in calls),
                "worst": worst,
                "versions": sorted(by_version),
                "rendered": len(noted),
                "wrong": wrong,
            }
        )
    )


def rendered(tokenizer: Any, call: dict[str, Any]) -> list[int]:
    """The prompt as the model's own template makes it."""
    text = tokenizer.apply_chat_template(
        call["messages"], tools=call["tools"], add_generation_prompt=True, tokenize=False
    )
    return list(tokenizer.encode(text, add_special_tokens=False))


def difference(model: Any, call: dict[str, Any]) -> float:
    """Largest absolute difference between recorded and computed log-probabilities of one response."""
    ids = torch.tensor([call["prompt"] + call["response"]])  # [1, P + R]
    with torch.inference_mode():
        logits = model(ids).logits[0, len(call["prompt"]) - 1 : -1].float()  # [R, V]
    chosen = torch.log_softmax(logits, -1).gather(-1, torch.tensor(call["response"])[:, None])[:, 0]  # [R]
    return float((chosen - torch.tensor(call["logprobs"])).abs().max())


if __name__ == "__main__":
    main()
