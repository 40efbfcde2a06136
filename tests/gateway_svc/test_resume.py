"""A generation in parts."""

from gateway_svc import resume
from gateway_svc.types import CallId, Finish, ModelName, Question, RolloutId, Sampled, Sampling, Span
from whippletree.tokens import pack_floats, pack_ids, unpack_floats, unpack_ids


def sampled(ids: list[int], *spans: tuple[str, int, int], finish: Finish = Finish.ABORT) -> Sampled:
    return Sampled(
        response=pack_ids(ids),
        logprobs=pack_floats([-token / 8 for token in ids]),
        spans=tuple(Span(weight_version=version, start=start, end=end) for version, start, end in spans),
        finish=finish,
        matched_stop="9" if finish == Finish.STOP else "",
    )


def question(max_tokens: int = 10, stop: tuple[str, ...] = ()) -> Question:
    return Question(
        model=ModelName("m"),
        prompt=pack_ids([1, 2]),
        sampling=Sampling(max_tokens=max_tokens, stop=stop, seed=4),
        rollout_id=RolloutId("a"),
        call_id=CallId("c"),
    )


def ids(found: Sampled) -> list[int]:
    count: list[int] = unpack_ids(found.response).tolist()
    assert unpack_floats(found.logprobs).tolist() == [-token / 8 for token in count], "each keeps its own"
    assert [span.start for span in found.spans] + [len(count)] == [0] + [span.end for span in found.spans] or not count
    return count


def test_parts_are_joined_with_their_weight_versions_and_the_last_ones_end() -> None:
    first, second = sampled([3, 4], ("v1", 0, 2)), sampled([5, 9], ("v2", 0, 2), finish=Finish.STOP)
    whole = resume.joined(resume.joined(resume.NOTHING, first), second)
    assert ids(whole) == [3, 4, 5, 9]
    assert [(span.weight_version, span.start, span.end) for span in whole.spans] == [("v1", 0, 2), ("v2", 2, 4)]
    assert (whole.finish, whole.matched_stop) == (Finish.STOP, "9")


def test_parts_by_equal_weights_are_one_span() -> None:
    whole = resume.joined(sampled([3], ("v1", 0, 1)), sampled([4, 5], ("v1", 0, 2)))
    assert whole.spans == (Span(weight_version="v1", start=0, end=3),)


def test_the_rest_of_a_question_holds_what_was_sampled() -> None:
    left = resume.rest(question(max_tokens=10), sampled([3, 4, 5], ("v1", 0, 3)))
    assert unpack_ids(left.prompt).tolist() == [1, 2, 3, 4, 5]
    assert left.sampling == Sampling(max_tokens=7, stop=(), seed=4)
    assert resume.rest(question(), resume.NOTHING) == question()


def test_with_a_stop_string_that_could_lie_on_both_sides_all_is_sampled_anew() -> None:
    part = sampled([3, 4, 5, 6], ("v1", 0, 1), ("v2", 1, 4))
    assert resume.kept(part, ()) == part
    assert resume.kept(part, ("x",)) == part, "one byte cannot lie on both sides"
    assert ids(resume.kept(part, ("x", "END"))) == []
    assert ids(resume.kept(part, ("é",))) == [], "bytes count, not characters"


def test_it_is_over_when_nothing_can_be_added() -> None:
    part = sampled([3, 4, 5], ("v1", 0, 3))
    assert not resume.over(question(max_tokens=4), part, context_length=100)
    assert resume.over(question(max_tokens=3), part, context_length=100)
    assert resume.over(question(max_tokens=9), part, context_length=11), "2 + 3 tokens leave 6, an engine wants 7"
    assert not resume.over(question(max_tokens=9), part, context_length=12)
    assert not resume.over(question(max_tokens=5), resume.NOTHING, context_length=7), "what never began is not over"
