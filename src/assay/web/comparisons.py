"""Comparisons: which there are, the form of one, dropped files, the question, and the answer to take along."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import join
from typing import Any

import msgspec
from markupsafe import Markup
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from assay.record import catalogue
from assay.record.errors import BadInput, StoreFailed
from assay.record.site.drawing import plain_svg
from assay.record.types import ROOMS
from assay.record.wording import number
from assay.web import asked, commands, export, files, frame
from assay.web.jobs import Job
from assay.web.options import Option
from assay.web.security import private_folder
from assay.web.words import words

PATIENCE = 60.0  # seconds until a form is described: the first time its room is compiled
LIMIT = 1800.0  # seconds that a comparison may take
LONGEST = 300  # characters of a cell
CODE_LIMIT = 30.0  # seconds for one with code of one's own
_PACKAGE = Path(catalogue.__file__).parents[1]
_CLASS = re.compile(r"^class\s+([A-Za-z_]\w*)", re.MULTILINE)


def known() -> dict[str, dict[str, str]]:
    """Rooms, and their comparisons with a line each."""
    found: dict[str, dict[str, str]] = {}
    for room in ROOMS:
        own = {room: _ROOM_LINES.get(room, "")} if (_PACKAGE / room / "compare.py").is_file() else {}
        own |= {name: commands.LINES[name] for name, home in commands.ROOMS.items() if home == room}
        own |= {key: catalogue.paper(key).line for key in catalogue.comparisons(room)}
        if own:
            found[room] = own
    return found


_ROOM_LINES = {
    "serving": "Which router serves your trace of requests best, on your fleet: drop a trace, move the sliders.",
    "training": "Which schedule, planner or assigner trains your model fastest on your cluster.",
}


async def overview(request: Request) -> Response:
    """All comparisons, and a place to drop a file."""
    return await run_in_threadpool(
        lambda: frame.page("compare.html", "Compare", ("compare.js",), rooms=known(), name="")
    )


async def one(request: Request) -> Response:
    """The page of a comparison; its form comes when its room has been read."""
    name = request.path_params["name"]
    line = _line(name)
    return frame.page(
        "compare.html", "Compare", ("compare.js",), rooms={}, name=name, line=line, is_paper=name in catalogue.papers(),
        own_code=request.app.state.settings.allow_code and name in _routing(),
        # A link of another page may fill the form; only the user's own click or address asks the question.
        asks=request.headers.get("sec-fetch-site") in ("same-origin", "none"),
    )  # fmt: skip


def _routing() -> set[str]:
    return {"serving", *catalogue.offering("router", "serving")}


def _line(name: str) -> str:
    for members in known().values():
        if name in members:
            return members[name]
    paper = catalogue.paper(name)
    if catalogue.is_built(paper) and catalogue.offers(name) and (_PACKAGE / paper.room / "compare.py").is_file():
        return paper.line
    raise BadInput(f"'{name}' has no comparison on your own input; see /papers/{name}.html for what it takes")


async def fields(request: Request, name: str) -> list[Option]:
    """The options of a comparison, asked for once."""
    _line(name)
    found: dict[str, list[Option]] = request.app.state.fields
    if name not in found:
        answer = await frame.jobs(request).ask("describe", name, {}, PATIENCE)
        found[name] = msgspec.convert(answer, list[Option])
    return found[name]


async def form(request: Request) -> Response:
    """The form of a comparison, as a part of a page."""
    found = await fields(request, request.path_params["name"])
    return HTMLResponse(frame.rendered("form.html", fields=_in_order(found)))


def _in_order(found: Sequence[Option]) -> dict[str, list[Option]]:
    """Inputs first, what most people set next, the rest folded away."""
    inputs = [field for field in found if field.kind in ("file", "trace")]
    rest = [field for field in found if field not in inputs]
    special = [field for field in rest if field.kind in ("fleet", "rate", "slo", "several")]
    plain = [field for field in rest if field not in special]
    first = special if special else [f for f in plain if f.required or f.kind != "flag"][:5]
    return {"input": inputs, "first": first, "more": [field for field in plain if field not in first]}


async def take_file(request: Request) -> Response:
    """Keep a dropped file; the body is its content."""
    if request.headers.get("content-type", "").partition(";")[0] != "application/octet-stream":
        raise HTTPException(415, "application/octet-stream is expected: the file's content as it is")
    name = request.query_params.get("name", "file")
    address, length = await files.keep(name, request.stream())
    return JSONResponse({"file": address, "name": files.plain_name(name), "bytes": length}, 201)


async def start(request: Request) -> Response:
    """Begin a comparison."""
    want = asked.read(await frame.json_body(request), asked.Comparison)
    chosen = words(await fields(request, want.name), want.options)
    verb = [want.name] if want.name in commands.LINES else ["compare", want.name]
    shown, limit = ["assay", *verb, *chosen], LIMIT
    if want.code.strip():
        path = _pasted(request, want)
        chosen, shown, limit = [*chosen, "--policy", path], [*shown, "--policy", path], CODE_LIMIT
    what, code = {"words": chosen, "whole": want.whole}, bool(want.code.strip())
    job = frame.jobs(request).start("compare", want.name, join(shown), what, limit=limit, code=code)
    return JSONResponse(job.told(), 201)


def _pasted(request: Request, want: asked.Comparison) -> str:
    """A policy from the editor as `file.py:Class`."""
    if not request.app.state.settings.allow_code:
        raise BadInput("code of your own runs only after 'assay web --allow-code', on this machine")
    if want.name not in _routing():
        raise BadInput(f"{want.name} takes no policy of your own here")
    classes = _CLASS.findall(want.code)
    if not classes:
        raise BadInput("a policy is a class with a method route(self, request, fleet); there is none")
    try:
        folder = private_folder(private_folder(files.folder().parent) / "policies")
        path = folder / f"{classes[-1].lower()}_{_digest(want.code)}.py"
        path.write_text(want.code, encoding="utf-8")
    except OSError as error:
        raise StoreFailed(f"cannot keep the policy: {error.strerror}; set ASSAY_HOME to a folder of yours") from error
    return f"{path}:{classes[-1]}"


def _digest(code: str) -> str:
    import hashlib

    return hashlib.blake2b(code.encode(), digest_size=4).hexdigest()


# ------------------------------------------------------------------------------------------------ answers


def shown(job: Job) -> str:
    """What there is of an answer, as a part of a page: first its sentence, table and facts, then its charts."""
    if job.state != "done":
        return frame.rendered("answer.html", **laid_out(job.answer["answer"]))
    charts = [(one["name"], _stem(one["name"]), drawn(one), one.get("png")) for one in job.answer.get("pictures", [])]
    return frame.rendered("charts.html", id=job.id, charts=charts)


def laid_out(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The answer in the order in which people read it."""
    rows = answer.get("table") or []
    units = answer.get("units") or {}
    every = [name for name in (rows[0] if rows else {}) if name not in (answer.get("apart") or ())]
    shown = [name for name in (answer.get("shown") or every[:8]) if name in every]
    if any("led_by" in row for row in rows):
        rows = sorted(rows, key=lambda row: row["led_by"] or 0.0)
    table = [
        {"cells": [_cell(row.get(name)) for name in shown], "mark": _mark(row, rows), "bars": _bars(row, rows, shown)}
        for row in rows
    ]
    facts = {
        name: ", ".join(
            f"{fact.replace('_', ' ')} {number(value)}" for fact, value in told.items() if value not in ("", None)
        )
        for name, told in answer.items()
        if isinstance(told, dict) and name not in ("units", "pictures")
    }
    heads = [(name.replace("_", " "), units.get(name, ""), _numeric(rows, name)) for name in shown]
    return {
        "why": answer.get("why", ""), "trust": answer.get("trust", ""), "heads": heads, "table": table,
        "facts": {name: told for name, told in facts.items() if told}, "hidden": len(every) - len(shown),
        "others": [_other(name, more) for name, more in answer.items() if name != "table" and _is_table(more)],
    }  # fmt: skip


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict) and "table" not in value[0]


def _other(name: str, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One of the further tables of an answer."""
    heads = list(rows[0])[:10]
    cells = [[_cell(row.get(head)) for head in heads] for row in rows[:100]]
    return {"name": name.replace("_", " "), "heads": [head.replace("_", " ") for head in heads], "rows": cells}


def _mark(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """Whether nobody leads it, or nobody with certainty; nothing where an answer does not tell."""
    if "led_by" not in row:
        return ""
    tied = [one for one in rows if one["led_by"] is not None and not (one["led_by_low"] or 0.0) > 0]
    if row["led_by"] is None:
        return "tie" if tied else "best"
    return "tie" if row in tied else ""


def _numeric(rows: Sequence[Mapping[str, Any]], name: str) -> bool:
    return any(isinstance(row.get(name), int | float) for row in rows)


def _bars(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], shown: Sequence[str]) -> list[float | None]:
    """How long a cell's bar is, in per cent of its column's longest."""
    found: list[float | None] = []
    for name in shown:
        values = [abs(float(other[name])) for other in rows if _is_number(other.get(name))]
        most = max(values, default=0.0)
        value: Any = row.get(name)
        found.append(round(100 * abs(float(value)) / most, 1) if most > 0 and _is_number(value) else None)
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cell(value: Any) -> str:
    text = number(value) if isinstance(value, str | int | float | None) else str(value)
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def drawn(picture: Mapping[str, str]) -> Markup | None:
    """A chart as a page may hold it; None where it is a bitmap."""
    if "svg" not in picture:
        return None
    return plain_svg(
        picture["svg"], f"Plot: {picture['name']}; the table holds its numbers", prefix=f"{_stem(picture['name'])}-"
    )


def _stem(name: str) -> str:
    return re.sub(r"\W+", "-", name)


async def take_along(request: Request) -> Response:
    """The answer of a comparison as one page, its table, or one of its charts."""
    job, name = frame.job(request), request.path_params["file"]
    answer = job.answer.get("answer")
    if job.kind != "compare" or answer is None:
        raise HTTPException(404, "this job has no answer to take along")
    charts = {_stem(one["name"]): one for one in job.answer.get("pictures", []) if "svg" in one}
    stem, _, kind = name.rpartition(".")
    if stem == "table":
        return export.table(answer["table"], kind)
    if name == "answer.json":
        return export.document(answer)
    if name == "page.html":
        return await run_in_threadpool(
            lambda: export.alone(job.name, job.command, laid_out(answer), [drawn(one) for one in charts.values()])
        )
    if stem in charts and kind in ("svg", "png"):
        return await run_in_threadpool(lambda: export.picture(charts[stem]["svg"], kind))
    raise HTTPException(404)
