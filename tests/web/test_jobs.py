"""Studies and comparisons through the API: progress, cancel, resume, two at once, what is taken along."""

from __future__ import annotations

import csv
import io
import json
import shlex
import subprocess
import sys
from pathlib import Path
from urllib.parse import quote

import pytest

from tests.web.conftest import Bench, Gated, environment, mooncake, until

PAPER = {"key": "third-paper", "seeds": "2"}


def test_a_cancelled_study_keeps_its_finished_cases_and_the_next_run_resumes(gated: Gated) -> None:
    _, job = gated.json("POST", "/api/runs", PAPER)
    assert job["state"] == "running" and job["command"] == "assay run third-paper --seeds 2"
    until(lambda: len(gated.trials) >= 2)  # the small cases are through, the others wait at the gate
    until(lambda: b'"case"' in _events(gated, job["id"]))
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


def _events(bench: Bench, job: str) -> bytes:
    """What a job has said so far: the stream stays open, so only its beginning is read."""
    import socket

    with socket.create_connection(("127.0.0.1", bench.port), timeout=30) as link:
        link.sendall(f"GET /api/jobs/{job}/events HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n".encode())
        link.settimeout(1.0)
        found = b""
        try:
            while part := link.recv(65536):
                found += part
        except TimeoutError:
            pass
    return found


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
    parts = _all_events(bench, job["id"])
    assert any("html" in part for part in parts) and evil not in "".join(part.get("html", "") for part in parts)
    _, job = bench.json("POST", "/api/comparisons", {"name": "serving", "options": options, "code": code})
    ended = bench.wait(job["id"])
    assert ended["state"] == "failed" and evil in ended["message"]  # JSON: pages set it as text
    assert evil not in bench.ask("GET", f"/papers/{quote(evil)}.html", accept="text/html")[2].decode()


def _all_events(bench: Bench, job: str) -> list[dict]:
    body = bench.ask("GET", f"/api/jobs/{job}/events")[2].decode()
    return [json.loads(line.removeprefix("data: ")) for line in body.splitlines() if line.startswith("data: ")]


def test_a_client_that_was_cut_off_goes_on_where_it_was(bench: Bench, answered: dict) -> None:
    whole = _all_events(bench, answered["id"])
    assert whole[-1]["event"] == "end"
    body = bench.ask("GET", f"/api/jobs/{answered['id']}/events", last_event_id=str(len(whole) - 1))[2]
    assert body.count(b"data: ") == 1
    assert bench.ask("GET", f"/api/jobs/{answered['id']}/events", last_event_id="x")[0] == 400


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
