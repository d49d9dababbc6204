"""What can be taken along: one self-contained page, a plot as SVG or PNG, a table as CSV or JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.responses import Response

from assay.record import report
from assay.record.charts import INK, PAPER
from assay.record.errors import BadInput
from assay.web import frame

STYLES = (Path(report.__file__).parent / "site" / "style.css", Path(__file__).parent / "static" / "bench.css")
# A page that is taken along is its own world: nothing of it may reach back into the workbench.
SANDBOX = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; img-src data:; sandbox"}


def of_paper(entry: report.Entry, name: str) -> Response:
    """A paper's page, plot, table or result."""
    result = entry.result
    if name == "export.html":
        return _file(report.paper_page(entry), "text/html", SANDBOX)
    if result is None:
        raise BadInput(f"{entry.paper.key} has no result yet; run it")
    match name:
        case "result.json":
            return _file(msgspec.json.format(msgspec.json.encode(result), indent=1), "application/json")
        case "table.csv":
            return _file(sheet(result.table), "text/csv")
        case "plot.svg" | "plot.png":
            drawing = entry.stored.with_suffix(".svg") if entry.stored else None
            if drawing is None or not drawing.exists():
                raise BadInput(f"this run of {entry.paper.key} has no plot")
            return picture(drawing.read_text(encoding="utf-8"), name.rpartition(".")[2])
    raise HTTPException(404)


def of_record(entries: Iterable[report.Entry], kind: str) -> Response:
    """Every claim, with its answer where there is one."""
    rows: list[dict[str, Any]] = []
    for entry in entries:
        paper = {"key": entry.paper.key, "room": entry.paper.room, "title": entry.paper.title}
        answers = entry.result.stated if entry.result else ()
        rows += [paper | msgspec.to_builtins(answer) for answer in answers]
        rows += [] if answers else [paper | msgspec.to_builtins(claim) for claim in entry.paper.claims]
    return table(rows, kind)


def table(rows: Sequence[Mapping[str, Any]], kind: str) -> Response:
    """Rows as JSON or CSV."""
    if kind == "json":
        return _file(msgspec.json.format(msgspec.json.encode(rows), indent=1), "application/json")
    if kind == "csv":
        return _file(sheet(rows), "text/csv")
    raise HTTPException(404)


def document(value: Any) -> Response:
    """Any value as JSON."""
    return _file(msgspec.json.format(msgspec.json.encode(value), indent=1), "application/json")


def alone(name: str, command: str, answer: Mapping[str, Any], charts: Sequence[Any]) -> Response:
    """A comparison as one page that needs nothing else."""
    style = "\n".join(path.read_text(encoding="utf-8") for path in STYLES)
    page = frame.rendered("alone.html", name=name, command=command, style=Markup(style), charts=charts, **answer)
    return _file(page, "text/html", SANDBOX)


def sheet(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as CSV, with every column that any of them has.

    A cell that a spreadsheet would take for a formula gets a quote in front.

    >>> sheet([{"policy": "=1+1", "ttft": 0.5}, {"policy": "b", "n": -3}])
    "policy,ttft,n\\r\\n'=1+1,0.5,\\r\\nb,,-3\\r\\n"
    """
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, names, restval="")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return text.getvalue()


def _cell(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def picture(drawing: str, kind: str) -> Response:
    """A drawing of ours, in ink on white."""
    drawing = drawing.replace("currentColor", INK)
    if kind == "svg":
        return _file(drawing, "image/svg+xml", SANDBOX)
    import vl_convert

    head, rest = drawing[: drawing.index(">") + 1], drawing[drawing.index(">") + 1 :]
    return _file(
        vl_convert.svg_to_png(f'{head}<rect width="100%" height="100%" fill="{PAPER}"/>{rest}', scale=2), "image/png"
    )


def _file(content: str | bytes, kind: str, heads: Mapping[str, str] | None = None) -> Response:
    return Response(content, media_type=kind, headers=dict(heads or {}))
