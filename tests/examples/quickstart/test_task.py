"""The task: right plans, held-out numbers, the calculator, the reward, sloppy demonstrations."""

import random
import re
from collections import Counter
from collections.abc import Callable

import pytest

from examples.quickstart import agent
from examples.quickstart.task import (
    GUESS,
    KINDS,
    Question,
    Split,
    calculate,
    demonstration,
    draw_question,
    follow,
    held_out,
    reward,
)

FORMULAS: dict[str, Callable[..., float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "mul_add": lambda a, b, c: a + b * c,
    "mul_sub": lambda a, b, c: b * c - a,
}


def questions(split: Split, count: int = 2000) -> list[Question]:
    rng = random.Random(f"test {split}")
    return [draw_question(rng, split) for _ in range(count)]


@pytest.mark.parametrize("split", ["train", "heldout", "unseen-templates"])
def test_plan_leads_to_the_truth_through_numbers_below_100(split: Split) -> None:
    drawn = questions(split)
    assert {question.kind for question in drawn} == set(KINDS)
    for question in drawn:
        done = follow(KINDS[question.kind].plan, question.values)
        assert float(question.truth) == FORMULAS[question.kind](**question.values)
        assert done[-1][1] == question.truth
        numbers = [*question.values.values(), *(int(result) for _, result in done)]
        assert all(0 < number < 100 for number in numbers)


@pytest.mark.parametrize("split", ["train", "heldout", "unseen-templates"])
def test_question_shows_its_numbers_in_their_order(split: Split) -> None:
    for question in questions(split, 300):
        assert [int(n) for n in re.findall(r"\d+", question.text)] == list(question.values.values())


def test_mistake_reaches_the_truth_by_rare_chance_only() -> None:
    drawn = questions("train")
    lucky = [q for q in drawn if follow(KINDS[q.kind].mistake, q.values)[-1][1] == q.truth]
    assert len(lucky) / len(drawn) < 0.02  # such as 32 - 31 = 32 / 31


def test_held_out_numbers_are_never_trained_on() -> None:
    seen = {(q.kind, *q.values.values()) for q in questions("train", 6000)}
    kept = {(q.kind, *q.values.values()) for q in [*questions("heldout", 1500), *questions("unseen-templates", 1500)]}
    assert len(kept) > 500
    assert not seen & kept


def test_a_fifth_of_all_numbers_is_held_out() -> None:
    pairs = [{"a": a, "b": b} for a in range(1, 100) for b in range(1, 100)]
    assert sum(map(held_out, pairs)) / len(pairs) == pytest.approx(0.2, abs=0.002)


def test_unseen_templates_are_in_no_other_split() -> None:
    last = [re.escape(re.sub(r"{\w}", "_", kind.templates[-1])).replace("_", r"\w+") for kind in KINDS.values()]
    pattern = re.compile("|".join(last))
    assert not any(pattern.fullmatch(q.text) for q in [*questions("train", 300), *questions("heldout", 300)])
    assert all(pattern.fullmatch(q.text) for q in questions("unseen-templates", 300))


def test_questions_follow_their_seed() -> None:
    assert questions("train", 50) == questions("train", 50)


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("3+4", "7"),
        (" 3 - 4 ", "-1"),
        ("-3*4", "-12"),
        ("7/2", "3"),
        ("-7/2", "-4"),
        ("7/0", "error"),
        ("3+4+5", "error"),
        ("3.0+4", "error"),
        ("", "error"),
        ("a+b", "error"),
        ("1234567+1", "error"),
        ("__import__('os')", "error"),
    ],
)
def test_calculator_does_one_operation_on_whole_numbers(expression: str, result: str) -> None:
    assert calculate(expression) == result
    assert agent.calculate(expression) == result


def test_agent_and_task_speak_of_the_same_tool() -> None:
    from examples.quickstart import task

    assert (agent.SYSTEM, agent.TOOLS) == (task.SYSTEM, task.TOOLS)


@pytest.mark.parametrize(
    ("reply", "value"),
    [
        ("The answer is 53.", 1.0),
        ("12 + 41 is 53", 1.0),
        ("53 or 54", 0.0),
        ("The answer is 530.", 0.0),
        ("The answer is -53.", 0.0),
        ("The answer is 053.", 0.0),
        ("I do not know", 0.0),
        ("", 0.0),
    ],
)
def test_reward_looks_at_the_last_whole_number(reply: str, value: float) -> None:
    assert reward("53", reply) == value


def test_demonstrations_are_right_as_often_as_their_kind_says() -> None:
    rng = random.Random(3)
    total: Counter[str] = Counter()
    right: Counter[str] = Counter()
    for question in questions("train", 6000):
        last = demonstration(rng, question)[-1]
        total[question.kind] += 1
        right[question.kind] += int(reward(question.truth, str(last["content"])))
    for kind, count in total.items():
        assert right[kind] / count == pytest.approx(KINDS[kind].right, abs=0.06)


def test_demonstrations_copy_without_fault() -> None:
    rng = random.Random(4)
    guesses = 0
    for question in questions("train", 500):
        messages = demonstration(rng, question)
        results = [str(message["content"]) for message in messages if message["role"] == "tool"]
        guesses += not results
        assert not results or messages[-1]["content"] == f"The answer is {results[-1]}."
    assert guesses / 500 == pytest.approx(GUESS, abs=0.05)
