"""The routes of the workbench. Each is a few lines: what is asked, who answers it, how it is shown."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from shlex import join
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from assay.record import catalogue, report
from assay.record.errors import AssayError, BadInput
from assay.record.types import SEEDS
from assay.web import asked, comparisons, export, frame, live_view, record_view
from assay.web.jobs import Busy, Jobs
from assay.web.security import App, Limits, TooLarge, guarded

HERE = Path(__file__).parent
FOLDERS = (HERE / "static", Path(report.__file__).parent / "site")
KINDS = {".css": "text/css", ".js": "text/javascript"}
LONGEST = 6 * 3600.0  # seconds that a study may run


@dataclass(frozen=True, slots=True)
class Settings:
    """How the workbench was started."""

    limits: Limits
    allow_code: bool = False
    opener: Path | None = None  # a page with the token that is gone when this ends


def make(settings: Settings) -> App:
    """The workbench as an ASGI app."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        app.state.jobs, app.state.settings, app.state.fields = Jobs(comparisons.shown), settings, {}
        app.state.places = set()
        watching = asyncio.create_task(app.state.jobs.watch())
        yield
        if settings.opener is not None:
            settings.opener.unlink(missing_ok=True)
        watching.cancel()
        await app.state.jobs.close()

    app = Starlette(
        routes=routes(), lifespan=lifespan,
        exception_handlers={
            AssayError: _sorry, HTTPException: _sorry, TooLarge: _sorry, KeyError: _sorry, ClientDisconnect: _sorry,
        },
    )  # fmt: skip
    return guarded(app, settings.limits)


def routes() -> list[Route]:
    """Everything that can be asked for."""
    from assay.web import describe

    paper = "/papers/{key}"
    job = "/api/jobs/{id}"
    return [
        Route("/", record),
        Route("/index.html", record),
        Route(paper + ".html", one_paper),
        Route(paper + "/export.html", paper_file),
        Route(paper + "/{file}", paper_file),
        Route("/compare", comparisons.overview),
        Route("/compare/{name}", comparisons.one),
        Route("/live", live_view.live),
        Route("/api/live", live_view.now, methods=["GET", "POST"]),
        Route("/static/{file}", static),
        Route("/api/record.{kind}", record_file),
        Route("/api/runs", start_run, methods=["POST"]),
        Route("/api/files", comparisons.take_file, methods=["POST"]),
        Route("/api/comparisons", comparisons.start, methods=["POST"]),
        Route("/api/comparisons/{name}", comparisons.form),
        Route("/api/jobs", list_jobs),
        Route(job + "/take/{file}", comparisons.take_along),
        Route(job, one_job, methods=["GET", "DELETE"]),
        Route(job + "/events", events),
        Route("/openapi.json", lambda request: JSONResponse(describe.openapi())),
    ]


# ------------------------------------------------------------------------------------------------ pages


async def record(request: Request) -> Response:
    """All papers, and the forest of all claims."""

    def drawn() -> Response:
        return frame.page("bench_index.html", "Record", ("contents.js",), **report.front(record_view.entries()))

    return await run_in_threadpool(drawn)


async def one_paper(request: Request) -> Response:
    """A paper: its idea, its claims and answers, its runs, and the button that runs it."""
    key, query = request.path_params["key"], request.query_params

    def drawn() -> Response:
        entry, before, after = record_view.one(key, query.get("run", ""))
        beside = query.get("with", "")
        changed: tuple[Any, list[Any], str] = (None, [], "")
        if beside and entry.result:
            _, then = record_view.run_named(key, beside)
            changed = (*record_view.differences(entry.result, then), then.started[:16].replace("T", " "))
        return frame.page(
            "bench_paper.html", "Record", ("run.js",), **report.about(entry), before=before, after=after,
            runs=record_view.runs(key, entry.stored), shown_run=entry.stored.stem if entry.stored else "",
            beside=beside, claims_changed=changed[0], facts_changed=changed[1], beside_when=changed[2],
            asked={name: query.get(name, "") for name in ("size", "seeds", "first_seed", "on", "fresh")},
            default_seeds=SEEDS["full" if query.get("size") == "full" else "quick"],
        )  # fmt: skip

    return await run_in_threadpool(drawn)


async def static(request: Request) -> Response:
    """Our own style and scripts, and the report's."""
    name = request.path_params["file"]
    found = _assets().get(name)
    if found is None:
        raise HTTPException(404)
    return FileResponse(found, media_type=KINDS[found.suffix], headers={"cache-control": "no-cache"})


@cache
def _assets() -> dict[str, Path]:
    return {path.name: path for folder in FOLDERS for path in folder.iterdir() if path.suffix in KINDS}


# ------------------------------------------------------------------------------------------------ files


async def paper_file(request: Request) -> Response:
    """A paper's page, plot, table or result, to take along."""
    key = request.path_params["key"]
    name = request.path_params.get("file", "export.html")

    def made() -> Response:
        entry, _, _ = record_view.one(key, request.query_params.get("run", ""))
        return export.of_paper(entry, name)

    return await run_in_threadpool(made)


async def record_file(request: Request) -> Response:
    """Every claim of the record as a table."""
    kind = request.path_params["kind"]
    return await run_in_threadpool(lambda: export.of_record(record_view.entries(), kind))


# ------------------------------------------------------------------------------------------------ jobs


async def start_run(request: Request) -> Response:
    """Begin a paper's study."""
    run = asked.read(await frame.json_body(request), asked.Run)
    paper = catalogue.paper(run.key)
    if not catalogue.is_built(paper):
        raise BadInput(f"'{run.key}' is in the record but not built yet")
    seeds = run.chosen
    command = join(record_view.command(run.key, run.size, seeds, run.on, run.fresh))
    what = {"size": run.size, "seeds": seeds, "on": run.on, "fresh": run.fresh}
    job = frame.jobs(request).start("run", run.key, command, what, limit=LONGEST)
    return JSONResponse(job.told(), 201)


async def list_jobs(request: Request) -> Response:
    """Jobs, the newest first; `name` chooses those of one paper or comparison."""
    name = request.query_params.get("name")
    found = [job.told() for job in frame.jobs(request).known.values() if name in (None, job.name)]
    return JSONResponse(found[::-1])


async def one_job(request: Request) -> Response:
    """One job; DELETE ends it early."""
    job = frame.job(request)
    if request.method == "DELETE":
        await frame.jobs(request).cancel(job)
        return JSONResponse(job.told(), 202)
    return JSONResponse(job.told() | {"answer": job.answer} if job.answer else job.told())


async def events(request: Request) -> Response:
    """What a job has said since the caller last asked, and how far it is."""
    after = request.query_params.get("after", "0")
    if not (after.isascii() and after.isdigit() and len(after) < 10):
        raise BadInput("after is no number of events")
    told = msgspec.json.encode(frame.job(request).since(int(after)))
    return Response(told, media_type="application/json", headers={"cache-control": "no-store"})


# ------------------------------------------------------------------------------------------------ refusals


async def _sorry(request: Request, error: Exception) -> Response:
    """One line, as JSON for scripts and as a page for people."""
    status, message = _told(error)
    if request.url.path.startswith("/api/") or "text/html" not in request.headers.get("accept", ""):
        return JSONResponse({"error": message}, status, headers=getattr(error, "headers", None))
    answer = frame.page("error.html", "", title="Not here" if status == 404 else "Not so", message=message)
    answer.status_code = status
    return answer


_STATUS: tuple[tuple[type[Exception], Callable[[Any], int]], ...] = (
    (TooLarge, lambda error: 413), (Busy, lambda error: 429), (BadInput, lambda error: 400),
    (KeyError, lambda error: 404), (HTTPException, lambda error: error.status_code), (AssayError, lambda error: 500),
    (ClientDisconnect, lambda error: 400),
)  # fmt: skip


def _told(error: Exception) -> tuple[int, str]:
    status = next(found(error) for kind, found in _STATUS if isinstance(error, kind))
    if isinstance(error, KeyError):
        return 404, "there is no such thing here"
    if isinstance(error, HTTPException):
        return status, error.detail
    message = " ".join(str(error).split())
    return (404, message) if message.startswith(("no paper has", "no room is called")) else (status, message)
