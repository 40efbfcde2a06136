"""What the gateway wants of an engine, whatever it speaks."""

from collections.abc import Mapping
from typing import Protocol

from gateway_svc.types import EngineKind, Sampled, Sampling

RESERVED = 7
"""Tokens of the context that a prompt must leave: SGLang refuses one that leaves fewer, vLLM takes one."""


class EngineError(Exception):
    """An engine gave no good answer; `refused` = it will not whatever is tried."""

    def __init__(self, message: str, *, refused: bool = False) -> None:
        super().__init__(message)
        self.refused = refused


class EngineClient(Protocol):
    """One kind of engine, by base URL. Every method raises EngineError."""

    async def generate(
        self, address: str, rid: str, prompt: bytes, sampling: Sampling, vocabulary_size: int
    ) -> Sampled:
        """Sample one response to packed prompt ids; when cancelled, the generation is aborted at the engine.

        One that was aborted answers with what it had, and finish ABORT. ValueError where the answer does not agree
        with itself.
        """

    async def abort(self, address: str, rid: str) -> None:
        """End a generation; one that is not there, or an engine that cannot be reached, is left."""

    async def check(self, address: str) -> None:
        """Return where the engine is ready to serve."""

    async def weight_version(self, address: str) -> str:
        """The label of the weights that the engine has."""

    async def load_weights(self, address: str, path: str, weight_version: str) -> None:
        """Load weights from a directory under a new label, and drop the prefix cache, which belongs to the old ones."""


Clients = Mapping[EngineKind, EngineClient]
