"""OpenAI's, Anthropic's, LiteLLM's and LangChain's own libraries, streaming helpers and all, through the gateway.

A library that this environment lacks is looked for in `.cache/clients`, which `make clients` fills.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("uvloop")

from tests.live import sdk_calls
from tests.live.conftest import Listening

ROOT = Path(__file__).parents[2]
CLIENTS = ROOT / ".cache" / "clients" / "bin" / "python"
MODULES = {"langchain": ("langchain_openai", "langchain_anthropic")}


@pytest.fixture(scope="module")
def gateway(engine_process, tmp_path_factory):
    log = tmp_path_factory.mktemp("sdks") / "access.jsonl"
    engine = engine_process("--speed", "50", "--model", sdk_calls.MODEL)
    process = Listening("gateway", "--engines", engine, "--port", "0", "--log", str(log))
    process.log = log
    yield process
    assert process.stop() == 0, process.lines


def python_with(library: str) -> str:
    """The interpreter that has a library."""
    if all(importlib.util.find_spec(module) for module in MODULES.get(library, (library,))):
        return sys.executable
    if not CLIENTS.exists():
        pytest.skip(f"{library} is not here: make clients")
    return str(CLIENTS)


@pytest.mark.parametrize("library", sdk_calls.CALLS)
def test_a_library_s_own_helpers_read_what_comes_through(library, gateway):
    command = [python_with(library), str(Path(sdk_calls.__file__)), library, gateway.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(told) >= 4
    texts: dict[str, str] = {}
    for line in told:
        kind = line["call"].partition(" ")[0]
        if "input" in line:  # a call of a function, parsed by the library
            assert line.get("name", "weather").lower() == "weather"
            assert set(line["input"]) == {"city", "days"} and isinstance(line["input"]["days"], int)
        if "out" in line:
            assert line["out"] == len(line["text"].split()) >= 16, line  # a word is a token of the mock engine
        if "text" in line and line.get("call") != "responses stream":  # that one has instructions
            assert texts.setdefault(kind, line["text"]) == line["text"], line
        if "joined" in line:
            assert line["joined"] == line["text"]
        if "deltas" in line:
            assert line["deltas"] >= 6, line  # piece by piece, not at the end
        assert line.get("in order", True)
    paths = {json.loads(line)["endpoint"] for line in gateway.log.read_text().splitlines()}
    assert paths <= {"chat", "responses", "messages"}  # all of them metered and routed
