"""The study: every tool gives back what it was given, and each claim is answered from the tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

pytest.importorskip("torch", reason="pip install torch")

from assay.data import orbax
from assay.data.orbax import tools
from assay.record.tables import joined
from assay.record.types import NotMeasured


def dear_ones_apart() -> list[object]:
    """All tools but Orbax itself; to import torch's distributed checkpoints takes longer than all the others."""
    marks = {"dcp": pytest.mark.slow}
    return [pytest.param(tool, id=tool.name, marks=marks.get(tool.name, ())) for tool in tools.TOOLS
            if tool.name != "orbax"]  # fmt: skip


@pytest.mark.parametrize("tool", dear_ones_apart())
def test_a_tool_gives_back_what_it_was_given(tool: tools.Tool, tmp_path: Path) -> None:
    if not tool.here:
        pytest.skip(f"{tool.needs} is not installed")
    state = tools.tensors(300_000, 5, seed=3)
    with tools.settled():
        told = orbax._once(tool, state, tmp_path / f"{tool.name}-1", 300_000)
    tools.leave(tmp_path)
    assert told["same"] == 1.0
    assert all(told[column] > 0 for column in ("save", "load", "load_warm", "resume"))
    assert (told["blocks"] is None) == (tool.start is None)


def test_partial_restores_read_what_they_say() -> None:
    read = {name: row["read"] for name, row in orbax.parts(seed=1).items()}
    assert read["the model alone"] == 1.0
    assert 1.0 <= read["half of the rows"] <= 1.1
    assert read["half of the columns"] == 2.0
    assert read["half of the columns, unchecked"] == 1.0


def table(**seconds: float) -> pl.DataFrame:
    rows: list[dict[str, Any]] = [
        {
            "megabytes": 64, "arrays": 8, "tool": name, "seed": seed, "save": took * (1 + seed / 100), "load": took,
            "blocks": 0.1, "async_memory": 1.1,
        }
        for name, took in seconds.items()
        for seed in (0, 1, 2)
    ]  # fmt: skip
    crashes = pl.DataFrame({"ops": [9, 9], "seed": [0, 1], "cases": [100, 100], "kept": [100, 99]})
    return joined({"speed": pl.from_dicts(rows), "crashes": crashes})


def answer(name: str, found: pl.DataFrame) -> Any:
    return next(claim for claim in orbax.claims if claim.id == name).measure(found)


def test_the_papers_claim_is_orbax_beside_torchs_distributed_checkpoint() -> None:
    found = answer("save", table(assay=1.0, dcp=3.0, safetensors=0.5, orbax=1.5))
    assert found.value == pytest.approx(2.0) and "beside dcp" in found.cases


def test_ours_is_compared_with_the_quickest_of_the_others() -> None:
    found = answer("own-save", table(assay=1.0, dcp=3.0, safetensors=0.5, orbax=1.5))
    assert found.value == pytest.approx(0.5) and "beside safetensors" in found.cases


def test_without_orbax_its_claim_is_not_measured() -> None:
    with pytest.raises(NotMeasured, match="pip install orbax-checkpoint jax"):
        answer("load", table(assay=1.0, dcp=3.0))


def test_one_lost_case_breaks_the_universal_claim() -> None:
    found = answer("crashes", table(assay=1.0, dcp=1.0))
    assert (found.value, found.n) == (pytest.approx(0.995), 200)


def test_states_differ_by_seed_and_have_the_size_asked_for() -> None:
    one, other = tools.tensors(10**6, 3, 0), tools.tensors(10**6, 3, 1)
    assert sum(t.numel() * 4 for t in one.values()) == pytest.approx(10**6, rel=0.05)
    assert not np.array_equal(one["layers.0.weight"], other["layers.0.weight"])


def test_tools_are_compared_on_a_state_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from click.testing import CliRunner

    from assay.cli.compare import command

    monkeypatch.setattr(tools, "TOOLS", [tool for tool in tools.TOOLS if tool.name in ("assay", "torch-save")])
    arrays: dict[str, Any] = {"model/w": np.arange(9, dtype=np.float32), "b": np.int64(3)}
    np.savez(tmp_path / "mine.npz", **arrays)
    told = CliRunner().invoke(command, ["orbax", "--input", str(tmp_path / "mine.npz"), "--rounds", "1", "--json"])
    answer = json.loads(told.output)
    assert {row["tool"] for row in answer["table"]} == {"assay", "torch-save"}
    assert all(row["same"] == 1.0 for row in answer["table"]) and answer["state"]["arrays"] == 2


def test_a_difference_within_a_tenth_is_a_tie() -> None:
    from assay.data.orbax.compare import _why

    rows = [{"tool": "a", "save": 1.0, "load": 2.0, "same": 1.0}, {"tool": "b", "save": 1.05, "load": 1.0, "same": 0.0}]
    assert (
        _why(rows)
        == "a and b tie at a save; b is 2.0 times as fast at a load as a. b did not give back what was saved."
    )
