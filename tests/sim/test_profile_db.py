"""The profile database: samples in, functions of the request out, and times of models it never saw."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.record import traces
from assay.record.errors import BadInput
from assay.sim import op_surface, vidur_profiles
from assay.sim.profile_db import ProfileDB, fit, monotone, step_cost

POSITIVE = st.floats(1e-7, 1e-3)


def test_any_sqlite_tool_reads_it(tmp_path: Path) -> None:
    db = ProfileDB(tmp_path / "mine.sqlite")
    db.put("mm", "mm(T×64, 64×32)", "gpu", {"T": 8}, 1e-5)
    db.use("llama", {"mm(T×64, 64×32)": 32}, backend="sdpa")
    db.save()
    with sqlite3.connect(tmp_path / "mine.sqlite") as plain:
        row = plain.execute("SELECT name, signature, dims, seconds FROM op JOIN sample ON op.id = sample.op").fetchone()
        assert row == ("mm", "mm(T×64, 64×32)", '{"T":8}', 1e-5)
        assert plain.execute("SELECT model, count FROM uses").fetchall() == [("llama", 32)]
    assert ProfileDB(tmp_path / "mine.sqlite").operations("llama", "sdpa") == {"mm(T×64, 64×32)": 32}


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "no.sqlite").write_text("this is no database, and long enough to be looked at as one: " * 20)
    with pytest.raises(BadInput, match="not a profile database"):
        ProfileDB(tmp_path / "no.sqlite")
    db = ProfileDB()
    with pytest.raises(BadInput, match="is no time"):
        db.put("mm", "mm", "gpu", {"T": 1}, 0.0)
    with pytest.raises(BadInput, match="profile it first"):
        db.fit("mm", "gpu")
    with pytest.raises(BadInput, match="must vary"):
        fit([({"x": 1}, 1.0)])


def test_machines_and_configurations_are_kept_apart() -> None:
    db = ProfileDB()
    db.put("mm", "mm(T)", "a", {"T": 1}, 1.0)
    assert db.has("mm(T)", "a")
    assert not db.has("mm(T)", "b")
    assert not db.has("mm(T)", "a", config="tile 64")


@settings(max_examples=40, deadline=None)
@given(POSITIVE, POSITIVE, st.floats(1e-10, 1e-7))
def test_attention_fits_recover_their_coefficients(a0: float, a1: float, a2: float) -> None:
    decode = [({"b": b, "S": s}, a0 + a1 * b + a2 * s) for b in (1, 4, 32) for s in (64, 4096, 65_536)]
    chunks = [({"c": c, "pre": p}, a0 + a1 * c + a2 * c * (p + c / 2)) for c in (16, 256, 2048) for p in (0, 4096)]
    found = fit(decode + chunks)
    for dims, seconds in decode + chunks:
        assert found.seconds(**dims) == pytest.approx(seconds, rel=1e-4)


def test_a_window_bounds_the_context() -> None:
    samples = [({"b": b, "S": b * c}, 1e-6 * b + 1e-9 * b * min(c, 100)) for b in (1, 8) for c in (50, 100, 800)]
    db = ProfileDB()
    for dims, seconds in samples:
        db.put("paged_attention", "paged_attention", "gpu", dims, seconds)
    cost = step_cost(db, {"paged_attention": 2}, "gpu", max_tokens=16, window=100)
    assert cost.seconds(b=4, context=4 * 5000) == pytest.approx(2 * (4e-6 + 1e-9 * 400), rel=1e-3)


@given(st.lists(st.tuples(st.integers(1, 5000), POSITIVE), min_size=1, max_size=30))
def test_a_curve_never_falls(rows: list[tuple[int, float]]) -> None:
    curve = monotone([n for n, _ in rows], [t for _, t in rows])
    values = curve(np.arange(1, 10_000, 7))
    assert np.all(np.diff(values) >= -1e-15)
    assert min(t for _, t in rows) - 1e-12 <= values[0] <= max(t for _, t in rows) + 1e-12


def test_a_step_is_the_sum_of_its_operations() -> None:
    db = ProfileDB()
    for n in (1, 10, 100):
        db.put("mm", "mm(T)", "gpu", {"T": n}, 1e-3 + 1e-5 * n)
        db.put("mm", "mm(R)", "gpu", {"R": n}, 2e-3 + 1e-6 * n)
    db.put("paged_attention", "paged_attention", "gpu", {"b": 1, "S": 100}, 1e-4)
    cost = step_cost(db, {"mm(T)": 4, "mm(R)": 1, "paged_attention": 4}, "gpu", max_tokens=100)
    without = step_cost(db, {"mm(T)": 4, "mm(R)": 1}, "gpu", max_tokens=100)
    assert without.seconds(b=10, context=0) == pytest.approx(4 * (1e-3 + 1e-4) + 2e-3 + 1e-6 + 10e-6, rel=1e-3)
    assert cost.seconds(b=1, context=100) - without.seconds(b=1, context=100) == pytest.approx(4e-4, rel=1e-6)


def test_graph_sizes_make_stairs() -> None:
    db = ProfileDB()
    for n in (1, 100):
        db.put("mm", "mm(T)", "gpu", {"T": n}, 1e-5 * n)
    cost = step_cost(db, {"mm(T)": 1}, "gpu", max_tokens=100, padded=(8, 16))
    assert cost.tokens[3] == cost.tokens[8] == pytest.approx(8e-5)
    assert cost.tokens[9] == cost.tokens[16] == pytest.approx(16e-5)
    assert cost.tokens[17] == pytest.approx(17e-5)


# ------------------------------------------------------------------------------------ models never profiled


def vidur_like(path: Path, d: int, ffn: int, heads: int) -> Path:
    """A file in Vidur's format, from a surface of our own."""
    true = op_surface.Gemm.start(108)
    rows = []
    for tp in (1, 2):
        for tokens in (1, 8, 64, 128, 256, 512, 1024, 4096):
            row: dict[str, float | int | bool] = {
                "n_head": heads, "n_kv_head": heads, "n_embd": d, "n_expanded_embd": ffn, "vocab_size": 32768,
                "use_gated_mlp": True, "num_tokens": tokens, "num_tensor_parallel_workers": tp,
            }  # fmt: skip
            for op, size in vidur_profiles.sizes({k: int(v) for k, v in row.items()}).items():
                seconds = 1e-6 + tokens * size.outputs * 1e-12
                if size.inputs:
                    seconds = float(true.seconds(tokens, size.outputs, size.inputs))
                row[f"time_stats.{op}.median"] = seconds * 1e3
            rows.append(row)
    pl.DataFrame(rows).write_csv(path)
    return path


def test_vidur_tables_are_milliseconds_and_load_as_a_layer(tmp_path: Path) -> None:
    table = vidur_profiles.read(vidur_like(tmp_path / "a.csv", 1024, 2048, 8))
    norm = table.filter((pl.col("op") == "input_layernorm") & (pl.col("tokens") == 64) & (pl.col("tp") == 1))
    assert norm["seconds"].item() == pytest.approx(1e-6 + 64 * 1024e-12)
    db = ProfileDB()
    layers = vidur_profiles.load(db, tmp_path / "a.csv", "a100")
    assert layers[1]["layernorm(T×1024)"] == 2
    assert set(layers) == {1, 2}
    cost = step_cost(db, layers[1], "a100", max_tokens=256)
    assert cost.tokens[256] > cost.tokens[1] > 0
    (tmp_path / "bad.csv").write_text("a,b\n1,2\n")
    with pytest.raises(BadInput, match="no column num_tokens"):
        vidur_profiles.read(tmp_path / "bad.csv")


def test_a_surface_fitted_to_one_model_predicts_another(tmp_path: Path) -> None:
    known, wanted = (
        vidur_profiles.read(vidur_like(tmp_path / f"{d}.csv", d, ffn, 32)) for d, ffn in ((4096, 11008), (8192, 28672))
    )
    hidden = wanted.with_columns(seconds=pl.lit(1.0))  # whatever the wanted times are, they are not looked at
    predicted = vidur_profiles.transfer(known, hidden, 108)["predicted"]
    error = (predicted / vidur_profiles.transfer(known, wanted, 108)["seconds"] - 1).abs().median()
    assert predicted.to_list() == vidur_profiles.transfer(known, wanted, 108)["predicted"].to_list()
    assert error is not None
    assert error < 0.05


CASES = [
    (device, *pair)
    for device in ("a100", "h100")
    for pair in (("7b", "70b"), ("70b", "7b"))
]  # fmt: skip


@pytest.mark.traces
@pytest.mark.parametrize(("device", "known", "wanted"), CASES)
def test_published_operator_times_are_predicted_across_models(device: str, known: str, wanted: str) -> None:
    """Median error over operators, tokens and tensor-parallel degrees at most 10 %, no operator's above 15 %."""
    folder = traces.find("vidur_profiles")
    tables = {m: vidur_profiles.read(folder / f"{device}_Llama-2-{m}-hf_mlp.csv") for m in (known, wanted)}
    predicted = vidur_profiles.transfer(tables[known], tables[wanted], vidur_profiles.MULTIPROCESSORS[device])
    errors = predicted.with_columns(error=(pl.col("predicted") / pl.col("seconds") - 1).abs())
    assert float(errors["error"].median()) <= 0.10  # type: ignore[arg-type]
    assert errors.group_by("op").agg(pl.col("error").median())["error"].max() <= 0.15  # type: ignore[operator]
