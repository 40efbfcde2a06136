import pytest

from whippletree.errors import PermissionDeniedError, UnauthenticatedError
from whippletree.identity.claims import Claims, Scope, presented, require

CLAIMS = Claims(
    rollout="a",
    ordinal=1,
    attempt=2,
    mode="train",
    run="r",
    scopes=frozenset({Scope.INFER, Scope.NOTE}),
    issued=0,
    expires=10,
)


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer key"},
        {"authorization": "bearer  key "},
        {"x-api-key": "key"},
        {"x-goog-api-key": "key"},
        {"api-key": "key"},
        {"api-key": "other", "authorization": "Bearer key"},
        {"x-api-key": "other", "authorization": "Bearer key"},
        {"authorization": "Basic abc", "x-api-key": "key"},
    ],
    ids=str,
)
def test_a_key_is_found_where_harnesses_put_it(headers: dict[str, str]) -> None:
    assert presented([("user-agent", "curl"), *headers.items()]) == "key"


@pytest.mark.parametrize("headers", [[], [("authorization", "Basic abc")], [("authorization-bin", b"key")]], ids=str)
def test_no_key_is_unauthenticated(headers: list[tuple[str, str | bytes]]) -> None:
    with pytest.raises(UnauthenticatedError):
        presented(headers)


def test_a_token_allows_what_it_names() -> None:
    require(CLAIMS, Scope.INFER, rollout="a", attempt=2, mode="train")
    require(CLAIMS, Scope.NOTE, rollout="a")


@pytest.mark.parametrize(
    ("asked", "needs"),
    [
        ({"scope": Scope.REWARD, "rollout": "a"}, "reward"),
        ({"scope": Scope.NOTE, "rollout": "b"}, "rollout"),
        ({"scope": Scope.NOTE, "rollout": ""}, "rollout"),
        ({"scope": Scope.NOTE, "rollout": "a", "attempt": 1}, "attempt"),
        ({"scope": Scope.NOTE, "rollout": "a", "attempt": 0}, "attempt"),
        ({"scope": Scope.INFER, "rollout": "a", "attempt": 2, "mode": "eval"}, "mode"),
        ({"scope": Scope.INFER, "rollout": "a", "attempt": 2, "mode": ""}, "mode"),
    ],
    ids=str,
)
def test_a_token_allows_nothing_else(asked: dict[str, object], needs: str) -> None:
    scope = asked.pop("scope")
    with pytest.raises(PermissionDeniedError) as caught:
        require(CLAIMS, scope, **asked)  # type: ignore[arg-type]
    assert caught.value.metadata["needs"] == needs
