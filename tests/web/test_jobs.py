"""Studies and comparisons through the API: progress, cancel, resume, two at once, what is taken along."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("starlette")

from assay.web import jobs
from tests.web.conftest import Bench, Gated, environment, mooncake, until

PAPER = {"key": "third-paper", "seeds": "2"}


def test_a_cancelled_study_keeps_its_finished_cases_and_the_next_run_resumes(gated: Gated) -> None:
    _, job = gated.json("POST", "/api/runs", PAPER)
    assert job["state"] == "running" and job["command"] == "assay run third-paper --seeds 2"
    until(lambda: len(gated.trials) >= 2)  # the small cases are through, the others wait at the gate
    until(lambda: sum(event["event"] == "case" for event in events(gated, job["id"])) >= 2)
    assert gated.json("POST", "/api/runs", PAPER)[1]["id"] == job["id"]  # who asks again joins
    assert gated.json("DELETE", f"/api/jobs/{job['id']}")[0] == 202
    ended = gated.wait(job["id"])
    assert ended["state"] == "stopped" and "2 finished cases are kept" in ended["message"]

    gated.gate.touch()
    _, again = gated.json("POST", "/api/runs", PAPER)
    done = gated.wait(again["id"])
    assert done["state"] == "done" and done["answer"]["resumed"] == 2
    assert sorted(gated.trials) == ["1 0", "1 1", "2 0", "2 1", "3 0", "3 1"]  # nothing was measured twice

    page = gated.ask("GET", "/papers/third-paper.html")[2].decode()
    assert "Stored runs" in page and "Take it with you" in page and "A Third Paper &amp; Its" in page
    for file, kind in {
        "export.html": "text/html", "plot.svg": "image/svg+xml", "plot.png": "image/png", "table.csv": "text/csv",
        "result.json": "application/json",
    }.items():  # fmt: skip
        status, heads, body = gated.ask("GET", f"/papers/third-paper/{file}")
        assert status == 200 and heads["content-type"].startswith(kind) and body, file
        if file.endswith((".html", ".svg")):
            assert "sandbox" in heads["content-security-policy"]


def events(bench: Bench, job: str, after: int = 0) -> list[dict]:
    return bench.json("GET", f"/api/jobs/{job}/events?after={after}")[1]["events"]


def test_two_runs_are_compared_claim_by_claim(gated: Gated) -> None:
    gated.gate.touch()
    for seeds in ("2", "3"):
        _, job = gated.json("POST", "/api/runs", PAPER | {"seeds": seeds})
        assert gated.wait(job["id"])["state"] == "done"
    names = sorted(path.stem for path in (gated.package.home / "results" / "third-paper").glob("*.json"))
    page = gated.ask("GET", f"/papers/third-paper.html?run={names[1]}&with={names[0]}")[2].decode()
    assert "What changed since" in page and "0, 1" in page and "0–2" in page  # the seeds of both
    assert gated.ask("GET", "/papers/third-paper.html?run=../../x")[0] == 400


def test_a_study_that_cannot_run_says_why_in_one_line(bench: Bench) -> None:
    assert bench.json("POST", "/api/runs", {"key": "no-such"})[0] == 404
    for wrong in (
        {"seeds": "0"},
        {"seeds": "1,1"},
        {"on": "ray://;rm"},
        {"size": "huge"},
        {"more": 1},
        {"first_seed": -1},
    ):
        status, told = bench.json("POST", "/api/runs", {"key": "div"} | wrong)
        assert status == 400 and "\n" not in told["error"], wrong
    assert bench.json("GET", "/api/jobs/0000")[0] == 404


class Silent:
    """A process that never answers."""

    alive = True

    async def ask(self, request: Mapping[str, Any]) -> AsyncIterator[dict[str, Any]]:
        await asyncio.get_running_loop().create_future()
        yield {}

    def interrupt(self) -> None:
        self.alive = False

    async def end(self) -> None:
        self.alive = False


def silent_jobs(monkeypatch: pytest.MonkeyPatch, clock: Callable[[], float] = lambda: 0.0) -> jobs.Jobs:
    """Jobs whose processes never answer, by a clock of the test's."""

    async def start(folder: Path, code: bool = False) -> Silent:
        return Silent()

    monkeypatch.setattr(jobs.Worker, "start", start)
    return jobs.Jobs(clock=clock)


def test_a_comparison_ends_when_nobody_has_looked_for_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    async def drill() -> None:
        nonlocal now
        here = silent_jobs(monkeypatch, lambda: now)
        left = here.start("compare", "div", "assay compare div", {"words": []}, limit=1e9)
        kept = here.start("compare", "serving", "assay compare serving", {"words": []}, limit=1e9)
        study = here.start("run", "div", "assay run div", {}, limit=1e9)
        for second in range(0, 90, 10):  # a page asks for one of them every ten seconds
            now = float(second)
            here.get(kept.id)
            await here.end_unseen()
            assert (left.state == "running") == (second < jobs.UNSEEN)
        assert "no page had asked" in left.message
        assert kept.state == study.state == "running"  # a study goes on: its cases are kept
        await here.close()

    asyncio.run(drill())


def test_two_reloads_join_what_they_asked_and_lock_nobody_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def drill() -> None:
        here = silent_jobs(monkeypatch)
        first = here.start("compare", "serving", "…", {"words": ["--rate", "x2"]}, limit=1e9)
        assert here.start("compare", "serving", "…", {"words": ["--rate", "x2"]}, limit=1e9) is first
        other = here.start("compare", "serving", "…", {"words": ["--rate", "x4"]}, limit=1e9)
        with pytest.raises(jobs.Busy, match="serving and serving run already; wait for one, or cancel one"):
            here.start("compare", "div", "…", {"words": []}, limit=1e9)
        await here.cancel(other)  # at once, while its process is only being started
        assert other.state == "stopped"
        assert here.start("compare", "div", "…", {"words": []}, limit=1e9).state == "running"
        await here.close()

    asyncio.run(drill())


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5), st.randoms(use_true_random=False))
def test_progress_never_runs_backwards_and_counts_every_case_once(totals: list[int], random: Random) -> None:
    progress, before = jobs.Progress(), 0
    for total in totals:
        progress.take(0, total)
        for done in range(1, total + 1):
            late = random.choice([done, done, max(1, done - 1)])  # words of two workers may cross
            progress.take(done, total)
            progress.take(late, total)
            assert progress.done >= before
            before = progress.done
    assert progress.done == sum(totals) and progress.experiment == len(totals)


def test_every_running_job_is_listed_and_can_be_cancelled(bench: Bench) -> None:
    slow = "class Slow:\n    def route(self, request, fleet):\n        while True:\n            pass\n"
    options = {"trace": ["chat"], "limit": ["60"], "policies": ["lmetric"], "fleet": ["2xh200:qwen3-8b"]}
    asked = {"name": "serving", "options": options, "code": slow}
    _, job = bench.json("POST", "/api/comparisons", asked)
    assert bench.json("POST", "/api/comparisons", asked)[1]["id"] == job["id"]  # as a reloaded page asks
    listed = [one for one in bench.json("GET", "/api/jobs")[1] if one["state"] == "running"]
    assert [(one["id"], one["kind"]) for one in listed] == [(job["id"], "compare")]
    assert bench.json("DELETE", f"/api/jobs/{job['id']}")[0] == 202
    assert bench.wait(job["id"])["message"] == "cancelled"


@pytest.fixture(scope="module")
def answered(bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> dict:
    """A comparison of two routers on a dropped trace."""
    status, kept = bench.drop(mooncake(tmp_path_factory.mktemp("trace") / "mooncake.jsonl"))
    assert status == 201
    options = {"trace": [f"file:{kept['file']}"], "policies": ["lmetric,round-robin"], "fleet": ["2xh200:qwen3-8b"]}
    _, job = bench.json("POST", "/api/comparisons", {"name": "serving", "options": options})
    ended = bench.wait(job["id"])
    assert ended["state"] == "done", ended
    return ended


def test_the_command_that_is_shown_gives_the_same_answer(answered: dict, tmp_path: Path) -> None:
    words = shlex.split(answered["command"])
    assert words[:3] == ["assay", "compare", "serving"]
    done = subprocess.run(
        [sys.executable, "-m", "assay.cli.main", *words[1:], "--json"],
        env=environment(tmp_path), capture_output=True, text=True, timeout=180, check=True,
    )  # fmt: skip
    typed, seen = json.loads(done.stdout), answered["answer"]["answer"]
    apart = {"sim_seconds"}
    for mine, theirs in zip(typed["table"], seen["table"], strict=True):
        assert {k: v for k, v in mine.items() if k not in apart} == {k: v for k, v in theirs.items() if k not in apart}
    assert typed["why"] == seen["why"]


def test_an_answer_can_be_taken_along(bench: Bench, answered: dict) -> None:
    take = f"/api/jobs/{answered['id']}/take"
    rows = list(csv.DictReader(io.StringIO(bench.ask("GET", f"{take}/table.csv")[2].decode())))
    assert {row["policy"] for row in rows} == {"lmetric", "round-robin"}
    assert json.loads(bench.ask("GET", f"{take}/table.json")[2])[0]["policy"] == "lmetric"
    page = bench.ask("GET", f"{take}/page.html")[2].decode()
    assert "<svg" in page and "assay compare serving" in page and "<script" not in page and len(page) < 1 << 20
    assert not [word for word in ('src="', "url(", '<link rel="stylesheet"') if word in page.replace("url(#", "")]
    assert bench.ask("GET", f"{take}/latency.png")[2].startswith(b"\x89PNG")
    assert bench.ask("GET", f"{take}/latency.svg")[2].startswith(b"<svg")
    assert bench.ask("GET", f"{take}/nothing.txt")[0] == 404


def test_html_in_a_trace_and_in_a_policy_is_only_text(bench: Bench, tmp_path: Path) -> None:
    evil = "<img src=x onerror=alert(1)>"
    trace = tmp_path / "evil.csv"
    trace.write_text(
        "timestamp,prompt_tokens,completion_tokens,model\n" + "".join(f'{n},100,5,"{evil}"\n' for n in range(40))
    )
    _, kept = bench.drop(trace, f"{evil}.csv")
    code = (
        f"class Mine:\n    key = '{evil}'\n    def route(self, request, fleet):\n        raise ValueError('{evil}')\n"
    )
    options = {"trace": [f"file:{kept['file']}"], "policies": ["lmetric"], "fleet": ["2xh200:qwen3-8b"]}
    _, job = bench.json("POST", "/api/comparisons", {"name": "serving", "options": options})
    ended = bench.wait(job["id"])
    assert ended["state"] == "done", ended
    for file in ("page.html",):
        assert evil not in bench.ask("GET", f"/api/jobs/{job['id']}/take/{file}")[2].decode()
    parts = events(bench, job["id"])
    assert any("html" in part for part in parts) and evil not in "".join(part.get("html", "") for part in parts)
    _, job = bench.json("POST", "/api/comparisons", {"name": "serving", "options": options, "code": code})
    ended = bench.wait(job["id"])
    assert ended["state"] == "failed" and evil in ended["message"]  # JSON: pages set it as text
    assert evil not in bench.ask("GET", f"/papers/{quote(evil)}.html", accept="text/html")[2].decode()


def test_who_asks_again_gets_what_came_since(bench: Bench, answered: dict) -> None:
    whole = events(bench, answered["id"])
    assert whole[-1]["event"] == "end"
    assert events(bench, answered["id"], len(whole) - 1) == whole[-1:]
    assert events(bench, answered["id"], len(whole)) == []
    for wrong in ("x", "-1", "1e3", "9" * 20):
        assert bench.ask("GET", f"/api/jobs/{answered['id']}/events?after={wrong}")[0] == 400


def test_policies_that_raise_and_that_are_none_get_one_line_and_the_server_lives(bench: Bench) -> None:
    options = {"trace": ["chat"], "limit": ["60"], "policies": ["lmetric"], "fleet": ["2xh200:qwen3-8b"]}
    for code, says in {
        "class Bad:\n    def route(self, request, fleet):\n        return 1 / 0\n": "ZeroDivisionError",
        "class Far:\n    def route(self, request, fleet):\n        return 99\n": "instance 99",
        "class Broken(:\n": "SyntaxError",
        "import os\nclass Gone:\n    def route(self, request, fleet):\n        os._exit(3)\n": "exit code 3",
    }.items():
        _, job = bench.json("POST", "/api/comparisons", {"name": "serving", "options": options, "code": code})
        ended = bench.wait(job["id"])
        assert ended["state"] == "failed" and says in ended["message"] and "\n" not in ended["message"], ended
    status, told = bench.json("POST", "/api/comparisons", {"name": "serving", "code": "print('no class')"})
    assert status == 400 and "a class with a method route" in told["error"]
    assert bench.ask("GET", "/")[0] == 200


@pytest.mark.parametrize(
    ("name", "option", "file"),
    [
        ("radius-fps", "cloud", "scan.ply"), ("div", "graph", "edges.txt"), ("check", "history", "history.edn"),
        ("trace", "files", "run/rank-0.json"),
    ],
)  # fmt: skip
def test_clouds_graphs_histories_and_profiler_traces_are_taken_too(
    bench: Bench, name: str, option: str, file: str
) -> None:
    status, kept = bench.drop(Path(__file__).parents[2] / "examples" / file)
    assert status == 201
    asked = {"name": name, "options": {option: [f"file:{kept['file']}"]}}
    _, job = bench.json("POST", "/api/comparisons", asked)
    ended = bench.wait(job["id"])
    assert ended["state"] == "done", ended
    assert ended["answer"]["answer"]["table"] and ended["answer"]["answer"]["why"]
