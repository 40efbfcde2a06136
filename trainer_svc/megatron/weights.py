"""Weights: Hugging Face safetensors <-> megatron's parameters, for any tensor and pipeline layout.

In: `import_weights` reads only what this rank holds. Out: `export_weights` gathers tensor ranks, then pipeline stages;
`write_directory` makes a directory that SGLang and transformers load, complete or not there at all.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from safetensors import safe_open
from safetensors.torch import save_file

from trainer_svc.files import replace_directory
from trainer_svc.megatron.model import Architecture

COPIED_SUFFIXES = (".json", ".txt", ".jinja", ".model")  # configuration and tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapping:
    """How one megatron parameter relates to Hugging Face tensors."""

    kind: str  # copy: on all tensor ranks; rows, columns: split; glu: gate and up; qkv: query groups
    names: tuple[str, ...]


_LAYER: dict[str, tuple[str, tuple[str, ...]]] = {
    "input_layernorm.weight": ("copy", ("input_layernorm.weight",)),
    "self_attention.linear_qkv.layer_norm_weight": ("copy", ("input_layernorm.weight",)),  # TransformerEngine's spec
    "self_attention.linear_qkv.weight": ("qkv", tuple(f"self_attn.{part}_proj.weight" for part in "qkv")),
    "self_attention.linear_qkv.bias": ("qkv", tuple(f"self_attn.{part}_proj.bias" for part in "qkv")),
    "self_attention.q_layernorm.weight": ("copy", ("self_attn.q_norm.weight",)),
    "self_attention.k_layernorm.weight": ("copy", ("self_attn.k_norm.weight",)),
    "self_attention.linear_proj.weight": ("columns", ("self_attn.o_proj.weight",)),
    "pre_mlp_layernorm.weight": ("copy", ("post_attention_layernorm.weight",)),
    "mlp.linear_fc1.layer_norm_weight": ("copy", ("post_attention_layernorm.weight",)),  # TransformerEngine's spec
    "mlp.linear_fc1.weight": ("glu", ("mlp.gate_proj.weight", "mlp.up_proj.weight")),
    "mlp.linear_fc2.weight": ("columns", ("mlp.down_proj.weight",)),
}
_OUTER: dict[str, tuple[str, tuple[str, ...]]] = {
    "embedding.word_embeddings.weight": ("rows", ("model.embed_tokens.weight",)),
    "decoder.final_layernorm.weight": ("copy", ("model.norm.weight",)),
    "output_layer.weight": ("rows", ("lm_head.weight",)),
}


def mapping(name: str, layer: int | None) -> Mapping:
    """The mapping of a megatron parameter; `layer` counts from 0 over all stages. Raises KeyError if unknown."""
    if layer is None:
        kind, names = _OUTER[name]
        return Mapping(kind=kind, names=names)
    kind, names = _LAYER[name.split(".", 3)[3]]
    return Mapping(kind=kind, names=tuple(f"model.layers.{layer}.{part}" for part in names))


def parameters(model: Any) -> Iterator[tuple[str, Mapping, torch.nn.Parameter]]:
    """(megatron name, mapping, parameter) of this rank. A tied output layer on a later stage maps to the embedding."""
    core = unwrap(model)
    for name, parameter in core.named_parameters():
        layer = None
        if name.startswith("decoder.layers."):
            layer = core.decoder.layers[int(name.split(".")[2])].layer_number - 1
        if name == "output_layer.weight" and core.share_embeddings_and_output_weights:
            yield name, mapping("embedding.word_embeddings.weight", None), parameter
        else:
            yield name, mapping(name, layer), parameter


def unwrap(model: Any) -> Any:
    """The GPTModel inside megatron's wrappers."""
    while hasattr(model, "module"):
        model = model.module
    return model


class Reader:
    """Reads tensors by name from a Hugging Face directory, one file or many."""

    def __init__(self, directory: Path) -> None:
        self._files: dict[str, Any] = {}
        paths = sorted(directory.glob("*.safetensors"))
        if not paths:
            raise FileNotFoundError(f"no *.safetensors in {directory}")
        for path in paths:
            file = safe_open(path, framework="pt")
            self._files.update(dict.fromkeys(file.keys(), file))

    def __call__(self, name: str) -> torch.Tensor:
        """The tensor. Raises KeyError when no file has it."""
        return self._files[name].get_tensor(name)


@torch.no_grad()
def import_weights(model: Any, architecture: Architecture, read: Callable[[str], torch.Tensor]) -> None:
    """Fills this rank's parameters."""
    size, rank = _tensor_rank()
    for name, how, parameter in parameters(model):
        value = split(how.kind, [read(part) for part in how.names], architecture, size, rank)
        if value.shape != parameter.shape:
            raise ValueError(f"{name} is {tuple(parameter.shape)} but {how.names} give {tuple(value.shape)}")
        parameter.copy_(value)


def split(kind: str, tensors: list[torch.Tensor], architecture: Architecture, size: int, rank: int) -> torch.Tensor:
    """Hugging Face tensors -> the part of tensor rank `rank` of `size`."""
    first = tensors[0]
    if kind == "copy":
        return first
    if kind == "rows":
        return first.chunk(size)[rank]
    if kind == "columns":
        return first.chunk(size, 1)[rank]
    if kind == "glu":
        return torch.cat([tensor.chunk(size)[rank] for tensor in tensors])
    groups = architecture.key_value_head_count
    by_group = torch.cat([tensor.reshape(groups, -1, *tensor.shape[1:]) for tensor in tensors], 1)
    return by_group.reshape(-1, *first.shape[1:]).chunk(size)[rank]


def join(kind: str, parts: list[torch.Tensor], architecture: Architecture) -> list[torch.Tensor]:
    """The parts of all tensor ranks -> Hugging Face tensors: the inverse of `split`."""
    if kind == "copy":
        return [parts[0]]
    if kind == "rows":
        return [torch.cat(parts)]
    if kind == "columns":
        return [torch.cat(parts, 1)]
    if kind == "glu":  # every rank holds its own gate over its own up
        return [torch.cat(pieces) for pieces in zip(*(part.chunk(2) for part in parts), strict=True)]
    groups, head = architecture.key_value_head_count, architecture.head_size
    whole = torch.cat(parts)
    by_group = whole.reshape(groups, -1, *whole.shape[1:])
    queries = by_group.shape[1] - 2 * head
    return [piece.reshape(-1, *whole.shape[1:]) for piece in by_group.split([queries, head, head], 1)]


@torch.no_grad()
def export_weights(
    model: Any, architecture: Architecture, value: Callable[[torch.nn.Parameter], torch.Tensor] = lambda p: p.data
) -> dict[str, torch.Tensor]:
    """All Hugging Face tensors on the CPU, in the parameters' number type. A collective of one data-parallel replica.

    `value` chooses what to export: the weights, or for example their gradients.
    """
    size, _ = _tensor_rank()
    group = parallel_state.get_tensor_model_parallel_group()
    tensors: dict[str, torch.Tensor] = {}
    for name, how, parameter in parameters(model):
        if name == "output_layer.weight" and how.names != ("lm_head.weight",):
            continue  # the embedding's stage exports it
        own = value(parameter).detach().contiguous()
        parts = [own]
        if how.kind != "copy" and size > 1:
            parts = [torch.empty_like(own) for _ in range(size)]
            dist.all_gather(parts, own, group=group)
        joined = join(how.kind, parts, architecture)
        tensors.update((part, tensor.cpu().clone()) for part, tensor in zip(how.names, joined, strict=True))
    return _gather_stages(tensors)


def _gather_stages(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors of all pipeline stages."""
    group = parallel_state.get_pipeline_model_parallel_group()
    if group.size() == 1:
        return tensors
    stages: list[dict[str, torch.Tensor] | None] = [None] * group.size()
    dist.all_gather_object(stages, tensors, group=group)
    return {name: tensor for stage in stages if stage for name, tensor in stage.items()}


def _tensor_rank() -> tuple[int, int]:
    """(size, rank) of tensor parallelism."""
    group = parallel_state.get_tensor_model_parallel_group()
    return group.size(), group.rank()


def write_directory(tensors: dict[str, torch.Tensor], source: Path, target: Path) -> None:
    """Writes a Hugging Face directory: weights, and configuration and tokenizer from `source`."""
    with replace_directory(target) as temporary:
        for path in source.iterdir():
            if path.is_file() and path.suffix in COPIED_SUFFIXES and not path.name.endswith(".index.json"):
                shutil.copyfile(path, temporary / path.name)
        config = json.loads((source / "config.json").read_text())
        number_types = {str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()}
        config.pop("torch_dtype", None)
        config["dtype"] = number_types.pop() if len(number_types) == 1 else "float32"
        (temporary / "config.json").write_text(json.dumps(config, indent=2) + os.linesep)
        save_file(tensors, temporary / "model.safetensors", metadata={"format": "pt"})
