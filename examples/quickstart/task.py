"""The task: arithmetic word problems, the calculator, the reward, and the demonstrations that the warm-up imitates.

A question needs one or two calls of a calculator that does one operation on two whole numbers. A demonstration copies
numbers without fault but follows the right plan only sometimes: else it makes the mistake of its kind, or answers
without the tool. Nothing but the reward says which plan is right: what training lifts is the choice of a plan.
"""

import json
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Split = Literal["train", "heldout", "unseen-templates"]
Message = dict[str, Any]

SYSTEM = "Use the calculator, one operation per call."
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "calculator",
            "parameters": {
                "type": "object",
                "properties": {"expression": {"type": "string"}},
                "required": ["expression"],
            },
        },
    }
]
NAMES = ["Tom", "Ana", "Ben", "Eva", "Max", "Lea", "Sam", "Mia", "Jan", "Ida", "Leo", "Zoe"]
ITEMS = ["apples", "pens", "balls", "cards", "eggs", "coins", "books", "shells", "cups", "stamps", "keys", "rings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of question. A plan is a tuple of expressions; `#1` stands for the first call's result."""

    plan: tuple[str, ...]
    mistake: tuple[str, ...]
    """What a demonstration does instead. No two kinds mirror one another, so that an imitator must tell them apart."""
    right: float
    """Share of demonstrations that follow the plan."""
    templates: tuple[str, ...]
    """The last one is never seen in training."""


KINDS: Mapping[str, Kind] = {
    "add": Kind(
        plan=("a+b",),
        mistake=("a*b",),
        right=0.45,
        templates=(
            "{n} has {a} {i} and finds {b} more. How many {i} does {n} have?",
            "{n} saw {a} {i} today and {b} yesterday. How many {i} were seen?",
            "There are {a} {i} here and {b} there. How many {i} are there together?",
            "{n} has {a} {i} and gets {b} more. How many {i} are there together?",
        ),
    ),
    "sub": Kind(
        plan=("a-b",),
        mistake=("a/b",),
        right=0.35,
        templates=(
            "{n} had {a} {i} and lost {b}. How many {i} are left?",
            "{n} has {a} {i} and gives away {b}. How many {i} remain?",
            "Of {a} {i}, {b} were sold. How many {i} remain?",
            "{n} had {a} {i} and gave away {b}. How many {i} are left?",
        ),
    ),
    "mul": Kind(
        plan=("a*b",),
        mistake=("a-b",),
        right=0.45,
        templates=(
            "Each of {a} boxes holds {b} {i}. How many {i} are in the boxes?",
            "{n} buys {a} bags with {b} {i} each. How many {i} is that?",
            "{a} friends bring {b} {i} each. How many {i} do they bring?",
            "{n} has {a} boxes with {b} {i} each. How many {i} is that?",
        ),
    ),
    "div": Kind(
        plan=("a/b",),
        mistake=("a+b",),
        right=0.35,
        templates=(
            "{a} {i} are shared by {b} friends. How many {i} does each get?",
            "{n} packs {a} {i} into {b} equal boxes. How many {i} are in each?",
            "{n} splits {a} {i} among {b} bags. How many {i} go into each?",
            "{n} shares {a} {i} among {b} friends. How many {i} does each get?",
        ),
    ),
    "mul_add": Kind(
        plan=("b*c", "#1+a"),
        mistake=("b*c", "#1*a"),
        right=0.45,
        templates=(
            "{n} has {a} {i} and buys {b} bags of {c}. How many {i} does {n} have now?",
            "{a} {i} lie on the table, and {b} boxes hold {c} each. How many {i} is that in all?",
            "{n} found {a} {i} and then {b} piles of {c}. How many {i} is that in all?",
            "{n} has {a} {i} and finds {b} piles of {c}. How many {i} is that in all?",
        ),
    ),
    "mul_sub": Kind(
        plan=("b*c", "#1-a"),
        mistake=("b*c", "#1/a"),
        right=0.35,
        templates=(
            "{a} {i} broke out of {b} boxes of {c}. How many {i} are still whole?",
            "{n} ate {a} {i} from {b} bags of {c}. How many {i} are still there?",
            "{n} used {a} {i} out of {b} piles of {c}. How many {i} are still there?",
            "{n} ate {a} {i} out of {b} boxes of {c}. How many {i} are still there?",
        ),
    ),
}
GUESS = 0.10
"""Share of demonstrations that answer without the tool, at random."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One word problem. Every operand, and every result on the right way, is a whole number from 1 to 99."""

    kind: str
    text: str
    values: Mapping[str, int]
    truth: str


def calculate(expression: str) -> str:
    """The calculator: one operation on two whole numbers; anything else is answered with `error`."""
    match = re.fullmatch(r"\s*(-?\d{1,6})\s*([-+*/])\s*(-?\d{1,6})\s*", expression)
    if not match or (match[2] == "/" and int(match[3]) == 0):
        return "error"
    a, b = int(match[1]), int(match[3])
    return str({"+": a + b, "-": a - b, "*": a * b, "/": a // b if b else 0}[match[2]])


def follow(plan: tuple[str, ...], values: Mapping[str, int]) -> list[tuple[str, str]]:
    """Each step as (expression with numbers, result)."""
    done: list[tuple[str, str]] = []
    for step in plan:
        numbers = {name: str(value) for name, value in values.items()} | {"#1": done[0][1] if done else ""}
        expression = re.sub(r"#1|[abc]", lambda match, known=numbers: known[match[0]], step)  # type: ignore[misc]
        done.append((expression, calculate(expression)))
    return done


def held_out(values: Mapping[str, int]) -> bool:
    """Whether these numbers are kept from training: a fifth of all."""
    return sum(weight * value for weight, value in zip((1, 7, 31), values.values(), strict=False)) % 5 == 0


def draw_values(kind: str, rng: random.Random) -> dict[str, int]:
    """Numbers for a question of this kind; not all of them make a valid one."""
    two = (rng.randint(11, 88), rng.randint(11, 88))
    small = rng.randint(2, 9)
    many = rng.randint(2, 49)
    match kind:
        case "add":
            numbers = two
        case "sub":
            numbers = (max(two), min(two))
        case "mul":
            numbers = (small, many)
        case "div":
            numbers = (small * many, small)
        case _:
            return {"a": rng.randint(2, 89), "b": small, "c": rng.randint(2, 45)}
    return dict(zip("ab", numbers, strict=True))


def draw_question(rng: random.Random, split: Split) -> Question:
    """A question. Numbers of `heldout` are never those of `train`; `unseen-templates` has other sentences, too."""
    name = rng.choice(list(KINDS))
    kind = KINDS[name]
    while True:
        values = draw_values(name, rng)
        results = [int(result) for _, result in follow(kind.plan, values)]
        distinct = len(set(values.values())) == len(values)
        if (
            distinct
            and held_out(values) == (split != "train")
            and all(0 < x < 100 for x in (*values.values(), *results))
        ):
            break
    template = kind.templates[-1] if split == "unseen-templates" else rng.choice(kind.templates[:-1])
    text = template.format(n=rng.choice(NAMES), i=rng.choice(ITEMS), **values)
    return Question(kind=name, text=text, values=values, truth=str(results[-1]))


def first_messages(question: Question) -> list[Message]:
    """What the agent sends first."""
    return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question.text}]


def tool_turn(expression: str, call_id: str = "c") -> Message:
    """The assistant's call of the calculator."""
    function = {"name": "calculator", "arguments": json.dumps({"expression": expression})}
    return {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }


def tool_result(result: str, call_id: str = "c") -> Message:
    """The calculator's answer."""
    return {"role": "tool", "tool_call_id": call_id, "content": result}


def demonstration(rng: random.Random, question: Question) -> list[Message]:
    """A whole conversation: the right plan, the kind's mistake, or a guess without the tool."""
    kind, draw, messages = KINDS[question.kind], rng.random(), first_messages(question)
    plan = kind.plan if draw < kind.right else () if draw < kind.right + GUESS else kind.mistake
    done = follow(plan, question.values)
    for expression, result in done:
        messages += [tool_turn(expression), tool_result(result)]
    answer = done[-1][1] if done else str(rng.randint(2, 99))
    return [*messages, {"role": "assistant", "content": f"The answer is {answer}."}]


def reward(truth: str, reply: str) -> float:
    """1 if the last whole number of the final reply is the truth, else 0."""
    numbers: list[str] = re.findall(r"-?\d+", reply)
    return float(bool(numbers) and numbers[-1] == truth)
