"""Files of rollout inputs and demonstrations, and the order in which they are taken."""

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trainer_svc.types import Mask
from whippletree.tokens import TokenIds

Input = Mapping[str, object]


class DataError(Exception):
    """A data file does not fit; the message names file and line, for people."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Demonstration:
    """A conversation to imitate. The mask's first entry is False: nothing predicts the first token."""

    token_ids: TokenIds  # [T]
    mask: Mask  # [T] True where the token is learned


def read_inputs(path: Path) -> list[Input]:
    """One JSON object a line. Raises DataError."""
    return [value for _, value in _lines(path)]


def read_demonstrations(path: Path) -> list[Demonstration]:
    """One JSON object a line with `token_ids` [T] and `loss_mask` [T]. Raises DataError."""
    found = []
    for number, value in _lines(path):
        ids, mask = value.get("token_ids"), value.get("loss_mask")
        if not isinstance(ids, list) or not isinstance(mask, list) or len(ids) != len(mask) or not any(mask[1:]):
            raise DataError(f"{path}:{number}: token_ids and loss_mask must be equally long, and something be learned")
        learned = np.asarray(mask, np.bool_)
        learned[0] = False
        found.append(Demonstration(token_ids=np.asarray(ids, np.int32), mask=learned))
    return found


def take(size: int, seed: int, position: int, count: int) -> list[int]:
    """The next `count` of `size` entries: epoch after epoch, each in an order of its own. ValueError for size 0."""
    if size < 1:
        raise ValueError("no data")
    chosen: list[int] = []
    while len(chosen) < count:
        epoch, offset = divmod(position + len(chosen), size)
        order = list(range(size))
        random.Random(f"{seed}/{epoch}").shuffle(order)
        chosen += order[offset : offset + count - len(chosen)]
    return chosen


def _lines(path: Path) -> list[tuple[int, dict[str, object]]]:
    """(line number, object) of every line that is not blank."""
    found = []
    for number, text in enumerate(path.read_text().splitlines(), start=1):
        if not text.strip():
            continue
        try:
            value = json.loads(text)
        except ValueError as error:
            raise DataError(f"{path}:{number}: {error}") from error
        if not isinstance(value, dict):
            raise DataError(f"{path}:{number}: expected a JSON object")
        found.append((number, value))
    if not found:
        raise DataError(f"{path}: holds nothing")
    return found
