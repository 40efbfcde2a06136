"""Where engines may be."""

import pytest
from pydantic import ValidationError

from gateway_svc.engines.allowed import LOOPBACK, check, pattern, reachable
from gateway_svc.settings import EngineSettings
from whippletree.errors import InvalidFieldError

DEFAULT = tuple(pattern(text) for text in LOOPBACK)


def allows(url: str, *patterns: str) -> bool:
    try:
        check(url, [pattern(text) for text in patterns] if patterns else DEFAULT, "engine.address")
    except InvalidFieldError:
        return False
    return True


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:30000",
        "http://localhost:1",
        "https://127.1.2.3",
        "http://[::1]:8000",
        "http://LOCALHOST./base",
    ],
)
def test_this_machine_is_allowed_by_default(url: str) -> None:
    assert allows(url)


@pytest.mark.parametrize(
    "url",
    [
        "http://192.0.2.7:30000",
        "http://example.com",
        "http://localhost.example.com",
        "http://127.0.0.1.example.com",
        "http://[2001:db8::1]",
        "http://2130706433",
        "http://0x7f000001:80",
        "http://127.1",
    ],
)
def test_everything_else_is_not(url: str) -> None:
    assert not allows(url)


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "fe80::1",
        "0.0.0.0",
        "::",
        "224.0.0.1",
        "ff02::1",
        "100.100.100.200",
        "fd00:ec2::254",
        "::ffff:169.254.169.254",
        "::169.254.169.254",
        "64:ff9b::169.254.169.254",
        "64:ff9b::100.100.100.200",
        "2002:a9fe:a9fe::1",
        "2002:6464:64c8::1",
    ],
)
def test_where_metadata_is_served_and_its_like_are_refused_whatever_the_patterns_say(address: str) -> None:
    url = f"http://[{address}]:80" if ":" in address else f"http://{address}:80"
    assert not allows(url, "0.0.0.0/0", "[::]/0")
    for patterns in (["0.0.0.0/0", "[::]/0"], ["*.engines.test"]):
        assert not reachable(address, 80, [pattern(text) for text in patterns])


@pytest.mark.parametrize("address", ["::1", "64:ff9b::192.0.2.7", "2002:c000:207::1", "::192.0.2.7", "fd00::1"])
def test_the_neighbours_of_what_is_refused_may_be_allowed(address: str) -> None:
    assert allows(f"http://[{address}]", "[::]/0")
    assert reachable(address, 80, [pattern("*.engines.test")])


@pytest.mark.parametrize(
    "url",
    [
        "ftp://127.0.0.1",
        "http://",
        "127.0.0.1:30000",
        "http://127.0.0.1:99999",
        "http://user:word@127.0.0.1",
        "http://127.0.0.1/?a=b",
        "http://127.0.0.1/#a",
        "http://127.0.0.1 /",
        "http://127.0.0.1\r\nhost: x",
        "http://127.0.0.1@example.com",
        "http://example.com\\@127.0.0.1",
    ],
)
def test_what_is_no_plain_base_url_is_refused(url: str) -> None:
    assert not allows(url)


@pytest.mark.parametrize("label", ["a" * 64, "", "a.", "é", "a%41"], ids=["long", "empty", "end", "letter", "escape"])
def test_what_can_be_no_name_is_refused_where_a_pattern_would_allow_it(label: str) -> None:
    assert allows(f"http://{'a' * 63}.engines.test", "*.engines.test")
    with pytest.raises(InvalidFieldError, match="neither an address nor a name"):
        check(f"http://{label}.engines.test", [pattern("*.engines.test")], "engine.address")


@pytest.mark.parametrize(
    ("patterns", "url", "allowed"),
    [
        (["192.0.2.0/24"], "http://192.0.2.7:30000", True),
        (["192.0.2.0/24"], "http://192.0.3.7:30000", False),
        (["192.0.2.7:30000"], "http://192.0.2.7:30000", True),
        (["192.0.2.7:30000"], "http://192.0.2.7:30001", False),
        (["192.0.2.0/24:30000-30010"], "http://192.0.2.1:30010", True),
        (["192.0.2.0/24:30000-30010"], "http://192.0.2.1:30011", False),
        (["[2001:db8::]/32:8000"], "http://[2001:db8::5]:8000", True),
        (["[2001:db8::5]:8000"], "http://[2001:db8::6]:8000", False),
        (["engine-1.test"], "http://Engine-1.test:1", True),
        (["*.engines.test"], "http://a.engines.test:1", True),
        (["*.engines.test"], "http://engines.test:1", False),
        (["*.engines.test"], "http://a.b.engines.test:1", False),
        (["*.engines.test"], "http://engines.test.example.com", False),
        (["a.test:80", "b.test"], "http://a.test", True),
        (["a.test:443"], "https://a.test", True),
    ],
)
def test_patterns(patterns: list[str], url: str, allowed: bool) -> None:
    assert allows(url, *patterns) == allowed


@pytest.mark.parametrize("text", ["", "http://a", "a:b", "a:0", "a:9-8", "a:70000", "192.0.2.1/99", "a b", "[::1"])
def test_a_malformed_pattern_ends_the_start(text: str) -> None:
    with pytest.raises(ValidationError):
        EngineSettings(allowed=(text,))


def test_the_refusal_names_the_setting() -> None:
    with pytest.raises(InvalidFieldError, match=r"engine\.allowed does not allow 192\.0\.2\.7:80"):
        check("http://192.0.2.7", DEFAULT, "engine.address")


@pytest.mark.parametrize(
    ("patterns", "address", "allowed"),
    [
        (LOOPBACK, "127.0.0.1", True),
        (LOOPBACK, "::1", True),
        (LOOPBACK, "::ffff:127.0.0.1", True),
        (LOOPBACK, "192.0.2.7", False),
        (["192.0.2.0/24:30000", "*.engines.test"], "192.0.2.7", True),
        (["192.0.2.0/24:30001", "*.engines.test"], "192.0.2.7", False),
        (["192.0.2.0/24", "*.engines.test"], "127.0.0.1", False),
        (["*.engines.test"], "192.0.2.7", True),
        (["*.engines.test"], "169.254.169.254", False),
        (["*.engines.test"], "::ffff:169.254.169.254", False),
        (["*.engines.test"], "fe80::1%1", False),
        (["0.0.0.0/0"], "169.254.169.254", False),
    ],
)
def test_what_a_name_leads_to_must_be_in_a_network_where_there_are_networks(
    patterns: list[str], address: str, allowed: bool
) -> None:
    assert reachable(address, 30000, [pattern(text) for text in patterns]) == allowed
