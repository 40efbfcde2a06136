"""Settings of a rank: how the model is laid out over processes, and what its layers are made of."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How processes share the model; data parallelism takes what is left of the world size."""

    tensor: int = 1
    pipeline: int = 1
    context: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSettings:
    """Everything a rank is started with."""

    layout: Layout = Layout()
    seed: int = 1234
    layer_spec: str = "local"  # local: own attention core, any device; te: TransformerEngine, CUDA only
