"""Imports the OpenAI client and makes one chat call, answered inside this process over the loopback address.

The client imports its resources and transports on first use, and builds its response models then too: 100 ms of
processor time that every attempt would spend again. Nothing stays of the call but what the libraries cache: the client
is closed, the thread that answered has ended.
"""

import json
import socket
import threading

import openai
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolUnionParam

TOOL: ChatCompletionToolUnionParam = {
    "type": "function",
    "function": {"name": "f", "description": "", "parameters": {"type": "object"}},
}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
MESSAGES: list[ChatCompletionMessageParam] = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": "u"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    },
    {"role": "tool", "tool_call_id": "c", "content": "r"},
]
REPLY = {
    "id": "x",
    "object": "chat.completion",
    "created": 0,
    "model": "m",
    "choices": [
        {
            "index": 0,
            "finish_reason": "tool_calls",
            "logprobs": None,
            "message": {"role": "assistant", "content": "", "refusal": None, "tool_calls": [CALL]},
        }
    ],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}


def answer_once(listener: socket.socket) -> None:
    """Read one request, send the reply, close."""
    connection, _ = listener.accept()
    with connection, connection.makefile("rb") as request:
        length = 0
        while line := request.readline().strip():
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        request.read(length)
        body = json.dumps(REPLY).encode()
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)


def warm() -> None:
    """One call with tools and a tool call in the answer, as agents make them."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)
        server = threading.Thread(target=answer_once, args=(listener,))
        server.start()
        address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        try:
            with openai.OpenAI(base_url=address, api_key="none", max_retries=0) as client:
                client.chat.completions.create(
                    model="m", messages=MESSAGES, tools=[TOOL], max_tokens=1, temperature=1.0
                )
        finally:
            server.join()


warm()
