"""Hugging Face `config.json` of a dense Qwen2 or Qwen3 -> megatron's GPTModel."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import (
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
)
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.transformer_config import TransformerConfig

from trainer_svc.megatron.attention import PackedCausalAttention
from trainer_svc.megatron.device import Device, config_flags
from trainer_svc.megatron.layers import RmsNorm, SwiGlu
from trainer_svc.megatron.settings import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """The shape of a dense decoder, read from its `config.json`."""

    model_type: str  # qwen2 | qwen3
    vocabulary_size: int
    hidden_size: int
    intermediate_size: int
    layer_count: int
    head_count: int
    key_value_head_count: int
    head_size: int
    rotary_base: float
    norm_epsilon: float
    maximum_length: int
    tied: bool  # embedding and output layer share their weights
    qkv_bias: bool
    qk_norm: bool

    @property
    def parameter_count(self) -> int:
        """Parameters of the whole model; a tied output layer counts once."""
        width, head = self.hidden_size, self.head_size
        queries, keys = self.head_count * head, self.key_value_head_count * head
        attention = width * (2 * queries + 2 * keys) + (queries + 2 * keys) * self.qkv_bias + 2 * head * self.qk_norm
        layer = attention + 3 * width * self.intermediate_size + 2 * width
        return self.layer_count * layer + width + self.vocabulary_size * width * (1 if self.tied else 2)


def read_architecture(directory: Path) -> Architecture:
    """Reads `config.json`. Raises ValueError for a model this backend does not compute exactly."""
    config: dict[str, Any] = json.loads((directory / "config.json").read_text())
    model_type = config.get("model_type")
    if model_type not in ("qwen2", "qwen3"):
        raise ValueError(f"model type {model_type!r} is not supported; supported are qwen2 and qwen3")
    rotary = config.get("rope_parameters") or config.get("rope_scaling") or {}
    kind = rotary.get("rope_type", rotary.get("type", "default"))
    if kind != "default":
        raise ValueError(f"rotary positions of type {kind!r} are not supported")
    if config.get("use_sliding_window"):
        raise ValueError("sliding window attention is not supported")
    if config.get("hidden_act", "silu") != "silu":
        raise ValueError(f"activation {config['hidden_act']!r} is not supported")
    if model_type == "qwen3" and config.get("attention_bias"):
        raise ValueError("attention_bias is not supported: it also puts a bias on the output projection")
    heads = config["num_attention_heads"]
    return Architecture(
        model_type=model_type,
        vocabulary_size=config["vocab_size"],
        hidden_size=config["hidden_size"],
        intermediate_size=config["intermediate_size"],
        layer_count=config["num_hidden_layers"],
        head_count=heads,
        key_value_head_count=config.get("num_key_value_heads", heads),
        head_size=config.get("head_dim") or config["hidden_size"] // heads,
        rotary_base=float(config.get("rope_theta") or rotary.get("rope_theta") or 10000.0),
        norm_epsilon=config.get("rms_norm_eps", 1e-6),
        maximum_length=config.get("max_position_embeddings", 32768),
        tied=config.get("tie_word_embeddings", False),
        qkv_bias=model_type == "qwen2",
        qk_norm=model_type == "qwen3",
    )


def check_layout(architecture: Architecture, layout: Layout) -> None:
    """Raises ValueError where the model does not divide over the layout."""
    for what, count, parts in (
        ("vocabulary", architecture.vocabulary_size, layout.tensor),
        ("key/value heads", architecture.key_value_head_count, layout.tensor),
        ("intermediate size", architecture.intermediate_size, layout.tensor),
        ("layers", architecture.layer_count, layout.pipeline),
    ):
        if count % parts:
            raise ValueError(f"{count} {what} do not divide by {parts} ranks")


def transformer_config(architecture: Architecture, layout: Layout, device: Device, spec: str) -> TransformerConfig:
    """Megatron's configuration of this architecture."""
    config = TransformerConfig(
        num_layers=architecture.layer_count,
        hidden_size=architecture.hidden_size,
        ffn_hidden_size=architecture.intermediate_size,
        num_attention_heads=architecture.head_count,
        num_query_groups=architecture.key_value_head_count,
        kv_channels=architecture.head_size,
        normalization="RMSNorm",
        layernorm_epsilon=architecture.norm_epsilon,
        gated_linear_unit=True,
        activation_func=F.silu,
        add_bias_linear=False,
        add_qkv_bias=architecture.qkv_bias,
        qk_layernorm=architecture.qk_norm,
        attention_dropout=0.0,
        hidden_dropout=0.0,
        tensor_model_parallel_size=layout.tensor,
        pipeline_model_parallel_size=layout.pipeline,
        context_parallel_size=layout.context,
        bf16=device.is_cuda,
        params_dtype=device.dtype,
        pipeline_dtype=device.dtype,
        use_te_activation_func=spec == "local",  # megatron's name for "take the activation from the layer spec"
        calculate_per_token_loss=True,  # no averaging anywhere: the loss is a plain sum
        **config_flags(device),
    )
    config.rotary_base = architecture.rotary_base  # read by PackedCausalAttention
    return config


def layer_spec(architecture: Architecture, name: str) -> Any:
    """Megatron's own layers with our attention core, or TransformerEngine's layers."""
    if name == "te":
        return get_gpt_layer_with_transformer_engine_spec(qk_layernorm=architecture.qk_norm)
    if name != "local":
        raise ValueError(f"unknown layer spec {name!r}")
    spec = get_gpt_layer_local_spec(normalization="RMSNorm", qk_layernorm=architecture.qk_norm)
    layer, attention = spec.submodules, spec.submodules.self_attention.submodules
    attention.core_attention = PackedCausalAttention
    layer.input_layernorm = layer.pre_mlp_layernorm = RmsNorm
    if architecture.qk_norm:
        attention.q_layernorm = attention.k_layernorm = RmsNorm
    layer.mlp.submodules.activation_func = SwiGlu
    return spec


def build(architecture: Architecture, layout: Layout, device: Device, spec: str) -> GPTModel:
    """This rank's part of the model, with weights yet to be loaded."""
    check_layout(architecture, layout)
    model = GPTModel(
        transformer_config(architecture, layout, device, spec),
        layer_spec(architecture, spec),
        vocab_size=architecture.vocabulary_size,
        max_sequence_length=architecture.maximum_length,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        share_embeddings_and_output_weights=architecture.tied,
        position_embedding_type="rope" if spec == "te" else "none",  # our core rotates itself
        rotary_base=architecture.rotary_base,
        parallel_output=True,
    )
    return model.to(device.torch_device)
