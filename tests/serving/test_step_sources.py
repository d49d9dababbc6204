"""A fleet says whose step times it has, and a run how much of it lay beyond what was measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from assay.record.errors import BadInput
from assay.serving.baselines.routers import RoundRobin
from assay.serving.engine import step_sources
from assay.serving.engine.simulator import simulate
from assay.serving.fleet import FleetSpec, parse
from assay.sim import trust
from assay.workloads.requests import Requests


def sources(fleet: FleetSpec) -> list[str]:
    return [one.source for one in fleet.instances]


def test_a_fleet_is_measured_where_somebody_has_and_says_what_it_is() -> None:
    fleet = parse("2xh200:llama-3-8b+1xh200:llama-3-8b:tp2:decode+1xh200:llama-3-8b:roofline:prefill+1xa100:qwen3-8b")
    assert sources(fleet) == ["measured", "measured", "scaled", "roofline", "roofline"]
    assert [one.role for one in fleet.instances] == ["both", "both", "decode", "prefill", "both"]
    assert fleet.instances[3].name == "h200:llama-3-8b"
    assert step_sources.used(fleet).startswith("2 x h200:llama-3-8b measured, 1 x h200:llama-3-8b:tp2 scaled, 1 x")
    assert sources(parse("2xh200:llama-3-8b", cost="roofline")) == ["roofline"] * 2
    assert sources(parse("1xh200:llama-3-8b:measured", cost="roofline")) == ["measured"]


def test_a_fleet_file_takes_the_same_words(tmp_path: Path) -> None:
    file = tmp_path / "fleet.toml"
    file.write_text('[[instance]]\nlayout = "h200:qwen3-32b"\n[[instance]]\nlayout = "h200:qwen3-32b:roofline"\n')
    assert sources(parse(str(file))) == ["measured", "roofline"]
    assert sources(parse(str(file), cost="roofline")) == ["roofline", "roofline"]
    with pytest.raises(BadInput, match="should be tpN"):
        parse("1xh200:qwen3-32b:guessed")


def test_iterations_beyond_what_was_measured_are_counted_and_said() -> None:
    fleet = parse("1xh200:llama-3-8b")
    short = simulate(Requests.of([0.0, 0.5], [1000, 800], [20, 20]), fleet, RoundRobin())
    assert step_sources.beyond(short) == 0.0
    assert step_sources.told(fleet, [short]) == trust.sentence("h200:llama-3-8b")
    long = simulate(Requests.of([0.0], [8000], [10]), fleet, RoundRobin())  # one iteration of 8,000, nine of one
    assert step_sources.beyond(long) == pytest.approx(0.1)
    assert "10 % of the iterations lay beyond what was measured (2,048 tokens" in step_sources.told(
        fleet, [short, long]
    )
    wide = replace(fleet, instances=(replace(fleet.instances[0], max_seqs=512),))
    crowd = simulate(Requests.of([0.0] * 400, [4] * 400, [50] * 400), wide, RoundRobin())
    assert step_sources.beyond(crowd) > 0.9  # 400 decodes at once
    sheets = parse("1xh200:llama-3-8b:roofline")
    assert step_sources.beyond(simulate(Requests.of([0.0], [8000], [10]), sheets, RoundRobin())) == 0.0
