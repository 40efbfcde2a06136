"""Short ways to write down calls and samples."""

from collections.abc import Sequence

import numpy as np

from trainer_svc.types import Call, CallId, Delivery, Finish, RolloutId, Sample

ROLLOUT = RolloutId("r-1")


def call(
    sequence: int,
    prompt: Sequence[int],
    response: Sequence[int],
    *,
    logprobs: Sequence[float] | None = None,
    delivery: Delivery = Delivery.DELIVERED,
    finish: Finish = Finish.STOP,
) -> Call:
    """A call whose log-probabilities default to -sequence."""
    values = [-float(sequence)] * len(response) if logprobs is None else logprobs
    return Call(
        call_id=CallId(f"c{sequence}"),
        model="policy",
        sequence=sequence,
        prompt=np.asarray(prompt, np.int32),
        response=np.asarray(response, np.int32),
        logprobs=np.asarray(values, np.float32),
        finish=finish,
        delivery=delivery,
        weight_versions=("v0",),
    )


def sample(rollout: str, index: int, prompt_length: int, trained: int, *, first_token: int = 1) -> Sample:
    """A sample of one prompt and one response with tokens counting up."""
    length = prompt_length + trained
    return Sample(
        rollout_id=RolloutId(rollout),
        index=index,
        token_ids=np.arange(first_token, first_token + length, dtype=np.int32),
        mask=np.arange(length) >= prompt_length,
        logprobs=np.where(np.arange(length) >= prompt_length, -0.5, 0.0).astype(np.float32),
    )
