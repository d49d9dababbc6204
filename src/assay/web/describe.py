"""The workbench's own OpenAPI description: what pages and scripts may ask, and how it answers.

>>> "/api/runs" in openapi()["paths"]
True
"""

from __future__ import annotations

from typing import Any

import msgspec

from assay import __version__
from assay.web import asked

Schema = dict[str, Any]

_ERROR = {"description": "One line on what was wrong.", "content": {"application/json": {"schema": {
    "type": "object", "required": ["error"], "properties": {"error": {"type": "string"}}}}}}  # fmt: skip
_JOB = {
    "type": "object",
    "required": ["id", "kind", "name", "command", "state", "message"],
    "properties": {
        "id": {"type": "string"},
        "kind": {"enum": ["run", "compare"]},
        "name": {"type": "string"},
        "command": {"type": "string"},
        "state": {"enum": ["running", "done", "failed", "stopped"]},
        "message": {"type": "string"},
        "answer": {"type": "object"},
    },
}
_EVENTS = {
    "type": "object",
    "required": ["next", "progress", "events"],
    "properties": {
        "next": {"type": "integer"},
        "progress": {"type": "object"},
        "events": {"type": "array", "items": {"type": "object", "required": ["event"]}},
    },
}
_FILE = {
    "type": "object",
    "required": ["file", "name", "bytes"],
    "properties": {"file": {"type": "string"}, "name": {"type": "string"}, "bytes": {"type": "integer"}},
}


def openapi() -> Schema:
    """The description, as `/openapi.json` gives it."""
    schemas, components = msgspec.json.schema_components(
        [asked.Run, asked.Comparison, asked.Place], ref_template="#/components/schemas/{name}"
    )
    run, comparison, place = schemas
    key = {"name": "key", "in": "path", "required": True, "schema": {"type": "string"}}
    name, job = key | {"name": "name"}, key | {"name": "id"}
    after = {"name": "after", "in": "query", "schema": {"type": "integer", "minimum": 0}}
    asks_name = {"name": "name", "in": "query", "schema": {"type": "string"}}
    which = [{"name": n, "in": "query", "schema": {"type": "string"}} for n in ("run", "with")]
    places = [{"name": n, "in": "query", "schema": {"type": "string"}} for n in ("gateway", "watch")]
    html: Schema = {"text/html": {}}
    svg: Schema = {"image/svg+xml": {}}
    paths: dict[str, Schema] = {
        "/": {"get": _answers("The record.", html)},
        "/papers/{key}.html": {"get": _answers("A paper.", html, [key, *which], 400, 404)},
        "/papers/{key}/export.html": {"get": _answers("Its page alone.", html, [key, which[0]], 400, 404)},
        "/papers/{key}/plot.svg": {"get": _answers("Its plot.", svg, [key, which[0]], 400, 404)},
        "/papers/{key}/table.csv": {"get": _answers("Its table.", {"text/csv": {}}, [key, which[0]], 400, 404)},
        "/papers/{key}/result.json": {"get": _answers("Its result.", _json({}), [key, which[0]], 400, 404)},
        "/api/record.json": {"get": _answers("Every claim.", _json({"type": "array"}))},
        "/api/record.csv": {"get": _answers("Every claim.", {"text/csv": {}})},
        "/compare": {"get": _answers("Every comparison.", html)},
        "/compare/{name}": {"get": _answers("A comparison.", html, [name], 400, 404)},
        "/live": {"get": _answers("Gateways and watched jobs.", html)},
        "/api/live": {
            "get": _answers("What they say now.", _json({"type": "object"}), places, 400),
            "post": _changes("Have one looked at.", _json(place), place, 201),
        },
        "/api/files": {"post": _changes("Keep a file.", _octets(), _FILE, 201, 413, asks=[asks_name])},
        "/api/runs": {"post": _changes("Run a study.", _json(run), _JOB, 201, 404, 429)},
        "/api/comparisons": {"post": _changes("Compare.", _json(comparison), _JOB, 201, 404, 429)},
        "/api/jobs": {"get": _answers("Jobs.", _json({"type": "array", "items": _JOB}), [asks_name])},
        "/api/jobs/{id}": {
            "get": _answers("A job.", _json(_JOB), [job], 404),
            "delete": _changes("End it early.", None, _JOB, 202, 404, asks=[job]),
        },
        "/api/jobs/{id}/events": {"get": _answers("What it said since.", _json(_EVENTS), [job, after], 400, 404)},
    }
    about = {"title": "assay web", "version": __version__, "description": "The workbench."}
    components = {"schemas": components, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}}
    security: list[Schema] = [{"token": []}]  # that of the address which `assay web` prints
    return {"openapi": "3.1.0", "info": about, "paths": paths, "components": components, "security": security}


def _json(schema: Schema) -> Schema:
    return {"application/json": {"schema": schema}}


def _octets() -> Schema:
    return {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


def _answers(told: str, content: Schema, parameters: list[Schema] | None = None, *refusals: int) -> Schema:
    """A question that changes nothing."""
    found = {"200": {"description": told, "content": content}} | {str(code): _ERROR for code in (401, *refusals)}
    return {"summary": told, "parameters": parameters or [], "responses": found}


def _changes(
    told: str, body: Schema | None, answer: Schema, code: int, *refusals: int, asks: list[Schema] | None = None
) -> Schema:
    """A request that changes something: no other site may send it, and it is bounded."""
    found = {str(code): {"description": told, "content": _json(answer)}}
    found |= {str(refusal): _ERROR for refusal in (400, 401, 403, *refusals, *((413, 415) if body else ()))}
    made: Schema = {"summary": told, "parameters": asks or [], "responses": found}
    return made | ({"requestBody": {"required": True, "content": body}} if body else {})
