"""A generation in parts: what stays of an interrupted one, what is asked for next, and the whole.

In: what was asked, and what an engine had sampled when it was interrupted. Out: the rest of the question, and one
response in which every token keeps its log-probability and its weight version.
"""

from dataclasses import replace

from gateway_svc.engines.client import RESERVED
from gateway_svc.types import Finish, Question, Sampled, Span

NOTHING = Sampled(response=b"", logprobs=b"", spans=(), finish=Finish.ABORT, matched_stop="")
"""What there is of a response before it began."""


def kept(part: Sampled, stop: tuple[str, ...]) -> Sampled:
    """What of an interrupted part may be continued.

    The next engine looks for stop strings in what it samples itself. One that begins in what was kept and ends in
    what comes would be missed, wherever the cut is: all is sampled anew, unless no stop string has more than a byte.
    """
    return part if all(len(text.encode()) < 2 for text in stop) else first(part, 0)


def first(part: Sampled, count: int) -> Sampled:
    """The first `count` tokens."""
    spans = tuple(replace(span, end=min(span.end, count)) for span in part.spans if span.start < count)
    return replace(part, response=part.response[: 4 * count], logprobs=part.logprobs[: 4 * count], spans=spans)


def joined(before: Sampled, after: Sampled) -> Sampled:
    """Both, one after the other; it ends as the second does."""
    spans = list(before.spans)
    for span in after.spans:
        moved = replace(span, start=span.start + before.count, end=span.end + before.count)
        if spans and spans[-1].weight_version == moved.weight_version:
            spans[-1] = Span(weight_version=moved.weight_version, start=spans[-1].start, end=moved.end)
        else:
            spans.append(moved)
    return replace(
        after,
        response=before.response + after.response,
        logprobs=before.logprobs + after.logprobs,
        spans=tuple(spans),
    )


def rest(question: Question, before: Sampled) -> Question:
    """What is left to ask."""
    if not before.count:
        return question
    assert question.sampling.max_tokens is not None
    left = replace(question.sampling, max_tokens=question.sampling.max_tokens - before.count)
    return replace(question, prompt=question.prompt + before.response, sampling=left)


def over(question: Question, before: Sampled, context_length: int) -> bool:
    """Whether nothing can be added: all tokens that were asked for are there, or the context has too little room left
    for an engine to go on."""
    assert question.sampling.max_tokens is not None
    room = context_length - len(question.prompt) // 4 - before.count
    return before.count > 0 and (before.count >= question.sampling.max_tokens or room < RESERVED)
