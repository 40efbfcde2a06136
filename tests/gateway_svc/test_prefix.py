"""The longest exact prefix, against the plain definition."""

import random
from hashlib import blake2b

from gateway_svc.prefix import DIGEST_SIZE, Hashed, Match, Sequence, digest, hashed, longest
from whippletree.tokens import pack_ids


def sequence(key: int, ids: list[int]) -> Sequence:
    return Sequence(key=key, call_id=f"c{key}", length=len(ids), digest=digest(pack_ids(ids), b""))


def read(ids: list[int], known: int) -> Hashed:
    """A prompt whose first `known` tokens were read before."""
    before = blake2b(pack_ids(ids[:known]), digest_size=DIGEST_SIZE)
    return hashed(pack_ids(ids), 4 * known, before)


def test_nothing_recorded_is_no_parent() -> None:
    assert longest(hashed(pack_ids([1, 2])), []) == Match(parent=None, shared=0)


def test_the_longest_of_several_prefixes_is_chosen() -> None:
    recorded = [sequence(1, [1, 2]), sequence(2, [1, 2, 3]), sequence(3, [1])]
    assert longest(hashed(pack_ids([1, 2, 3, 4])), recorded) == Match(parent=recorded[1], shared=3)


def test_a_sequence_that_differs_in_one_token_is_none() -> None:
    assert longest(hashed(pack_ids([1, 2, 4, 4])), [sequence(1, [1, 2, 3])]).parent is None


def test_a_sequence_longer_than_the_prompt_is_none() -> None:
    assert longest(hashed(pack_ids([1, 2])), [sequence(1, [1, 2, 3])]).parent is None


def test_the_whole_prompt_may_be_recorded() -> None:
    assert longest(hashed(pack_ids([1, 2])), [sequence(1, [1, 2])]).shared == 2


def test_of_equal_sequences_the_newest_is_chosen() -> None:
    recorded = [sequence(2, [1, 2]), sequence(1, [1, 2])]
    assert longest(hashed(pack_ids([1, 2, 3])), recorded).parent == recorded[0]


def test_prompt_and_response_together_make_the_digest() -> None:
    assert digest(pack_ids([1, 2]), pack_ids([3])) == digest(pack_ids([1]), pack_ids([2, 3]))


def test_it_agrees_with_the_plain_definition_on_random_trees() -> None:
    chance = random.Random(7)
    for _ in range(200):
        texts = [[chance.randrange(2) for _ in range(chance.randrange(1, 9))] for _ in range(12)]
        prompt = [chance.randrange(2) for _ in range(9)]
        found = longest(read(prompt, chance.randrange(10)), [sequence(key, ids) for key, ids in enumerate(texts)])
        prefixes = [(len(ids), key) for key, ids in enumerate(texts) if prompt[: len(ids)] == ids]
        expected = max(prefixes, default=(0, None))
        assert (found.shared, found.parent.key if found.parent else None) == expected


def test_the_digest_of_a_prompt_that_was_read_in_parts_is_that_of_the_whole() -> None:
    ids = list(range(100))
    for known in (0, 1, 99, 100):
        assert read(ids, known).digest == digest(pack_ids(ids), b"")
        assert read(ids, known).followed_by(pack_ids([7])).digest() == digest(pack_ids(ids), pack_ids([7]))


def test_a_sequence_shorter_than_what_was_read_before_is_still_found() -> None:
    recorded = [sequence(1, [1]), sequence(2, [1, 2, 9])]
    assert longest(read([1, 2, 3, 4], 3), recorded).parent == recorded[0]
