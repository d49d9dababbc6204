"""What the workbench says of itself, checked by a program that tries everything the description allows and forbids."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("schemathesis")

from assay.web import describe
from assay.web.app import routes
from tests.web.conftest import Bench


def test_every_route_is_described() -> None:
    described = set(describe.openapi()["paths"])
    unsaid = {"/index.html", "/papers/{key}/{file}", "/static/{file}", "/openapi.json", "/api/record.{kind}",
              "/api/comparisons/{name}", "/api/jobs/{id}/take/{file}"}  # fmt: skip
    assert {route.path for route in routes()} - unsaid <= described


def test_schemathesis_finds_nothing(bench: Bench, tmp_path: Path) -> None:
    """No study is really run: the key that it may make up is one that is not built."""
    status, described = bench.json("GET", "/openapi.json")
    assert status == 200
    for name in ("Run", "Comparison"):
        field = "key" if name == "Run" else "name"
        described["components"]["schemas"][name]["properties"][field] = {"enum": ["no-such-paper", "nor-this"]}
    schema = tmp_path / "openapi.json"
    schema.write_text(json.dumps(described))
    program = Path(sys.executable).with_name("schemathesis")
    done = subprocess.run(
        [
            str(program), "run", str(schema), "--url", bench.url, "--header", f"Authorization: Bearer {bench.token}",
            "--checks", "all", "--exclude-checks",
            "positive_data_acceptance", "--max-examples", "15", "--generation-deterministic", "--phases",
            "examples,coverage,fuzzing", "--request-timeout", "30",
        ],
        capture_output=True, text=True, timeout=600, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, "\n".join(line[:300] for line in done.stdout.splitlines())[-6000:]
