"""The study's tables, what its claims read off them, fits that find what was put in, and real sums over gloo."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from assay.record.types import NotMeasured
from assay.sim import topology
from assay.sim.hardware import device
from assay.sim.nccl import NcclModel
from assay.sim.sends import arrivals
from assay.training import nccl_model
from assay.training.interface import CollectiveModel
from assay.training.nccl_model import fitting
from assay.training.nccl_model.compare import compare, why


def put_in(path: Path, model: NcclModel, sizes: list[int], noise: float = 0.0) -> Path:
    """Times of a model as a CSV."""
    random = np.random.default_rng(0)
    seconds = model.seconds("all_reduce", range(model.topology.ranks), sizes)
    seconds = seconds * np.exp(noise * random.normal(size=len(sizes)))
    rows = [f"{size},{1e6 * t:.4f}" for size, t in zip(sizes, seconds, strict=True)]
    path.write_text("\n".join(["size,time", *rows]), encoding="utf-8")
    return path


SIZES = [2**k for k in range(10, 32, 2)]


def test_it_is_a_collective_model_of_the_room() -> None:
    model: CollectiveModel = NcclModel.of(device("h100"), nodes=2)
    assert model.seconds("all_gather", np.arange(16), np.array([1e3, 1e6])).shape == (2,)


def test_a_fit_finds_the_scales_that_were_put_in(tmp_path: Path) -> None:
    model = NcclModel.of(device("a100"), nodes=4, launch=1.3, latency=1.7, bandwidth=0.8)
    answer = compare(put_in(tmp_path / "mine.csv", model, SIZES), "4x8xa100")
    assert answer["fitted"] == {
        "launch": pytest.approx(1.3, rel=0.05), "latency": pytest.approx(1.7, rel=0.05),
        "bandwidth": pytest.approx(0.8, rel=0.02),
    }  # fmt: skip
    assert answer["table"][0]["model"] == "nccl-model" and answer["table"][0]["held_error"] < 0.01
    assert answer["why"].startswith("nccl-model is off by 0")


def test_residuals_are_those_of_every_size_and_say_what_nccl_would_do(tmp_path: Path) -> None:
    model = NcclModel.of(device("h100"), nodes=2)
    answer = compare(put_in(tmp_path / "mine.csv", model, SIZES, noise=0.05), "2x8xh100")
    assert [row["size"] for row in answer["residuals"]] == SIZES
    assert {row["in_fit"] for row in answer["residuals"]} == {True, False}
    assert (answer["residuals"][0]["algorithm"], answer["residuals"][-1]["algorithm"]) == ("tree", "ring")
    held = [abs(row["error"]) for row in answer["residuals"] if not row["in_fit"]]
    told = {row["model"]: row["held_error"] for row in answer["table"]}
    assert told["nccl-model"] == pytest.approx(np.mean(held))


def test_a_graph_of_ones_own_stands_for_a_cluster(tmp_path: Path) -> None:
    ring = [[rank, (rank + 1) % 8, 25e9, 1e-6] for rank in range(8)]
    (tmp_path / "ring.json").write_text(json.dumps({"ranks": 8, "links": ring}))
    model = NcclModel(topology.read(tmp_path / "ring.json"), bandwidth=0.5)
    answer = compare(put_in(tmp_path / "mine.csv", model, SIZES), str(tmp_path / "ring.json"))
    assert answer["fitted"]["bandwidth"] == pytest.approx(0.5, rel=0.02)
    assert answer["collective"]["cluster"] == "ring" and answer["collective"]["ranks"] == 8


def test_models_as_near_as_repeating_tie() -> None:
    rows = [{"model": "a", "held_error": 0.05}, {"model": "b", "held_error": 0.055}]
    assert why(rows) == "a and b tie at the sizes held back: 5.0 % and 5.5 % off."


def test_bad_input_is_told_in_a_line(refused: Callable[..., str], tmp_path: Path) -> None:
    plain = tmp_path / "plain.csv"
    plain.write_text("size,time\n" + "\n".join(f"{2**k},{k}" for k in range(10, 20)))
    run = ("compare", "nccl-model", "--input")
    assert "does not tell its ranks and GPUs; give --cluster" in refused(*run, str(plain))
    assert "write NODESxGPUSxDEVICE" in refused(*run, str(plain), "--cluster", "h100")
    assert "unknown device 'h1000'" in refused(*run, str(plain), "--cluster", "2x8xh1000")
    assert "at least two ranks" in refused(*run, str(plain), "--cluster", "1x1xh100")
    assert "cannot read" in refused(*run, str(tmp_path / "none.csv"))


@pytest.fixture(scope="module")
def modelled() -> pl.DataFrame:
    """The study's tables without the real part."""
    rows: list[dict[str, object]] = [{"experiment": "sends", "seed": 0, **nccl_model.played(cases=8, seed=0)}]
    for cluster in nccl_model.CLUSTERS:
        for name, trial in (("protocols", nccl_model.protocols), ("algorithms", nccl_model.algorithms)):
            if name == "protocols" or cluster != "4xgh200":
                found = trial(cluster, seed=0).values()
                rows += [{"experiment": name, "cluster": cluster, "seed": 0, **row} for row in found]
    return pl.from_dicts(rows, infer_schema_length=None)


def measured(table: pl.DataFrame, claim: str) -> float:
    return next(c for c in nccl_model.claims if c.id == claim).measure(table).value


def test_small_messages_want_ll_large_ones_simple_on_every_cluster(modelled: pl.DataFrame) -> None:
    found = modelled.filter(pl.col("experiment") == "protocols")
    for cluster in nccl_model.CLUSTERS:
        rows = found.filter(pl.col("cluster") == cluster).sort("bytes")
        first, last = rows.row(0, named=True), rows.row(-1, named=True)
        assert first["LL"] < min(first["LL128"], first["Simple"])
        assert last["Simple"] < last["LL128"] < last["LL"]


def test_claims_are_read_off_the_table(modelled: pl.DataFrame) -> None:
    assert nccl_model.SIZES[0] < measured(modelled, "crossover") < nccl_model.SIZES[-1]
    assert 0 <= measured(modelled, "ll128") <= 1
    assert measured(modelled, "algorithms") == 1.0
    assert measured(modelled, "closed-form") < 0.02
    assert measured(modelled, "sends") == 1.0
    for open_ in ("error", "gloo", "one-line"):
        with pytest.raises(NotMeasured):
            measured(modelled, open_)


def real(granted: float) -> pl.DataFrame:
    same = {"experiment": "gloo", "seed": 0, "error": 0.1, "granted": granted}
    return pl.from_dicts([same | {"in_fit": i % 2 == 0, "one_line_error": 0.3 + i / 100} for i in range(8)])


def test_the_real_part_answers_only_where_the_machine_was_idle() -> None:
    assert measured(real(1.0), "gloo") == pytest.approx(0.1)
    assert measured(real(1.0), "one-line") < 0.34
    with pytest.raises(NotMeasured, match="too busy"):
        measured(real(0.5), "gloo")


def test_a_ring_and_a_tree_of_real_processes_sum_rightly_and_fit() -> None:
    pytest.importorskip("torch")
    from assay.training.nccl_model import gloo

    found = gloo.measured([1024, 4096, 65536], rounds=1)  # raises where a sum is wrong
    assert set(found) == set(gloo.ALGORITHMS) and all(t > 0 for times in found.values() for t in times.values())


@pytest.mark.parametrize(("name", "ranks"), [("ring", 2), ("ring", 4), ("tree", 2), ("tree", 4)])
def test_what_is_fitted_is_what_the_sends_take(name: str, ranks: int) -> None:
    from assay.training.nccl_model.gloo import WORD, lowered

    played = arrivals(lowered(name, ranks, ranks * 400), WORD / 1e6, 1e-3).max()
    formula = nccl_model.stepped(name, ranks)(np.array([1e-3, 1e6]), np.array([ranks * 400.0]))
    assert formula[0] == pytest.approx(played)


def test_fits_recover_a_line() -> None:
    sizes = np.geomspace(1e3, 1e8, 20)
    used = fitting.every_other(20)
    found = fitting.fit(fitting.hockney, [(1e-4, 1e9)], sizes, 2e-5 + sizes / 3e9, used)
    assert found.numbers == pytest.approx([2e-5, 3e9], rel=1e-3)
    assert found.held_error < 1e-3 and fitting.interpolated(sizes, 2e-5 + sizes / 3e9, used).held_error > 1e-3
