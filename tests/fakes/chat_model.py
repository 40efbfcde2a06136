"""A model's folder as the bridge reads it: a small byte-level tokenizer and a chat template in Qwen's manner."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

END = "<|im_end|>"
MARKS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")

CHATML = """\
{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
"""Knows no tools and no reasoning."""

QWEN = """\
{#- written for these tests in the manner of Qwen3 -#}
{%- if not messages %}{{- raise_exception('No messages.') }}{%- endif %}
{%- set state = namespace(last_question=-1) %}
{%- for m in messages %}
    {%- if m.role == 'user' %}{% set state.last_question = loop.index0 %}{% endif %}
    {%- if m.role == 'system' and not loop.first %}{{- raise_exception('System message must be first.') }}{%- endif %}
{%- endfor %}
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- '# Tools\\n<tools>' }}
    {%- for tool in tools %}
        {{- '\\n' }}{{- tool | tojson }}
    {%- endfor %}
    {{- '\\n</tools><|im_end|>\\n' }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for m in messages %}
    {%- if m.role == 'user' %}
        {{- '<|im_start|>user\\n' + m.content + '<|im_end|>\\n' }}
    {%- elif m.role == 'assistant' %}
        {%- generation %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if m.reasoning_content is defined and loop.index0 > state.last_question %}
            {{- '<think>\\n' + m.reasoning_content.strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- m.content }}
        {%- for call in m.tool_calls or [] %}
            {%- if m.content or not loop.first %}{{- '\\n' }}{%- endif %}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {%- if call.function.arguments is string %}{{- call.function.arguments }}
            {%- else %}{{- call.function.arguments | tojson }}{%- endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
        {%- endgeneration %}
    {%- elif m.role == 'tool' %}
        {%- if loop.previtem.role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + m.content + '\\n</tool_response>' }}
        {%- if loop.last or loop.nextitem.role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""
"""Takes argument text as it is; keeps reasoning only after the last question; wants the system message first."""

QWEN_OBJECTS = QWEN.replace(
    "{%- if call.function.arguments is string %}{{- call.function.arguments }}\n"
    "            {%- else %}{{- call.function.arguments | tojson }}{%- endif %}",
    "{%- for key, value in call.function.arguments.items() %}{{- key + '=' + (value | tojson) + ';' }}{%- endfor %}",
)
"""The same, but it walks over the arguments as an object."""


def tokenizer() -> Tokenizer:
    """Byte-level, so every text has ids; most characters outside ASCII are several tokens."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(  # type: ignore[no-untyped-call]
        vocab_size=300,
        special_tokens=["<|endoftext|>", "<|im_start|>", END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(["the answer is hello world", '{"name": "calculator", "arguments": {}}'] * 4, trainer)
    made.add_tokens([AddedToken(mark, special=False, normalized=False) for mark in MARKS])
    return made


def write_chat_model(folder: Path, template: str = QWEN) -> Path:
    """Writes tokenizer.json, tokenizer_config.json, chat_template.jinja; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer().save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "pad_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
    return folder
