"""What the driver asks of a rank, and what a rank answers. No torch here.

A rank reads one ordered stream of `Command`s. `TrainStep` and `Logprobs` are followed by any number of `MicroBatch`es
and one `EndOfBatches`; every other command stands alone. Each command but those two has exactly one result.
"""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from trainer_svc.microbatch import Float32Array, MicroBatch

SESSION = "WHIPPLETREE_RANKS_SESSION"
"""Variable of the ranks' environment that holds what lets them in at the driver; a secret, so no argument."""


class LossKind(StrEnum):
    """How a token's loss is computed."""

    SFT = "sft"
    POLICY = "policy"


@dataclass(frozen=True, slots=True, kw_only=True)
class LossConfig:
    """Settings of the clipped policy gradient; a supervised loss has none."""

    clip_low: float = 0.2  # the ratio is clipped below 1 - clip_low
    clip_high: float = 0.28  # and above 1 + clip_high
    dual_clip: float | None = None  # over 1: bounds the loss of negative advantages by dual_clip * |advantage|

    def __post_init__(self) -> None:
        """Refuses clip ranges that invert the objective."""
        if not 0 <= self.clip_low < 1 or self.clip_high < 0:
            raise ValueError("clip_low must be in [0, 1) and clip_high not negative")
        if self.dual_clip is not None and self.dual_clip <= 1:
            raise ValueError("dual_clip must be over 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """Constants of Adam; learning rate and clipping come with each step."""

    beta1: float = 0.9
    beta2: float = 0.95
    epsilon: float = 1e-8
    weight_decay: float = 0.0  # decoupled, of matrices; biases and norms are never decayed


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadModel:
    """Builds the model and a fresh optimizer from a Hugging Face directory; drops what was loaded before."""

    path: Path
    optimizer: OptimizerSettings = OptimizerSettings()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainStep:
    """One optimizer step over the micro-batches that follow."""

    step: int
    loss: LossKind
    config: LossConfig = LossConfig()
    learning_rate: float
    clip_norm: float = 1.0  # 0: no clipping


@dataclass(frozen=True, slots=True, kw_only=True)
class Logprobs:
    """Log-probabilities of the tokens of the micro-batches that follow, under the present weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndOfBatches:
    """Ends the micro-batches of a TrainStep or Logprobs."""

    micro_batch_count: int | None = None  # how many were sent, checked when given


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveWeights:
    """Writes a Hugging Face directory that inference engines can load."""

    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveCheckpoint:
    """Writes model, optimizer, step and the driver's own bytes; `path.parent/latest` then names it."""

    path: Path
    extra: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadCheckpoint:
    """Restores what SaveCheckpoint wrote; needs a LoadModel of the same architecture before.

    `path` is a checkpoint, or a folder whose `latest` names one.
    """

    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Ends the rank with exit status 0."""


Command = (
    LoadModel | TrainStep | Logprobs | MicroBatch | EndOfBatches | SaveWeights | SaveCheckpoint | LoadCheckpoint | Stop
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelLoaded:
    """The model is ready."""

    parameter_count: int  # of the whole model
    vocabulary_size: int
    maximum_length: int  # positions


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone:
    """Figures of one step over all data-parallel ranks; every rank reports the same."""

    step: int
    loss: float
    gradient_norm: float  # before clipping
    applied: bool  # False: the gradient was not finite and the weights were left alone
    trained_tokens: int  # loss weight not 0
    forward_tokens: int  # all tokens that were computed, without padding
    ratio_deviation: float  # largest |exp(logprob - rollout logprob) - 1| of a trained token
    kl: float  # mean k3 estimate of KL(rollout policy || trained policy) over trained tokens
    clip_fraction: float  # of trained tokens whose gradient the clip removed
    entropy: float  # nats, mean over trained tokens; 0 for a supervised loss
    learning_rate: float
    seconds: float
    tokens_per_second: float  # forward_tokens / seconds


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowLogprobs:
    """Log-probabilities of one sequence."""

    row: str  # the sample's id; empty when the micro-batch named none
    logprobs: Float32Array  # [tokens of the sequence], aligned with the target token: the first is 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LogprobsDone:
    """One entry per sequence of this data-parallel rank's micro-batches, in their order."""

    rows: tuple[RowLogprobs, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsSaved:
    """The Hugging Face directory is complete."""

    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved:
    """The checkpoint is complete and is the latest."""

    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointLoaded:
    """Model and optimizer stand where the checkpoint left them."""

    step: int  # the last step that was trained
    extra: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """The command failed; the rank exits with a status other than 0 after reporting it."""

    message: str


Result = ModelLoaded | StepDone | LogprobsDone | WeightsSaved | CheckpointSaved | CheckpointLoaded | Failed
