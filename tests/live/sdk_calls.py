"""What clients' own libraries do with a gateway: `python tests/live/sdk_calls.py LIBRARY URL`, one JSON line a call.

It runs in whatever environment has the library, so it imports nothing of this project.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from typing import Any

MODEL = "qwen3-8b"
ASK = "Why is the sky blue, in one line?"
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
}
PATIENCE = 120.0  # seconds


def by_openai(url: str) -> Iterator[dict[str, Any]]:
    """Chat, its streaming helper, tools and a schema parsed by the library, responses and their streaming helper."""
    from openai import OpenAI, pydantic_function_tool
    from pydantic import BaseModel, create_model

    client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=PATIENCE)
    messages: Any = [{"role": "user", "content": ASK}]
    whole = client.chat.completions.create(model=MODEL, messages=messages)
    yield {"call": "chat", "text": whole.choices[0].message.content, "out": whole.usage.completion_tokens}
    with client.chat.completions.stream(
        model=MODEL, messages=messages, stream_options={"include_usage": True}
    ) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    text, out = final.choices[0].message.content, final.usage.completion_tokens
    yield {"call": "chat stream", "text": text, "out": out, "deltas": kinds.count("content.delta")}
    Weather: type[BaseModel] = create_model("Weather", city=(str, ...), days=(int, ...))
    tools = [pydantic_function_tool(Weather)]
    with client.chat.completions.stream(model=MODEL, messages=messages, tools=tools, tool_choice="required") as stream:
        list(stream)
        called = stream.get_final_completion().choices[0].message.tool_calls[0].function
    yield {"call": "chat tools", "name": called.name, "input": called.parsed_arguments.model_dump()}
    parsed = client.chat.completions.parse(model=MODEL, messages=messages, response_format=Weather)
    yield {"call": "chat schema", "input": parsed.choices[0].message.parsed.model_dump()}
    answer = client.responses.create(model=MODEL, input=ASK)
    yield {"call": "responses", "text": answer.output_text, "out": answer.usage.output_tokens}
    with client.responses.stream(model=MODEL, input=ASK, instructions="Be brief.") as stream:
        events = list(stream)
        last = stream.get_final_response()
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    numbers = [event.sequence_number for event in events]
    yield {"call": "responses stream", "text": last.output_text, "out": last.usage.output_tokens,
           "deltas": len(deltas), "joined": "".join(deltas), "in order": numbers == [*range(len(numbers))]}  # fmt: skip
    tool: Any = {"type": "function", "name": "weather", "parameters": WEATHER, "strict": True}
    with client.responses.stream(model=MODEL, input=ASK, tools=[tool], tool_choice="required") as stream:
        item = stream.until_done().get_final_response().output[0]
    yield {"call": "responses tools", "name": item.name, "input": json.loads(item.arguments)}


def by_anthropic(url: str) -> Iterator[dict[str, Any]]:
    """Messages, the streaming helper, tools, and the same without blocking."""
    from anthropic import Anthropic, AsyncAnthropic

    client = Anthropic(base_url=url, api_key="none", max_retries=0, timeout=PATIENCE)
    asked: Any = {"model": MODEL, "max_tokens": 1000, "system": "Be brief.",
                  "messages": [{"role": "user", "content": ASK}]}  # fmt: skip
    whole = client.messages.create(**asked)
    yield {"call": "messages", "text": whole.content[0].text, "out": whole.usage.output_tokens}
    with client.messages.stream(**asked) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    text, usage = final.content[0].text, final.usage
    yield {"call": "messages stream", "text": text, "joined": "".join(pieces), "deltas": len(pieces),
           "out": usage.output_tokens, "in": usage.input_tokens, "why": final.stop_reason}  # fmt: skip
    tools: Any = [{"name": "weather", "description": "the weather", "input_schema": WEATHER}]
    with client.messages.stream(**asked, tools=tools, tool_choice={"type": "any"}) as stream:
        used = stream.get_final_message().content[0]
    yield {"call": "messages tools", "name": used.name, "input": used.input}

    async def without_blocking() -> str:
        other = AsyncAnthropic(base_url=url, api_key="none", max_retries=0, timeout=PATIENCE)
        async with other, other.messages.stream(**asked) as stream:
            return await stream.get_final_text()

    yield {"call": "messages async", "text": asyncio.run(without_blocking())}


def by_litellm(url: str) -> Iterator[dict[str, Any]]:
    """A chat of each of the two kinds of provider, and its own builder of whole answers from streams."""
    import litellm

    litellm.telemetry = False
    messages = [{"role": "user", "content": ASK}]
    kinds = {"openai": f"{url}/v1", "anthropic": url}
    for kind, base in kinds.items():
        asked: Any = {"model": f"{kind}/{MODEL}", "messages": messages, "api_base": base,
                      "api_key": "none", "timeout": PATIENCE, "num_retries": 0}  # fmt: skip
        whole = litellm.completion(**asked)
        yield {"call": f"{kind}", "text": whole.choices[0].message.content, "out": whole.usage.completion_tokens}
        chunks = list(litellm.completion(**asked, stream=True, stream_options={"include_usage": True}))
        built = litellm.stream_chunk_builder(chunks, messages=messages)
        yield {"call": f"{kind} stream", "text": built.choices[0].message.content, "out": built.usage.completion_tokens}
        tools = [{"type": "function", "function": {"name": "weather", "parameters": WEATHER}}]
        called = litellm.completion(**asked, tools=tools, tool_choice="required")
        function = called.choices[0].message.tool_calls[0].function
        yield {"call": f"{kind} tools", "name": function.name, "input": json.loads(function.arguments)}


def by_langchain(url: str) -> Iterator[dict[str, Any]]:
    """Chats of both kinds: at once, streamed and added up, with tools."""
    from langchain_anthropic import ChatAnthropic
    from langchain_openai import ChatOpenAI

    openai: Any = {"model": MODEL, "base_url": f"{url}/v1", "api_key": "none", "max_retries": 0, "timeout": PATIENCE}
    made: dict[str, Any] = {
        "openai": ChatOpenAI(**openai, stream_usage=True),
        "responses": ChatOpenAI(**openai, use_responses_api=True),
        "anthropic": ChatAnthropic(model=MODEL, base_url=url, api_key="none", max_retries=0, max_tokens=1000,
                                   timeout=PATIENCE),
    }  # fmt: skip
    for kind, model in made.items():
        whole = model.invoke(ASK)
        yield {"call": kind, "text": whole.text, "out": whole.usage_metadata["output_tokens"]}
        total = None
        count = 0
        for chunk in model.stream(ASK):
            total = chunk if total is None else total + chunk
            count += bool(chunk.text)
        yield {"call": f"{kind} stream", "text": total.text, "deltas": count,
               "out": total.usage_metadata["output_tokens"]}  # fmt: skip
        tool = {"name": "weather", "description": "the weather", "parameters": WEATHER}
        called = model.bind_tools([tool], tool_choice="any").invoke(ASK).tool_calls[0]
        yield {"call": f"{kind} tools", "name": called["name"], "input": called["args"]}


CALLS = {"openai": by_openai, "anthropic": by_anthropic, "litellm": by_litellm, "langchain": by_langchain}

if __name__ == "__main__":
    for line in CALLS[sys.argv[1]](sys.argv[2]):
        print(json.dumps(line), flush=True)
