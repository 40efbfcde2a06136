"""Log lines as they are written."""

import asyncio
import json
import logging
import re
from pathlib import Path

import pytest

from whippletree.log import Ids, JsonFormatter, about


def line(message: str, *arguments: object) -> dict[str, object]:
    record = logging.LogRecord("gateway_svc.store", logging.INFO, "store.py", 1, message, arguments, None)
    text = JsonFormatter().format(record)
    assert "\n" not in text
    found: dict[str, object] = json.loads(text)
    return found


async def test_the_ids_of_a_task_are_on_its_lines_and_on_those_of_the_tasks_it_starts() -> None:
    async def work() -> dict[str, object]:
        about(call="c1")
        return line("sampled")

    about(rollout="r1", attempt=2, run="run1", request="q1", traceparent=f"00-{'a' * 32}-{'b' * 16}-01")
    inner = await asyncio.create_task(work())
    assert inner | {"time": ""} == {
        "time": "",
        "level": "INFO",
        "logger": "gateway_svc.store",
        "message": "sampled",
        "rollout": "r1",
        "attempt": 2,
        "run": "run1",
        "call": "c1",
        "request": "q1",
        "trace": "a" * 32,
    }
    assert "call" not in line("outside")  # what a task learns stays in it


async def test_what_is_not_known_is_left_out() -> None:
    assert set(line("ready")) == {"time", "level", "logger", "message"}


@pytest.mark.parametrize("text", ["\ud800 half a character", "two\nlines", '"quotes"'])
async def test_any_text_is_one_line_of_json(text: str) -> None:
    assert line("%s", text)["message"] == text


@pytest.mark.parametrize(
    "secret", ["Bearer abc.def", "bearer   sk-1234", "eyJhbGciOiJFZERTQSJ9.eyJzdWIiOiJhIn0.c2lnbmF0dXJl"]
)
async def test_keys_are_masked_whoever_logs_them(secret: str) -> None:
    message = str(line("refused: authorization: %s, again", secret)["message"])
    assert secret.split()[-1].strip(",") not in message
    assert message.startswith("refused: ")


def test_the_operations_guide_lists_every_field() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    listed = set(re.findall(r"^\| `(\w+)` \|", guide.partition("### Logs")[2].partition("###")[0], re.MULTILINE))
    ids = {name for name in Ids.__slots__ if name != "traceparent"}
    assert listed == {"time", "level", "logger", "message", "exception", "trace"} | ids
