"""Sampling parameters <-> values."""

from whippletree.v1 import model_call_pb2

from gateway_svc import sampling
from gateway_svc.types import Sampling
from whippletree.errors import InvalidFieldError


def sampling_from_pb(message: model_call_pb2.SamplingParams, field: str) -> Sampling:
    """What is set, checked. Raises InvalidFieldError."""
    found = asked_from_pb(message)
    try:
        sampling.check(found)
    except InvalidFieldError as error:
        raise InvalidFieldError(f"{field}: {error.message}", field=field) from error
    return found


def asked_from_pb(message: model_call_pb2.SamplingParams) -> Sampling:
    """What is set, as it is: what a harness asks for is checked only where it is used."""
    return Sampling(
        temperature=message.temperature if message.HasField("temperature") else None,
        top_p=message.top_p if message.HasField("top_p") else None,
        top_k=message.top_k if message.HasField("top_k") else None,
        max_tokens=message.max_tokens if message.HasField("max_tokens") else None,
        stop=tuple(message.stop),
        seed=message.seed if message.HasField("seed") else None,
    )


def sampling_to_pb(found: Sampling) -> model_call_pb2.SamplingParams:
    """The same as a message; None stays unset."""
    return model_call_pb2.SamplingParams(
        temperature=found.temperature,
        top_p=found.top_p,
        top_k=found.top_k,
        max_tokens=found.max_tokens,
        stop=found.stop,
        seed=found.seed,
    )
