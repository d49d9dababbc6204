"""What the views share: the frame around a page, the jobs, and bodies that no other site can send."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse

from assay.record import report
from assay.web.jobs import Job, Jobs

TEMPLATES = Path(__file__).with_name("templates")


def rendered(template: str, **values: Any) -> str:
    """A template of the workbench, or of the report."""
    return report.templates(TEMPLATES).get_template(template).render(**values)


def page(template: str, view: str, scripts: tuple[str, ...] = (), **values: Any) -> HTMLResponse:
    """A page in the workbench's frame."""
    return HTMLResponse(rendered(template, view=view, scripts=("bench.js", *scripts), **values))


def jobs(request: Request) -> Jobs:
    """All jobs of this server."""
    found: Jobs = request.app.state.jobs
    return found


def job(request: Request) -> Job:
    """The job that the address names."""
    return jobs(request).get(request.path_params["id"])


async def json_body(request: Request) -> bytes:
    """A body of a kind that another site's form could not send without asking first."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise HTTPException(415, "application/json is expected")
    return await request.body()
