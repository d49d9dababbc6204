"""Real processes: shaped rings, a user's field, and DistributedDataParallel with the hook."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

torch = pytest.importorskip("torch")

from assay.cli.compare import command  # noqa: E402
from assay.sim import gloo_ranks  # noqa: E402
from assay.sim.ranks import Rank, Ranks  # noqa: E402
from assay.sim.scratch import scratch  # noqa: E402
from assay.training.ncclz import Compression, Port, ddp_job, fields, hook, link, race_job, rivals  # noqa: E402

EXAMPLES = Path(__file__).parents[3] / "examples"
SHAPED = link("1gbit", shaped=True)


def test_a_real_ring_sums_and_counts_every_second_of_the_wire() -> None:
    methods = ("plain", "ncclz", "packed sums", "recompress")
    count = 60_000
    (summed,) = race_job.raced([race_job.Race("smooth", 1e-3, SHAPED, methods, count, seed=3)], 3)
    wire = 4 * 4 * count / 3 / SHAPED.bandwidth  # four hops of a third
    assert summed["plain"]["seconds"] >= wire
    assert summed["plain"]["wall"] >= wire
    for name in methods:
        assert summed[name]["same"]
        assert summed[name]["error"] <= 3e-3
    assert summed["packed sums"]["ratio"] > 3


def _sent_before_any_is_read(rank: Rank, where: str) -> list[bool]:
    large = np.arange(3 << 20, dtype=np.uint32).view(np.uint8)
    with gloo_ranks.joined(rank, where) as dist:
        port = Port(dist, SHAPED)
        messages = [large, np.empty(0, np.uint8), np.array([rank.index], np.uint8), large]
        for message in messages:
            port.send(message)
        found = [port.recv() for _ in messages]
        port.flush()
        messages[2] = np.array([(rank.index - 1) % 3], np.uint8)
        return [np.array_equal(one, other) for one, other in zip(found, messages, strict=True)]


def test_nobody_waits_for_ever_where_all_send_much_before_they_read() -> None:
    with scratch() as where, Ranks(3, _sent_before_any_is_read, str(where), imports=race_job.IMPORTS) as ranks:
        assert ranks.wait(240.0) == [[True] * 4] * 3


def test_ddp_with_the_hook_keeps_ranks_alike_and_near_fp32() -> None:
    (found,) = ddp_job.trained(2, steps=6, seeds=[1], hooks=("fp32", "ncclz qsgd8", "ncclz eps"))
    assert all(row["same"] for row in found.values())
    for name in ("ncclz qsgd8", "ncclz eps"):
        assert found[name]["coded"] == 6
        assert found[name]["loss"] == pytest.approx(found["fp32"]["loss"], rel=0.02)
        assert found[name]["loss"] != found["fp32"]["loss"]  # something was quantised
        assert found[name]["sent"] < 0.6 * found[name]["bytes"]


def test_gradients_of_a_language_model_are_not_all_alike() -> None:
    one, other = (fields.gradient(0, rank, width=32) for rank in (0, 1))
    assert len(one) == len(other)
    assert not np.array_equal(one, other)
    assert np.isfinite(one).all()


def _example(rank: Rank, where: str) -> float:
    import runpy

    with gloo_ranks.joined(rank, where):
        loss: float = runpy.run_path(str(EXAMPLES / "compressed.py"))["train"]()
        return loss


def test_the_example_of_the_hook_trains() -> None:
    with scratch() as where, Ranks(2, _example, str(where), imports=race_job.IMPORTS) as ranks:
        assert all(0.5 < loss < 1.5 for loss in ranks.wait(240.0))  # targets have a variance of one


def _trained(rank: Rank, where: str) -> list[tuple[bytes, int, int]]:
    """Weights with no hook, and with one whose link carries floats sooner than they are coded."""
    found = []
    with gloo_ranks.joined(rank, where):
        for state in (None, Compression(eps=1e-3, links="1000gbit")):
            torch.manual_seed(0)
            model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(200, 200))
            if state is not None:
                model.register_comm_hook(state, hook)
            for step in range(3):
                model.zero_grad()
                model(torch.full((4, 200), float(rank.index + step))).square().mean().backward()
                with torch.no_grad():
                    for weights in model.parameters():
                        weights -= 1e-4 * weights.grad
            bits = b"".join(weights.detach().numpy().tobytes() for weights in model.parameters())
            found.append((bits, state.buckets if state else 3, state.coded if state else 0))
    return found


def test_on_a_link_quicker_than_the_coders_the_hook_leaves_gradients_to_torch_to_the_bit() -> None:
    with scratch() as where, Ranks(2, _trained, str(where), imports=race_job.IMPORTS) as ranks:
        for plain, hooked in ranks.wait(240.0):
            assert plain == hooked


@pytest.mark.slow
def test_the_example_of_the_hook_runs_as_it_is_written() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "compressed.py")], capture_output=True, text=True, timeout=600,
        env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "20 buckets coded" in done.stdout


@pytest.mark.parametrize("wrong", [{"bits": 1}, {"bits": 17}, {"eps": 0.0}, {"eps": float("nan")}])
def test_compression_that_cannot_be_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="should be"):
        Compression(**wrong)  # type: ignore[arg-type]


def test_the_users_own_field_is_summed_by_every_method_and_bounds_hold() -> None:
    asked = ["ncclz", "--input", str(EXAMPLES / "field.npy"), "--links", "1gbit", "--eps", "1e-4", "--json"]
    found = CliRunner().invoke(command, asked)
    assert found.exit_code == 0, found.output
    answer = json.loads(found.stdout)
    table = {row["method"]: row for row in answer["table"]}
    assert set(table) == set(rivals.METHODS)
    for name in ("ncclz", "quantise only", "packed sums", "recompress"):
        assert table[name]["error"] <= table[name]["bound"] == pytest.approx(2e-4)
    assert table["ncclz"]["same"]
    assert "ncclz" in answer["why"]


def test_what_cannot_be_is_said_in_one_line(refused: Callable[..., str], tmp_path: Path) -> None:
    np.save(tmp_path / "whole.npy", np.arange(9))
    np.save(tmp_path / "none.npy", np.empty(0, np.float32))
    np.save(tmp_path / "flat.npy", np.ones(9, np.float32))
    (tmp_path / "odd.f32").write_bytes(b"12345")
    (tmp_path / "text.npy").write_text("no array")
    assert "holds int64" in refused("compare", "ncclz", "--input", "whole.npy")
    assert "0 numbers" in refused("compare", "ncclz", "--input", "none.npy")
    assert "no whole number of float32" in refused("compare", "ncclz", "--input", "odd.f32")
    assert "no array" in refused("compare", "ncclz", "--input", "text.npy")
    assert "No such file" in refused("compare", "ncclz", "--input", "gone.npy")
    assert "is no link" in refused("compare", "ncclz", "--input", "flat.npy", "--links", "fast")
    assert "above 0" in refused("compare", "ncclz", "--input", "flat.npy", "--eps", "-1")
    assert "range of 0" in refused("compare", "ncclz", "--input", "flat.npy", "--relative")
