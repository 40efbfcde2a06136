"""Settings of the bridge: TOML < `BRIDGE_...` in the environment < argument."""

from typing import Self

from pydantic import Field, model_validator
from pydantic_settings import SettingsConfigDict

from whippletree.settings import AccessSettings, ReplicaSettings, Section, is_loopback


class GenerationSettings(Section):
    """How the gateway is asked."""

    patience: float = 120.0
    """Seconds for which an unavailable gateway or engine is asked again, with the same request id."""
    deadline: float = 3600.0
    """Seconds that one generation may take, holds while weights change included."""


class LimitSettings(Section):
    """How much one request may ask for. All limits, and what is answered beyond them: docs/limits.md."""

    body: int = Field(default=64 << 20, ge=1)
    """Bytes of a body, also when it is decompressed. Envoy's own limit is the same."""
    values: int = Field(default=1_000_000, ge=1)
    """JSON values of a body, commas in its texts included: a value may cost a hundred times its bytes in memory."""
    messages: int = Field(default=10_000, ge=1)
    """Messages of a conversation."""
    tools: int = Field(default=1_000, ge=1)
    """Tools."""
    choices: int = Field(default=16, ge=1)
    """Generations of one prompt, `n`."""


class StreamSettings(Section):
    """How a streamed answer behaves before its first chunk."""

    keep_alive: float = 15.0
    """Seconds between keep-alives, in the dialect's form, while a call waits; 0 = none. The first fixes status 200.
    A harness turns them off for itself by the header `whippletree-keep-alive: off`."""


class DeliverySettings(Section):
    """How the gateway hears that replies were written out."""

    queue: int = 10_000
    """Calls waiting to be reported at most; beyond it they stay unreported."""
    patience: float = 120.0
    """Seconds for which an unavailable gateway is told again."""
    flush: float = 3.0
    """Seconds at most for what is left when the bridge stops."""


class BridgeSettings(ReplicaSettings):
    """openai_bridge: harness dialects in and out."""

    model_config = SettingsConfigDict(env_prefix="BRIDGE_")

    http: str = "127.0.0.1:0"
    """`host:port` of plain HTTP/1.1, to which Envoy sends harnesses' calls; `listen` has the same rpcs over gRPC.
    Port 0 = any free one, printed at start."""
    gateway: str = "127.0.0.1:7010"
    """host:port of the gateway."""
    access: AccessSettings = AccessSettings()
    """Key and TLS towards the gateway."""
    log_level: str = "INFO"
    """DEBUG, INFO, WARNING or ERROR."""
    models_age: float = 5.0
    """Seconds for which the gateway's list of models is believed."""
    generation: GenerationSettings = GenerationSettings()
    limits: LimitSettings = LimitSettings()
    stream: StreamSettings = StreamSettings()
    delivery: DeliverySettings = DeliverySettings()

    @model_validator(mode="after")
    def _http_only_on_loopback(self) -> Self:
        if self.insecure_dev and not is_loopback(self.http):
            raise ValueError(f"insecure_dev: without keys only the loopback may be served, not {self.http}")
        return self
