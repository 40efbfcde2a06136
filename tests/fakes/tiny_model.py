"""Makes a tiny Qwen3 directory with random weights and a trivial tokenizer, that SGLang and transformers load.

Needs NumPy alone: safetensors is a length, a JSON header and the tensors' bytes.
"""

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray


def write_tiny_model(
    directory: Path,
    *,
    layers: int = 2,
    hidden: int = 64,
    intermediate: int = 128,
    heads: int = 4,
    key_value_heads: int = 2,
    vocabulary: int = 128,
    tied: bool = True,
    maximum_length: int = 512,
    seed: int = 0,
    scale: float = 0.05,
) -> Path:
    """Writes config.json, model.safetensors and a tokenizer in which byte b is token b; returns the directory.

    Ids 126 and 127 are <|im_start|> and <|im_end|> when `vocabulary` is 128; in general the last two.
    """
    directory.mkdir(parents=True, exist_ok=True)
    head = hidden // heads
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": vocabulary,
        "hidden_size": hidden,
        "intermediate_size": intermediate,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": key_value_heads,
        "head_dim": head,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": maximum_length,
        "tie_word_embeddings": tied,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "use_sliding_window": False,
        "bos_token_id": vocabulary - 2,
        "eos_token_id": vocabulary - 1,
        "dtype": "float32",
    }
    (directory / "config.json").write_text(json.dumps(config, indent=2))
    shapes = tensor_shapes(layers, hidden, intermediate, heads, key_value_heads, head, vocabulary, tied)
    generator = np.random.default_rng(seed)
    write_safetensors(
        directory / "model.safetensors",
        {name: _random(name, shape, generator, scale) for name, shape in shapes.items()},
    )
    write_tokenizer(directory, vocabulary)
    return directory


def tensor_shapes(
    layers: int,
    hidden: int,
    intermediate: int,
    heads: int,
    key_value_heads: int,
    head: int,
    vocabulary: int,
    tied: bool,
) -> dict[str, tuple[int, ...]]:
    """The shapes of a Qwen3's tensors by their Hugging Face names."""
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocabulary, hidden),
        "model.norm.weight": (hidden,),
    }
    if not tied:
        shapes["lm_head.weight"] = (vocabulary, hidden)
    for layer in range(layers):
        prefix = f"model.layers.{layer}."
        shapes |= {
            f"{prefix}input_layernorm.weight": (hidden,),
            f"{prefix}post_attention_layernorm.weight": (hidden,),
            f"{prefix}self_attn.q_proj.weight": (heads * head, hidden),
            f"{prefix}self_attn.k_proj.weight": (key_value_heads * head, hidden),
            f"{prefix}self_attn.v_proj.weight": (key_value_heads * head, hidden),
            f"{prefix}self_attn.o_proj.weight": (hidden, heads * head),
            f"{prefix}self_attn.q_norm.weight": (head,),
            f"{prefix}self_attn.k_norm.weight": (head,),
            f"{prefix}mlp.gate_proj.weight": (intermediate, hidden),
            f"{prefix}mlp.up_proj.weight": (intermediate, hidden),
            f"{prefix}mlp.down_proj.weight": (hidden, intermediate),
        }
    return shapes


def write_safetensors(path: Path, tensors: dict[str, NDArray[np.float32]]) -> None:
    """Little-endian fp32 tensors one after another."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, tensor in tensors.items():
        header[name] = {"dtype": "F32", "shape": tensor.shape, "data_offsets": (offset, offset + tensor.nbytes)}
        offset += tensor.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.writelines(tensor.astype("<f4").tobytes() for tensor in tensors.values())


def _random(name: str, shape: tuple[int, ...], generator: np.random.Generator, scale: float) -> NDArray[np.float32]:
    """Norms near 1, everything else near 0."""
    values = generator.normal(scale=scale, size=shape)
    return (values + 1 if "norm" in name else values).astype(np.float32)


CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def write_tokenizer(directory: Path, vocabulary: int) -> None:
    """A character tokenizer: token b is the character of code b; the last two ids are the chat marks."""
    marks = {"<|im_start|>": vocabulary - 2, "<|im_end|>": vocabulary - 1}
    characters = {chr(code): code for code in range(vocabulary - 2)}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [
            {
                "id": token,
                "content": text,
                "special": True,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
            }
            for text, token in marks.items()
        ],
        "normalizer": None,
        "pre_tokenizer": {"type": "Split", "pattern": {"Regex": "[\\s\\S]"}, "behavior": "Isolated", "invert": False},
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {"type": "WordLevel", "vocab": characters, "unk_token": "?"},
    }
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|im_end|>",
        "model_max_length": 512,
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
