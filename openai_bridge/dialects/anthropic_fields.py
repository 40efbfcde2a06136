"""What of Anthropic's Messages is used, for `ignored.py`."""

from openai_bridge.dialects.ignored import Shape

CACHE = frozenset({"cache_control"})
HARMLESS = CACHE | {"metadata", "service_tier", "inference_geo"}
"""They cannot change what is sampled."""
SAMPLING = frozenset({"max_tokens", "stop_sequences", "temperature", "top_p", "top_k"})
OTHERS = frozenset(
    {"model", "messages", "system", "tools", "tool_choice", "thinking", "output_config", "stream"},
)
_TEXT = CACHE | {"type", "text"}
_BLOCK = _TEXT | {"thinking", "signature", "id", "name", "input", "tool_use_id", "content"}
MESSAGE = Shape(
    place="messages.",
    used=frozenset({"role", "content"}),
    inside={
        "content": Shape(
            place="messages.content.",
            used=_BLOCK,
            usual={"is_error": (False,), "caller": ({"type": "direct"},)},
            inside={"content": Shape(place="messages.content.content.", used=_TEXT)},
        ),
    },
)
TOOL = Shape(
    place="tools.",
    used=CACHE | {"name", "description", "input_schema"},
    usual={"type": ("custom",), "strict": (False,)},
)
BODY = Shape(
    used=HARMLESS | SAMPLING | OTHERS,
    inside={
        "system": Shape(place="system.", used=_TEXT),
        "messages": MESSAGE,
        "tools": TOOL,
        "tool_choice": Shape(
            place="tool_choice.", usual={"type": ("auto", "none"), "disable_parallel_tool_use": (False,)}
        ),
        "thinking": Shape(place="thinking.", used=frozenset({"type"})),
        "output_config": Shape(place="output_config.", used=frozenset({"format"})),
    },
)
