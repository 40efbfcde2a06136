"""Where work goes: whole rollouts to optimizer steps, samples to ranks, a rank's samples to micro-batches.

Pure: numbers in, indices out. The loss weights are fixed before (`weights.py`), so nothing decided here changes the
gradient. D data-parallel ranks, N samples.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


class SampleTooLongError(ValueError):
    """A sample is longer than the model's positions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CostModel:
    """Cost of L tokens: linear * L + quadratic * L^2, in floating-point operations of one forward pass."""

    linear: float
    quadratic: float

    def __call__(self, length: int) -> float:
        """Cost of one sequence."""
        return self.linear * length + self.quadratic * length * length


def cost_model(architecture: Mapping[str, int]) -> CostModel:
    """From a Hugging Face config.json of the Llama/Qwen kind. KeyError where a size is missing."""
    hidden, layers, heads = (architecture[key] for key in ("hidden_size", "num_hidden_layers", "num_attention_heads"))
    head = architecture.get("head_dim") or hidden // heads
    queries, pairs = heads * head, 2 * architecture.get("num_key_value_heads", heads) * head
    matrices = hidden * (2 * queries + pairs) + 3 * hidden * architecture["intermediate_size"]
    return CostModel(
        linear=2.0 * (layers * matrices + hidden * architecture["vocab_size"]),
        quadratic=2.0 * layers * queries,  # QK^T and AV, 2 operations each, half of the pairs by causality
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Samples by rank and micro-batch: `ranks[d][m]` are indices into the samples that were given."""

    ranks: tuple[tuple[tuple[int, ...], ...], ...]
    makespan: float  # cost of the busiest rank
    lower_bound: float  # no placement of whole samples is below this

    @property
    def excess(self) -> float:
        """Makespan over its lower bound; 1 = perfect."""
        return self.makespan / self.lower_bound if self.lower_bound else 1.0

    @property
    def micro_batch_count(self) -> int:
        """Over all ranks."""
        return sum(len(rank) for rank in self.ranks)


def plan(
    lengths: Sequence[int],
    *,
    ranks: int,
    token_cap: int,
    cost: CostModel,
    maximum_length: int,
    equal_counts: bool = False,
) -> Plan:
    """Place samples of `lengths` tokens on `ranks` data-parallel ranks.

    A micro-batch holds at most `token_cap` tokens; a longer sample gets one of its own. No micro-batch is empty, unless
    `equal_counts` (a collective in every micro-batch) has to fill up. A rank without samples has no micro-batch. Raises
    SampleTooLongError where a sample has more than `maximum_length` tokens.
    """
    if ranks < 1 or token_cap < 1:
        raise ValueError("at least one rank and one token per micro-batch")
    if too_long := [length for length in lengths if length > maximum_length]:
        raise SampleTooLongError(
            f"{len(too_long)} samples, the longest {max(too_long)}, exceed {maximum_length} tokens"
        )
    costs = [cost(length) for length in lengths]
    placed = balance(costs, ranks)
    batches = [micro_batches(rank, lengths, token_cap) for rank in placed]
    if equal_counts:
        most = max(len(rank) for rank in batches)
        batches = [[*rank, *[()] * (most - len(rank))] for rank in batches]
    return Plan(
        ranks=tuple(tuple(rank) for rank in batches),
        makespan=max(sum(costs[index] for index in rank) for rank in placed),
        lower_bound=lower_bound(costs, ranks),
    )


def optimizer_steps(costs: Sequence[float], count: int) -> list[list[int]]:
    """Whole rollouts [R] by cost -> at most `count` optimizer steps of like cost, none empty, each ascending."""
    return [sorted(step) for step in balance(costs, count) if step]


def lower_bound(costs: Sequence[float], bins: int) -> float:
    """The mean, the largest, and (with more items than bins) the two that must share: whichever is most."""
    ordered = sorted(costs, reverse=True)
    shared = ordered[bins - 1] + ordered[bins] if len(ordered) > bins else 0.0
    return max([sum(ordered) / bins, shared, *ordered[:1]])


def balance(costs: Sequence[float], bins: int) -> list[list[int]]:
    """Longest processing time first, then moves and swaps out of the fullest bin while they lower it."""
    heap = [(0.0, index) for index in range(bins)]
    placed: list[list[int]] = [[] for _ in range(bins)]
    for item in sorted(range(len(costs)), key=lambda index: (-costs[index], index)):
        load, target = heapq.heappop(heap)
        placed[target].append(item)
        heapq.heappush(heap, (load + costs[item], target))
    loads = [sum(costs[item] for item in rank) for rank in placed]
    for _ in range(4 * bins):
        if not _improve(placed, loads, costs):
            break
    return placed


def _improve(placed: list[list[int]], loads: list[float], costs: Sequence[float]) -> bool:
    """One move or swap between the fullest and the emptiest bin; False where none lowers the fuller of the two."""
    full = max(range(len(loads)), key=loads.__getitem__)
    empty = min(range(len(loads)), key=loads.__getitem__)
    gap = loads[full] - loads[empty]
    best, choice = 0.0, None
    for item in placed[full]:
        for other in (None, *placed[empty]):
            moved = costs[item] - (0.0 if other is None else costs[other])
            gain = min(moved, gap - moved)  # by how much the fuller of both falls
            if gain > best + 1e-9 * gap:
                best, choice = gain, (item, other, moved)
    if choice is None:
        return False
    item, other, moved = choice
    placed[full].remove(item)
    placed[empty].append(item)
    if other is not None:
        placed[empty].remove(other)
        placed[full].append(other)
    loads[full] -= moved
    loads[empty] += moved
    return True


def micro_batches(items: Sequence[int], lengths: Sequence[int], token_cap: int) -> list[tuple[int, ...]]:
    """First fit, longest first: few micro-batches, none over the cap but for a single longer sample."""
    bins: list[list[int]] = []
    room: list[int] = []
    for item in sorted(items, key=lambda index: (-lengths[index], index)):
        fitting = next((index for index, free in enumerate(room) if lengths[item] <= free), None)
        if fitting is None:
            bins.append([item])
            room.append(token_cap - lengths[item])
        else:
            bins[fitting].append(item)
            room[fitting] -= lengths[item]
    return [tuple(batch) for batch in bins]
