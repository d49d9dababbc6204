"""What the gateway says of itself, checked by a program that tries everything the description allows and forbids."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("uvloop")
pytest.importorskip("schemathesis")

from tests.live.conftest import Listening

SETTINGS = """
port = 0
[[engine]]
url = "{engine}"
[[key]]
tenant = "somebody"
env = "ASSAY_TEST_TENANT"
[[key]]
tenant = "operator"
env = "ASSAY_TEST_OPERATOR"
admin = true
"""


@pytest.fixture(scope="module")
def gateway(engine_process, tmp_path_factory):
    config = tmp_path_factory.mktemp("description") / "gateway.toml"
    config.write_text(SETTINGS.format(engine=engine_process("--instant")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ASSAY_TEST_TENANT", "tenant-key")
        patch.setenv("ASSAY_TEST_OPERATOR", "operator-key")
        process = Listening("gateway", "--config", str(config))
    yield process
    process.stop()


def test_schemathesis_finds_nothing(gateway, tmp_path):
    """As a tenant: an operator could be led to add engines anywhere.

    What only an engine can judge (whether a model or a length is one of its own) is not the gateway's to accept, so
    that check is left out.
    """
    with urllib.request.urlopen(f"{gateway.url}/openapi.json", timeout=10) as answer:
        described = json.loads(answer.read())
    for name in ("Chat", "Completion", "Embedding"):  # else hardly any generated request gets past the model's name
        described["components"]["schemas"][name]["properties"]["model"]["enum"] = ["qwen3-8b"]
    schema = tmp_path / "openapi.json"
    schema.write_text(json.dumps(described))
    program = Path(sys.executable).with_name("schemathesis")
    done = subprocess.run(
        [
            str(program), "run", str(schema), "--url", gateway.url, "-H", "Authorization: Bearer tenant-key",
            "--checks", "all", "--exclude-checks", "positive_data_acceptance", "--max-examples", "40",
            "--request-timeout", "20", "--seed", "1", "--no-color",
        ],
        capture_output=True, text=True, timeout=240, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]
    assert "No issues found" in done.stdout or "passed" in done.stdout.lower() or "✅" in done.stdout


def test_after_all_that_it_answers_as_before(gateway):
    request = urllib.request.Request(
        f"{gateway.url}/v1/completions",
        json.dumps({"model": "qwen3-8b", "prompt": "still there?", "max_tokens": 3}).encode(),
        {"Authorization": "Bearer tenant-key", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert json.loads(answer.read())["usage"]["completion_tokens"] == 3
    assert not [line for line in gateway.lines if "Traceback" in line]
