"""Paths of the contract to rpcs and their requests."""

from urllib.parse import quote

import pytest
from whippletree.v1 import bridge_pb2, rollout_pb2

from whippletree.errors import InvalidFieldError
from whippletree.http_rules import HttpRules, pattern_of

SERVICES = ("whippletree.v1.AnthropicBridgeService", "whippletree.v1.OpenAIBridgeService")
LONG = "/proxy/rollout/r1/attempt/2/mode/eval"


def asked(verb: str, path: str, data: bytes = b"{}") -> tuple[str, object]:
    """(Method, request) of a path that there is."""
    found = HttpRules(SERVICES).find(verb, path)
    assert found is not None, path
    rule, match = found
    return rule.rpc.rpartition("/")[2], rule.request(match, data, "application/json")


@pytest.mark.parametrize(
    ("verb", "path", "method"),
    [
        ("POST", "/openai/v1/chat/completions", "ChatCompletions"),
        ("POST", "/openai/chat/completions", "ChatCompletions"),
        ("GET", "/openai/v1/models", "ListOpenAIModels"),
        ("GET", "/openai/v1/models/tiny", "GetOpenAIModel"),
        ("POST", "/anthropic/v1/messages", "CreateMessage"),
        ("POST", "/anthropic/v1/messages/count_tokens", "CountMessageTokens"),
        ("GET", "/anthropic/v1/models", "ListAnthropicModels"),
    ],
)
def test_a_path_finds_its_rpc_with_and_without_its_attempt(verb: str, path: str, method: str) -> None:
    assert asked(verb, path)[0] == method
    name, request = asked(verb, LONG + path)
    assert (name, request.rollout, request.attempt, request.mode) == (method, "r1", "2", "eval")  # type: ignore[attr-defined]


def test_the_body_goes_along_as_it_came() -> None:
    _, request = asked("POST", f"{LONG}/openai/deployments/m/chat/completions", b"\xff\x00")
    assert isinstance(request, bridge_pb2.ChatCompletionsRequest)
    assert (request.model, request.body.content_type, request.body.data) == ("m", "application/json", b"\xff\x00")


@pytest.mark.parametrize("name", ["org/name", "a b", "ü", "a%2Fb", "{x}"])
def test_names_are_percent_decoded_once(name: str) -> None:
    for written in (quote(name), quote(name, safe="")):
        _, request = asked("GET", f"/openai/v1/models/{written}")
        assert request.model == name  # type: ignore[attr-defined]


def test_a_name_that_is_not_utf8_is_a_wrong_path() -> None:
    with pytest.raises(InvalidFieldError, match="not UTF-8"):
        asked("GET", "/openai/v1/models/%ff")


@pytest.mark.parametrize(
    ("verb", "path"),
    [
        ("GET", "/openai/v1/chat/completions"),
        ("HEAD", "/openai/v1/models"),
        ("POST", "/openai/v1/chat/completions/"),
        ("POST", "/proxy/rollout//attempt/1/mode/train/openai/v1/chat/completions"),
        ("POST", "/proxy/rollout/a/b/attempt/1/mode/train/openai/v1/chat/completions"),
        ("GET", "/openai/v1/models/"),
        ("POST", "/openaixv1/chat/completions"),
        ("POST", "*"),
        ("POST", ""),
    ],
)
def test_everything_else_is_nothing(verb: str, path: str) -> None:
    assert HttpRules(SERVICES).find(verb, path) is None


def test_a_service_of_json_messages_is_no_matter_of_this() -> None:
    name = rollout_pb2.DESCRIPTOR.services_by_name["RolloutService"].full_name
    with pytest.raises(ValueError, match=r"only google\.api\.HttpBody"):
        HttpRules([name])


@pytest.mark.parametrize("template", ["/a/{b=c/*}", "/a/*", "/a/{b}:cancel"])
def test_templates_that_raw_bodies_have_no_use_for_are_refused(template: str) -> None:
    with pytest.raises(ValueError, match="cannot be matched"):
        pattern_of(template)
