import pytest

from whippletree.errors import UnauthenticatedError
from whippletree.identity.operator_keys import check, new_key

KEY, KEPT = new_key("laptop", now=5)
KNOWN = {KEPT.key_id: KEPT}


def test_a_key_is_recognised_by_what_is_kept_of_it() -> None:
    assert check(KEY, KNOWN).key_id == KEPT.key_id
    assert KEY.removeprefix(f"wt_{KEPT.key_id}_") not in repr(KEPT)


def test_several_keys_are_valid_at_once() -> None:
    other, kept = new_key("other", now=6)
    known = KNOWN | {kept.key_id: kept}
    assert {check(key, known).key_id for key in (KEY, other)} == {KEPT.key_id, kept.key_id}


@pytest.mark.parametrize(
    "key",
    [
        "",
        "wt_",
        KEY[:-1],
        KEY + "x",
        KEY.swapcase(),
        f"wt_00000000_{KEY[12:]}",
        f"wt_{KEPT.key_id}_{'A' * 43}",
        "é\ud800",
    ],
    ids=["empty", "prefix", "short", "long", "case", "other id", "other secret", "no ascii"],
)
def test_anything_else_is_refused_and_not_repeated(key: str) -> None:
    with pytest.raises(UnauthenticatedError) as caught:
        check(key, KNOWN)
    assert KEY[12:] not in str(caught.value)
