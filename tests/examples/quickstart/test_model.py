"""Tokenizer, template and loss mask of the small policy, and that the bridge reads them as they are meant."""

import json
import random
from itertools import pairwise
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from examples.quickstart import model, prepare, task
from openai_bridge.parse import parse
from openai_bridge.tokenizer import load


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return model.train_tokenizer(prepare.demonstrations("tokenizer", prepare.TOKENIZER_TEXTS))


def conversations(count: int = 200) -> list[list[task.Message]]:
    rng = random.Random(9)
    return [task.demonstration(rng, task.draw_question(rng, "train")) for _ in range(count)]


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    found: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return found


def turns(messages: list[task.Message]) -> list[int]:
    """Where the assistant speaks."""
    return [place for place, message in enumerate(messages) if message["role"] == "assistant"]


def test_every_number_below_100_is_one_token(tokenizer: Tokenizer) -> None:
    assert all(len(ids(tokenizer, str(number))) == 1 for number in range(100))


def test_text_survives_the_tokenizer(tokenizer: Tokenizer) -> None:
    for text in [*map(model.render, conversations(50)), "Ünïcode, 1234567 and <tool_call>\n\n</tool_call>"]:
        assert tokenizer.decode(ids(tokenizer, text), skip_special_tokens=False) == text


def test_prompts_are_short(tokenizer: Tokenizer) -> None:
    first = [ids(tokenizer, model.render(messages[:2], generation_prompt=True)) for messages in conversations()]
    assert max(map(len, first)) <= 60
    whole = [ids(tokenizer, model.render(messages)) for messages in conversations()]
    assert max(map(len, whole)) < model.CONTEXT / 2


def test_each_prompt_begins_with_the_prompt_and_response_before(tokenizer: Tokenizer) -> None:
    for messages in conversations():
        whole = ids(tokenizer, model.render(messages))
        prompts = [ids(tokenizer, model.render(messages[:k], generation_prompt=True)) for k in turns(messages)]
        for earlier, later in pairwise([*prompts, whole]):
            assert later[: len(earlier)] == earlier


def test_mask_covers_exactly_the_responses(tokenizer: Tokenizer) -> None:
    end = model.token_id(tokenizer, model.END)
    for messages in conversations():
        whole = ids(tokenizer, model.render(messages))
        expected = [0] * len(whole)
        for k in turns(messages):
            start = len(ids(tokenizer, model.render(messages[:k], generation_prompt=True)))
            stop = whole.index(end, start) + 1
            expected[start:stop] = [1] * (stop - start)
        assert model.learned(whole, tokenizer) == expected


def test_bridge_renders_the_same_tokens(tokenizer: Tokenizer, tmp_path: Path) -> None:
    model.write_tokenizer(tmp_path, tokenizer)
    loaded = load(tmp_path)
    template = loaded.template(with_tools=True)
    assert template.takes_text_arguments
    assert loaded.end_ids == {model.token_id(tokenizer, model.END)}
    for messages in conversations(50):
        for k in turns(messages):
            text = template.render(messages[:k], tools=task.TOOLS)
            assert loaded.encode(text).tolist() == ids(tokenizer, model.render(messages[:k], generation_prompt=True))


def test_bridge_reads_the_calls_that_the_template_writes(tokenizer: Tokenizer) -> None:
    for messages in conversations():
        for k in turns(messages):
            prompt = model.render(messages[:k], generation_prompt=True)
            said = model.render(messages[: k + 1]).removeprefix(prompt).removesuffix(f"{model.END}\n")
            reply = parse(said, call_id="x", tools=True, reasoning=False, in_reasoning=False)
            calls = [
                (call["function"]["name"], call["function"]["arguments"]) for call in messages[k].get("tool_calls", [])
            ]
            assert [(call.name, call.arguments) for call in reply.tool_calls] == calls
            assert reply.content == messages[k]["content"]


def test_echoed_call_renders_to_the_tokens_that_were_sampled(tokenizer: Tokenizer) -> None:
    question = task.draw_question(random.Random(1), "train")
    first = task.first_messages(question)
    said = '<tool_call>\n{"name": "calculator", "arguments": {"expression":  "3+4"}}\n</tool_call>'  # two spaces
    prompt = model.render(first, generation_prompt=True)
    call = parse(said, call_id="x", tools=True, reasoning=False, in_reasoning=False).tool_calls[0]
    turn = task.tool_turn("")
    turn["tool_calls"][0]["function"]["arguments"] = call.arguments
    assert json.loads(str(call.arguments)) == {"expression": "3+4"}
    assert model.render([*first, turn, task.tool_result("7")]).startswith(prompt + said + model.END)


def test_model_has_between_half_a_million_and_three_million_weights(tokenizer: Tokenizer) -> None:
    weights = model.random_weights(tokenizer.get_vocab_size(), seed=1)
    assert 500_000 < sum(weight.size for weight in weights.values()) < 3_000_000
    assert all(weights[name].shape == shape for name, shape in model.shapes(tokenizer.get_vocab_size()).items())
    assert (weights["model.norm.weight"] == 1).all()


def test_weights_follow_the_seed(tokenizer: Tokenizer) -> None:
    name = "model.layers.3.mlp.up_proj.weight"
    one, again, two = (model.random_weights(300, seed)[name] for seed in (1, 1, 2))
    assert (one == again).all()
    assert (one != two).any()
