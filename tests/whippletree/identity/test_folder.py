from pathlib import Path

import pytest

from whippletree.identity.folder import (
    LOOK_EVERY,
    SETTLING,
    KeyFolder,
    add_operator,
    add_signing_key,
    created,
    read,
    read_operators,
    revoke_operator,
)
from whippletree.identity.operator_keys import check


class Clock:
    """Seconds that a test moves."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def test_the_first_key_signs_at_once(tmp_path: Path) -> None:
    kid = add_signing_key(tmp_path, now=1_000)
    assert created(kid) == 1_000
    assert read(tmp_path).signer(1_000).kid == kid


def test_a_new_key_verifies_at_once_and_signs_when_every_verifier_knows_it(tmp_path: Path) -> None:
    old, new = add_signing_key(tmp_path, now=1_000), add_signing_key(tmp_path, now=5_000)
    keys = read(tmp_path)
    assert set(keys.public) == {old, new}
    assert keys.signer(5_000 + SETTLING - 1).kid == old
    assert keys.signer(5_000 + SETTLING).kid == new


async def test_a_change_is_seen_without_a_new_start(tmp_path: Path) -> None:
    first, clock = add_signing_key(tmp_path, now=1_000), Clock(1_000)
    folder = KeyFolder(tmp_path, clock)
    key, second = add_operator(tmp_path, "laptop", now=1_000), add_signing_key(tmp_path, now=1_001)
    assert folder.find(second) is None
    clock.now += LOOK_EVERY
    assert folder.find(second) is not None
    assert check(key, folder.keys.operators)
    (tmp_path / "signing" / f"{first}.pem").unlink()
    await folder.refresh()
    assert folder.find(first) is None


async def test_while_a_file_is_broken_what_was_read_before_holds(tmp_path: Path) -> None:
    add_signing_key(tmp_path, now=1_000)
    key = add_operator(tmp_path, "laptop", now=1_000)
    folder = KeyFolder(tmp_path, Clock(1_000))
    whole = (tmp_path / "operators.json").read_text()
    (tmp_path / "operators.json").write_text("[{")
    await folder.refresh()
    assert check(key, folder.keys.operators)
    (tmp_path / "operators.json").write_text("[]")
    await folder.refresh()
    assert not folder.keys.operators
    (tmp_path / "operators.json").write_text(whole)
    await folder.refresh()
    assert check(key, folder.keys.operators)


def test_a_revoked_key_is_gone_and_others_stay(tmp_path: Path) -> None:
    add_operator(tmp_path, "one", now=1)
    add_operator(tmp_path, "two", now=2)
    one, two = read_operators(tmp_path)
    assert revoke_operator(tmp_path, one.key_id)
    assert not revoke_operator(tmp_path, one.key_id)
    assert read_operators(tmp_path) == [two]


def test_only_the_owner_may_read_what_is_secret(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    add_signing_key(folder, now=1)
    add_operator(folder, "one", now=1)
    assert (folder / "signing").stat().st_mode & 0o777 == 0o700
    assert [path.stat().st_mode & 0o777 for path in folder.rglob("*.*")] == [0o600, 0o600]


def test_no_secret_of_an_operator_is_kept(tmp_path: Path) -> None:
    key = add_operator(tmp_path, "one", now=1)
    assert key.rpartition("_")[2] not in (tmp_path / "operators.json").read_text()


@pytest.mark.parametrize("name", ["20261130t000000z-abc.pem", "mine.pem"])
def test_a_file_that_is_no_signing_key_of_ours_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "signing").mkdir()
    (tmp_path / "signing" / name).write_text("no key")
    with pytest.raises(ValueError, match="no signing key of ours"):
        read(tmp_path)


def test_an_empty_folder_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="whippletree keys"):
        KeyFolder(tmp_path, Clock(0))
