import json

import pytest

from openai_bridge.dialects.openai_chat import OpenAIChat
from openai_bridge.errors import failure
from whippletree import errors


@pytest.mark.parametrize(
    ("error", "status", "code", "retry"),
    [
        (errors.InvalidFieldError("m", field="n"), 400, "invalid_value", "false"),
        (errors.NotFoundError("m", name="rollouts/x"), 404, "not_found", "false"),
        (errors.NotFoundError("m", name="models/x"), 404, "model_not_found", "false"),
        (errors.StaleAttemptError("m"), 400, "stale_attempt", "false"),
        (errors.RolloutEndedError("m"), 400, "rollout_ended", "false"),
        (errors.ContextLengthExceededError("m"), 400, "context_length_exceeded", "false"),
        (errors.HeldTooLongError("m"), 503, "held_too_long", "true"),
        (errors.OverloadedError("m"), 429, "rate_limit_exceeded", "true"),
        (errors.StoreFullError("m"), 503, "store_full", "true"),
        (errors.EngineUnavailableError("m"), 503, "engine_unavailable", "true"),
        (errors.ShuttingDownError("m"), 503, "shutting_down", "true"),
        (errors.ServiceUnavailableError("m"), 503, "shutting_down", "true"),
        (errors.DeadlineError("m"), 504, "timeout", "false"),
        (errors.InternalError("secret"), 500, "internal_error", "false"),
        (errors.TokenOutOfVocabularyError("secret"), 500, "internal_error", "false"),
    ],
)
def test_each_reason_has_its_status_code_and_retry(
    error: errors.WhippletreeError, status: int, code: str, retry: str
) -> None:
    answer = failure(error)
    told = json.loads(OpenAIChat().error_body(answer))["error"]
    assert (answer.status, told["code"], answer.headers["x-should-retry"]) == (status, code, retry)
    assert told.keys() == {"message", "type", "param", "code"}
    assert ("retry-after" in answer.headers) == (retry == "true")
    assert "secret" not in told["message"]


def test_retry_after_is_what_the_gateway_said() -> None:
    assert failure(errors.OverloadedError("m", retry_after=2.4)).headers["retry-after"] == "3"


def test_overflow_is_told_in_the_words_that_libraries_look_for() -> None:
    error = errors.ContextLengthExceededError("m", prompt_tokens=513, context_length=512)
    message = json.loads(OpenAIChat().error_body(failure(error)))["error"]["message"]
    assert "maximum context length is 512 tokens" in message
    assert "513" in message
