"""What of OpenAI's chat completions is used, for `ignored.py`. Sampling that is recorded as asked counts as used."""

from openai_bridge.dialects.ignored import Shape

CACHE = frozenset({"cache_control"})
HARMLESS = CACHE | {
    "user",
    "safety_identifier",
    "store",
    "metadata",
    "service_tier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "prediction",
}
"""They cannot change what is sampled."""
SAMPLING = frozenset(
    {
        "n",
        "max_tokens",
        "max_completion_tokens",
        "stop",
        "seed",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "frequency_penalty",
        "presence_penalty",
        "repetition_penalty",
        "logit_bias",
    }
)
OTHERS = frozenset(
    {
        "model",
        "messages",
        "tools",
        "stream",
        "stream_options",
        "logprobs",
        "top_logprobs",
        "response_format",
        "functions",
        "chat_template_kwargs",
        "continue_final_message",
        "add_generation_prompt",
    }
)
BODY = Shape(
    used=HARMLESS | SAMPLING | OTHERS,
    usual={
        "tool_choice": ("auto", "none"),
        "function_call": ("auto", "none"),
        "parallel_tool_calls": (True,),
        "modalities": (["text"],),
    },
)
MESSAGE = Shape(
    place="messages.",
    used=CACHE | {"role", "content", "reasoning_content", "reasoning", "name", "tool_calls", "tool_call_id"},
    inside={
        "content": Shape(place="messages.content.", used=CACHE | {"type", "text", "refusal"}),
        "tool_calls": Shape(
            place="messages.tool_calls.",
            used=frozenset({"id", "index", "type", "function"}),
            inside={
                "function": Shape(place="messages.tool_calls.function.", used=frozenset({"name", "arguments"})),
            },
        ),
    },
)
SHOWN_FUNCTION = frozenset({"name", "description", "parameters", "return"})
SHOWN_TOOL = frozenset({"type", "function", "name", "description", "parameters"})
"""What a template sees of a tool and of its function."""
TOOL = Shape(
    place="tools.",
    used=CACHE | SHOWN_TOOL,
    usual={"strict": (False,)},
    inside={
        "function": Shape(place="tools.function.", used=CACHE | SHOWN_FUNCTION, usual={"strict": (False,)}),
    },
)
LEFT_OUT = Shape(place="tools.")
"""A tool of which a template sees nothing."""
VARIABLES = Shape(place="chat_template_kwargs.", used=frozenset({"continue_final_message", "add_generation_prompt"}))
"""Of the template's variables those that a request may not set."""
