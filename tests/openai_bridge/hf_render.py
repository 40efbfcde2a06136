"""Run in the environment with transformers: reads cases from standard input, writes the ids of apply_chat_template.

In: JSON {folder, cases: [{messages, tools, variables}]}. Out: JSON [[id, ...], ...].
"""

import json
import sys

from transformers import PreTrainedTokenizerFast


def main() -> None:
    """One answer for all cases: starting transformers takes seconds."""
    given = json.load(sys.stdin)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(given["folder"])
    ids = [
        tokenizer.apply_chat_template(
            case["messages"],
            tools=case["tools"] or None,
            add_generation_prompt=True,
            tokenize=True,
            return_dict=False,
            **case["variables"],
        )
        for case in given["cases"]
    ]
    json.dump(ids, sys.stdout)


if __name__ == "__main__":
    main()
