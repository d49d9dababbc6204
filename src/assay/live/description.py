"""The gateway's OpenAPI description: what it answers itself, and what it expects of what it passes on.

>>> sorted(openapi()["paths"])[:3]
['/', '/engines', '/engines/{name}']
"""

from __future__ import annotations

from typing import Any

from assay import __version__

Schema = dict[str, Any]

_STRING: Schema = {"type": "string"}
_BOOLEAN: Schema = {"type": "boolean"}
_INTEGER: Schema = {"type": "integer"}


def _object(required: list[str], **properties: Schema) -> Schema:
    return {"type": "object", "required": required, "properties": properties}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _array(items: Schema, **limits: int) -> Schema:
    return {"type": "array", "items": items, **limits}


def _number(low: float, high: float) -> Schema:
    return {"type": "number", "minimum": low, "maximum": high}


def _maybe(schema: Schema) -> Schema:
    """As engines take it: null is the same as leaving it out."""
    return {"anyOf": [schema, {"type": "null"}]}


_PART = {
    "type": "object",
    "required": ["type", "text"],
    "properties": {"type": {"type": "string", "enum": ["text"]}, "text": _STRING},
}
_MESSAGE = _object(
    ["role"],
    role={"type": "string", "enum": ["system", "developer", "user", "assistant", "tool", "function"]},
    content=_maybe({"anyOf": [_STRING, _array(_PART)]}),
)
_SAMPLING: dict[str, Schema] = {
    "model": {"type": "string", "description": "One of /v1/models."},
    "max_tokens": _maybe({"type": "integer", "minimum": 1}),
    "temperature": _maybe(_number(0, 2)),
    "top_p": _maybe({"type": "number", "exclusiveMinimum": 0, "maximum": 1}),
    "presence_penalty": _maybe(_number(-2, 2)),
    "frequency_penalty": _maybe(_number(-2, 2)),
    "stream": _maybe(_BOOLEAN),
    "user": _maybe(_STRING),
}
_CHAT = _object(["model", "messages"], messages=_array(_ref("Message"), minItems=1), **_SAMPLING)
_TEXT = {"type": "string", "minLength": 1}
_RESPONSES = _object(
    ["model", "input"], model=_STRING, input={"anyOf": [_TEXT, _array({"type": "object"}, minItems=1)]},
    instructions=_maybe(_STRING), max_output_tokens=_maybe({"type": "integer", "minimum": 1}), stream=_maybe(_BOOLEAN),
)  # fmt: skip
_MESSAGES = _object(
    ["model", "messages", "max_tokens"], model=_STRING, messages=_array({"type": "object"}, minItems=1),
    max_tokens={"type": "integer", "minimum": 1}, system=_STRING, stream=_maybe(_BOOLEAN),
)  # fmt: skip
_IDS = _array({"type": "integer", "minimum": 0}, minItems=1)
_PROMPT: Schema = {"anyOf": [_TEXT, _array(_TEXT, minItems=1), _IDS, _array(_IDS, minItems=1)]}
_COMPLETION = _object(["model", "prompt"], prompt=_PROMPT, **_SAMPLING)
_EMBEDDING = _object(
    ["model", "input"],
    model=_STRING,
    input=_PROMPT,
    encoding_format=_maybe({"type": "string", "enum": ["float", "base64"]}),
    user=_maybe(_STRING),
)
_ERROR = _object(
    ["error"],
    error=_object(
        ["message", "type"],
        message=_STRING,
        type=_STRING,
        param={"anyOf": [_STRING, {"type": "null"}]},
        code={"anyOf": [_STRING, _INTEGER, {"type": "null"}]},
    ),
)
_USAGE = _object(
    ["prompt_tokens", "total_tokens"], prompt_tokens=_INTEGER, total_tokens=_INTEGER, completion_tokens=_INTEGER
)
_ANSWER = _object(
    ["id", "object", "created", "model", "choices"],
    id=_STRING, object=_STRING, created=_INTEGER, model=_STRING, choices=_array({"type": "object"}), usage=_USAGE,
)  # fmt: skip
_VECTORS = _object(["object", "data"], object=_STRING, data=_array({"type": "object"}), usage=_USAGE)
_MODELS = _object(["object", "data"], object=_STRING, data=_array(_object(["id"], id=_STRING)))
_ENGINE = {
    **_object(["url"], url={"type": "string", "pattern": "^https?://[A-Za-z0-9.:-]+$"}, name=_STRING, key=_STRING),
    "additionalProperties": False,
}
_HEALTH = _object(["status", "engines", "up"], status=_STRING, engines=_INTEGER, up=_INTEGER)

# What any request may end in, whoever answers it.
_ERRORS = {
    "400": "It makes no sense", "401": "No valid key", "403": "Not for you", "404": "Not here", "405": "Not this way",
    "408": "It took too long to arrive", "409": "It is here already", "413": "Too long", "415": "Not JSON",
    "422": "It makes no sense", "429": "Too many wait", "431": "Too long a head", "500": "The engine failed",
    "501": "Not spoken here", "502": "The engine failed", "503": "Nobody can take it now", "504": "It took too long",
}  # fmt: skip


def _content(schema: Schema, kind: str = "application/json") -> Schema:
    return {kind: {"schema": schema}}


def _responses(*success: tuple[str, str, Schema]) -> Schema:
    answers = {status: {"description": text, "content": content} for status, text, content in success}
    errors = {status: {"description": text, "content": _content(_ref("Error"))} for status, text in _ERRORS.items()}
    return {**errors, **answers}


def _post(summary: str, body: str, answer: Schema, streams: bool) -> Schema:
    content = _content(answer) | ({"text/event-stream": {}} if streams else {})
    return {
        "post": {
            "summary": summary,
            "requestBody": {"required": True, "content": _content(_ref(body))},
            "responses": _responses(("200", "The engine's answer, byte for byte", content)),
            "security": [{"key": []}],
        }
    }


def _get(summary: str, content: Schema, secure: bool = True) -> Schema:
    return {
        "get": {
            "summary": summary,
            "responses": _responses(("200", "Here", content)),
            "security": [{"key": []}] if secure else [],
        }
    }


def openapi() -> Schema:
    """The whole description."""
    add = {
        "summary": "Add an engine (operator)",
        "requestBody": {"required": True, "content": _content(_ref("Engine"))},
        "responses": _responses(("201", "It is sent requests from now on", _content({"type": "object"}))),
        "security": [{"key": []}],
    }
    drain = {
        "summary": "Drain an engine: no new requests, gone when the last is answered (operator)",
        "parameters": [{"name": "name", "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}],
        "responses": _responses(("202", "It is being drained", _content({"type": "object"}))),
        "security": [{"key": []}],
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "assay gateway", "version": __version__},
        "paths": {
            "/v1/chat/completions": _post("Chat", "Chat", _ref("Answer"), True),
            "/v1/completions": _post("Complete a text", "Completion", _ref("Answer"), True),
            "/v1/responses": _post("OpenAI's Responses", "Responses", {"type": "object"}, True),
            "/v1/messages": _post("Anthropic's Messages", "Messages", {"type": "object"}, True),
            "/v1/embeddings": _post("Embed texts", "Embedding", _ref("Vectors"), False),
            "/v1/models": _get("Models of all engines", _content(_ref("Models"))),
            "/": _get("A page that shows all this live", _content(_STRING, "text/html"), secure=False),
            "/health": _get("Whether an engine is up", _content(_ref("Health")), secure=False),
            "/metrics": _get("Prometheus metrics (operator)", _content(_STRING, "text/plain")),
            "/engines": {**_get("Engines, load, decisions (operator)", _content({"type": "object"})), "post": add},
            "/engines/{name}": {"delete": drain},
            "/openapi.json": _get("This description", _content({"type": "object"}), secure=False),
        },
        "components": {
            "schemas": {
                "Message": _MESSAGE, "Chat": _CHAT, "Completion": _COMPLETION, "Embedding": _EMBEDDING,
                "Responses": _RESPONSES, "Messages": _MESSAGES,
                "Answer": _ANSWER, "Vectors": _VECTORS, "Models": _MODELS, "Engine": _ENGINE, "Health": _HEALTH,
                "Error": _ERROR,
            },
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }  # fmt: skip
