"""Which weights sampled which part of a response, from what the engine says.

In: SGLang's `meta_info`. Out: spans that cover [0, R) in order, neighbours merged; ValueError where they do not.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from gateway_svc.types import Span


def spans(meta: Mapping[str, Any], count: int) -> tuple[Span, ...]:
    """Spans of a response of `count` tokens. Without `weight_versions` one label holds for all of it."""
    if count == 0:
        return ()
    coded = meta.get("weight_versions")
    if not coded:
        label = meta.get("weight_version")
        if not isinstance(label, str) or not label:
            raise ValueError("the engine names no weight version")
        return (Span(weight_version=label, start=0, end=count),)
    found: list[Span] = []
    position = 0
    for item in coded:
        span = Span(weight_version=str(item["version"]), start=int(item["start"]), end=int(item["end"]))
        if span.start != position or span.end < span.start:
            raise ValueError(f"weight version spans leave a gap at token {position}")
        position = span.end
        if found and found[-1].weight_version == span.weight_version:
            found[-1] = Span(weight_version=span.weight_version, start=found[-1].start, end=span.end)
        elif span.end > span.start:
            found.append(span)
    if position != count:
        raise ValueError(f"weight version spans cover {position} of {count} tokens")
    return tuple(found)


def agree(found: Sequence[Span], expected: str) -> bool:
    """Whether all tokens were sampled by the expected weights; an empty expectation agrees with any."""
    return not expected or all(span.weight_version == expected for span in found)
