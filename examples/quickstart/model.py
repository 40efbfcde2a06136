"""The small policy: a tokenizer trained on the spot, a chat template, and a Qwen3 of 0.9 million random weights.

Written as a Hugging Face folder with `tokenizers`, NumPy and safetensors alone: nothing waits for torch to load.
The format is Qwen's: ChatML turns, tool calls as JSON between `<tool_call>` marks.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jinja2.sandbox import ImmutableSandboxedEnvironment
from numpy.typing import NDArray
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from examples.quickstart.task import TOOLS, Message

TEMPLATE = """\
{%- for m in messages %}
{%- if m.role == 'system' %}
{{- '<|im_start|>system\\n' + m.content }}
{%- if tools %}
{{- '\\n<tools>' }}
{%- for t in tools %}
{{- '\\n' + t.function.name + '(' + (t.function.parameters.properties | join(', ')) + ')' }}
{%- endfor %}
{{- '\\n</tools>' }}
{%- endif %}
{{- '<|im_end|>\\n' }}
{%- elif m.role == 'tool' %}
{%- if loop.previtem.role != 'tool' %}{{- '<|im_start|>user' }}{% endif %}
{{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
{%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\\n' }}{% endif %}
{%- else %}
{{- '<|im_start|>' + m.role + '\\n' + (m.content or '') }}
{%- for c in m.tool_calls or [] %}
{%- if m.content or not loop.first %}{{- '\\n' }}{% endif %}
{{- '<tool_call>\\n{"name": "' + c.function.name + '", "arguments": ' }}
{{- c.function.arguments if c.function.arguments is string else c.function.arguments | tojson }}{{ '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""
"""A tool is written as `calculator(expression)`: its JSON schema would be 45 tokens of every prompt."""

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
MARKS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<tools>", "</tools>"]
"""One token each, and visible text: they are part of what the model says."""
VOCABULARY = 704
"""Asked for; fewer come out where the text has no more pairs to merge."""
CONTEXT = 512
LAYERS, HIDDEN, INTERMEDIATE, HEADS, KEY_VALUE_HEADS, HEAD = 4, 128, 384, 4, 2, 32
DEVIATION = 0.02
"""Standard deviation of the random weights, as in Qwen3."""

Array = NDArray[np.float32]


_COMPILED = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(TEMPLATE)


def render(messages: Sequence[Message], *, generation_prompt: bool = False) -> str:
    """The conversation as text, by the template, with the calculator among its tools."""
    return _COMPILED.render(messages=messages, tools=TOOLS, add_generation_prompt=generation_prompt)


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Byte-level BPE in which digits come two by two: every number below 100 is one token.

    Copying a number digit by digit is hard for a small model (ten digits repeat all the time), and the calculator is
    there to be copied from.
    """
    tokenizer = Tokenizer(models.BPE())
    words = pre_tokenizers.Split(Regex(r" ?\p{L}+|\p{N}{1,2}| ?[^\s\p{L}\p{N}]+|\s+"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = re.compile("|".join(map(re.escape, [PAD, START, END, *MARKS])))
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(MARKS),
        special_tokens=[PAD, START, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    numbers = [" ".join(map(str, range(10, 100)))] * 400
    tokenizer.train_from_iterator((control.sub("\n", text) for text in [*texts, *numbers]), trainer)
    tokenizer.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in MARKS])
    return tokenizer


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """The id of a token that is in the vocabulary."""
    found: int | None = tokenizer.token_to_id(token)
    assert found is not None, token
    return found


def learned(ids: Sequence[int], tokenizer: Tokenizer) -> list[int]:
    """1 for each token that the assistant says, its end token too, else 0. [T] -> [T]."""
    start, end, role = (token_id(tokenizer, token) for token in (START, END, "assistant"))
    mask, speaks = [0] * len(ids), False
    for place, token in enumerate(ids):
        if speaks:
            mask[place] = 1
            speaks = token != end
        elif place >= 2 and list(ids[place - 2 : place]) == [start, role]:
            speaks = True  # this token is the newline after the role
    return mask


def config(vocabulary: int, end_id: int, pad_id: int) -> dict[str, Any]:
    """config.json."""
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": vocabulary,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KEY_VALUE_HEADS,
        "head_dim": HEAD,
        "hidden_act": "silu",
        "initializer_range": DEVIATION,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "use_sliding_window": False,
        "bos_token_id": None,
        "eos_token_id": end_id,
        "pad_token_id": pad_id,
        "dtype": "float32",
    }


def shapes(vocabulary: int) -> dict[str, tuple[int, ...]]:
    """Name and shape of every weight; the output layer is the embedding."""
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, HIDDEN)}
    for layer in range(LAYERS):
        inside = {
            "input_layernorm": (HIDDEN,),
            "self_attn.q_proj": (HEADS * HEAD, HIDDEN),
            "self_attn.k_proj": (KEY_VALUE_HEADS * HEAD, HIDDEN),
            "self_attn.v_proj": (KEY_VALUE_HEADS * HEAD, HIDDEN),
            "self_attn.o_proj": (HIDDEN, HEADS * HEAD),
            "self_attn.q_norm": (HEAD,),
            "self_attn.k_norm": (HEAD,),
            "post_attention_layernorm": (HIDDEN,),
            "mlp.gate_proj": (INTERMEDIATE, HIDDEN),
            "mlp.up_proj": (INTERMEDIATE, HIDDEN),
            "mlp.down_proj": (HIDDEN, INTERMEDIATE),
        }
        found |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in inside.items()}
    return found | {"model.norm.weight": (HIDDEN,)}


def random_weights(vocabulary: int, seed: int) -> dict[str, Array]:
    """Norms are 1, everything else is normal around 0."""
    generator = np.random.default_rng(seed)
    return {
        name: np.ones(shape, np.float32)
        if len(shape) == 1
        else generator.normal(0.0, DEVIATION, shape).astype(np.float32)
        for name, shape in shapes(vocabulary).items()
    }


def write_model(folder: Path, tokenizer: Tokenizer, seed: int) -> None:
    """Write config, weights, tokenizer and template, as transformers, SGLang and the bridge read them."""
    from safetensors.numpy import save_file  # absent from the services' environment, where the tests import the rest

    folder.mkdir(parents=True, exist_ok=True)
    size, end_id, pad_id = tokenizer.get_vocab_size(), token_id(tokenizer, END), token_id(tokenizer, PAD)
    write_tokenizer(folder, tokenizer)
    _write(folder / "generation_config.json", {"eos_token_id": end_id, "pad_token_id": pad_id, "do_sample": True})
    save_file(random_weights(size, seed), folder / "model.safetensors", metadata={"format": "pt"})
    _write(folder / "config.json", config(size, end_id, pad_id))


def write_tokenizer(folder: Path, tokenizer: Tokenizer) -> None:
    """Write the tokenizer and the template."""
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": PAD,
        "clean_up_tokenization_spaces": False,
        "model_max_length": CONTEXT,
    }
    _write(folder / "tokenizer_config.json", settings)


def _write(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")
