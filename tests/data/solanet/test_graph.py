"""Graphs by real processes: what they find, that a killed build goes on, and what is told about bad input."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from assay.cli.data import command
from assay.data import knn_graph
from assay.data.interface import StoreError
from assay.data.solanet import graph as graphs
from assay.data.solanet.build import LOCAL, Build
from assay.data.solanet.rank import Parts, rounds
from assay.data.solanet.trials import points, refinements, truth, wrong
from assay.data.store.directory import DirStore
from assay.data.vectors import drifting, write_vectors
from assay.data.vectors.graph import recall
from assay.record.errors import BadInput
from assay.sim.ranks import RankFailed, Ranks

EXAMPLE = str(Path(__file__).parents[3] / "examples" / "points.fbin")


@pytest.mark.parametrize(("ranks", "refine"), [(3, "all-pairs"), (4, "tree")])
def test_parts_find_what_one_would(ranks: int, refine: str) -> None:
    rows = points(1200, 16, 0)
    some, right = truth(rows, 16, 0)
    found = knn_graph(rows, 16, ranks=ranks, refine=refine)
    assert recall(found.ids[some], right) > 0.98
    assert wrong(found, rows) == 0
    pulled = [one["pulled_bytes"] for one in found.facts["parts"]]
    assert min(pulled) >= 300 * (16 * 4 + 16 * 4), "each rank read at least one other part over its socket"


@pytest.mark.slow
@pytest.mark.parametrize("parts", [1, 2, 4])
def test_99_of_100_neighbours_are_found_among_a_hundred_thousand(parts: int) -> None:
    rows = points(100_000, 96, 0)
    some, right = truth(rows, 32, 0)
    found = knn_graph(rows, 32, ranks=parts)
    assert recall(found.ids[some], right) >= 0.99 and wrong(found, rows) == 0


def test_clusters_that_hardly_touch_are_found_in_the_other_part() -> None:
    """As among very many points: a search that begins in another cluster does not come back, nor do its followers."""
    rows = drifting(4800, 16, intrinsic=8, clusters=60, drift=0.0, seed=1).vectors
    some, right = truth(rows, 8, 1)
    assert recall(knn_graph(rows, 8, ranks=2, seed=1).ids[some], right) > 0.99


@pytest.mark.parametrize("parts", [3, 5])
def test_any_number_of_parts_is_merged(parts: int) -> None:
    """In threads of one process, over the same windows: ranks without anyone opposite wait their turn."""
    way = refinements(600, 8, 8, parts, 0)["tree 0.5"]
    assert way["recall"] > 0.97 and way["pulled_bytes"] > 0


def test_the_tree_meets_every_part_in_few_rounds() -> None:
    for count in range(1, 20):
        for part in range(count):
            met = [other for _, group in rounds(part, count) for other in group]
            assert sorted([part, *met]) == list(range(count)), "every other part is in one group opposite"
            assert all(one in group if group else one < 0 for one, group in rounds(part, count))
            assert len(rounds(part, count)) <= max(count - 1, 0).bit_length()


def test_parts_are_a_shuffle_in_equal_shares() -> None:
    parts = Parts(103, 4, 7)
    assert sorted(parts.order().tolist()) == list(range(103))
    assert [parts.length(part) for part in range(4)] == [26, 26, 26, 25]
    assert not np.array_equal(parts.order(), Parts(103, 4, 8).order())


def test_the_same_seed_gives_the_same_graph_and_another_order_of_points_the_same_recall() -> None:
    rows = points(500, 12, 2)
    one, again = knn_graph(rows, 10, ranks=2, seed=3), knn_graph(rows, 10, ranks=2, seed=3)
    assert np.array_equal(one.ids, again.ids) and np.array_equal(one.dist, again.dist)
    shuffled = np.random.default_rng(0).permutation(500)
    other = knn_graph(rows[shuffled], 10, ranks=2, seed=3)
    some, right = truth(rows, 10, 0)
    back = np.empty(500, np.int64)
    back[shuffled] = np.arange(500)
    assert recall(shuffled[other.ids][back[some]], right) == pytest.approx(recall(one.ids[some], right), abs=0.02)


def test_angles_count_where_asked() -> None:
    rows = points(500, 8, 1)
    found = knn_graph(rows, 5, metric="cosine")
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    right = np.argsort(-(unit @ unit.T), axis=1)[:, 1:6]
    assert recall(found.ids, right) > 0.98
    assert np.allclose(found.dist, 1 - (unit[found.ids] * unit[:, None]).sum(axis=2), atol=1e-5)


def test_the_graph_goes_to_pytorch_geometric_and_to_disk(tmp_path: Path) -> None:
    found = knn_graph(points(200, 4, 0), 3)
    index = found.edge_index()
    assert index.shape == (2, 600) and index[1, :3].tolist() == [0, 0, 0]
    assert index[0, :3].tolist() == found.ids[0].tolist()
    disk = found.to_disk(tmp_path / "graph")
    assert (disk.n, disk.m, disk.in_degree().tolist()) == (200, 600, [3] * 200)
    disk.close()


# ----------------------------------------------------------------------------------------- what a crash leaves


class DiesOnce(Ranks):
    """Kills a rank when the parts' graphs are kept; on a busy machine it may be done before."""

    def wait(self, timeout: float = 60.0) -> list[Any]:
        folder = Path(self._arguments[3])
        while len(list(folder.glob(f"part-*-{LOCAL}"))) < 2:
            pass
        self.kill(1)
        return super().wait(timeout)


@pytest.mark.timed
def test_a_killed_build_goes_on_with_the_finished_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, out = points(400, 8, 0), str(tmp_path / "knn")
    with monkeypatch.context() as patched:
        patched.setattr(graphs, "Ranks", DiesOnce)
        with pytest.raises(RankFailed, match="rank 1 died"):
            knn_graph(rows, 8, ranks=2, out=out)
    assert not (tmp_path / "knn" / "ids.npy").exists()
    found = knn_graph(rows, 8, ranks=2, out=out)
    assert sum(one["reused"] for one in found.facts["parts"]) == 2
    assert np.array_equal(found.ids, knn_graph(rows, 8, ranks=2).ids), "as if nothing had happened"
    assert sorted(path.name for path in (tmp_path / "knn").glob("[!.]*")) == ["dist.npy", "done", "ids.npy", "recipe"]


def test_a_full_disk_is_one_line_and_the_next_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, out = points(300, 4, 0), str(tmp_path / "knn")
    write = DirStore._write

    def full(self: DirStore, path: Path, parts: Any) -> int:
        if sum(map(len, parts)) > 300 * 5 * 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(self, path, parts)

    with monkeypatch.context() as patched:  # ranks are other processes: theirs is not full
        patched.setattr(DirStore, "_write", full)
        with pytest.raises(StoreError, match="free some space there and run it again"):
            knn_graph(rows, 5, ranks=2, out=out)
    monkeypatch.setattr(graphs, "_run", lambda *given: pytest.fail("the ranks had finished"))
    assert knn_graph(rows, 5, ranks=2, out=out).ids.shape == (300, 5)


def test_a_finished_graph_is_checked_when_it_is_opened(tmp_path: Path) -> None:
    rows, out = points(300, 4, 0), str(tmp_path / "knn")
    knn_graph(rows, 5, out=out)
    path = tmp_path / "knn" / "dist.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    with pytest.raises(StoreError, match=r"dist\.npy is damaged"):
        knn_graph(rows, 5, out=out)


def test_points_that_changed_are_told_and_nothing_is_overwritten(tmp_path: Path) -> None:
    rows, out = points(300, 4, 0), str(tmp_path / "knn")
    first = knn_graph(rows, 5, out=out)
    changed = rows.copy()
    changed[7, 0] += 1
    with pytest.raises(BadInput, match="points have changed since this graph was begun; give another --out"):
        knn_graph(changed, 5, out=out)
    with pytest.raises(BadInput, match="it holds a graph with k 5, seed 0"):
        knn_graph(rows, 6, out=out, seed=1)
    assert np.array_equal(knn_graph(rows, 5, out=out).ids, first.ids)


# ----------------------------------------------------------------------------------------- the command


def told(*arguments: str, code: int = 0) -> Any:
    result = CliRunner().invoke(command, ["knn", *arguments, "--json"])
    if code:
        assert isinstance(result.exception, Exception), result.output
        return result.exception
    assert result.exit_code == 0, result.output + repr(result.exception)
    return json.loads(result.output)


def test_the_example_has_its_graph(tmp_path: Path) -> None:
    out = tmp_path / "knn"
    answer = told(EXAMPLE, "-k", "10", "--ranks", "2", "--out", str(out), "--edges")
    assert answer["found"]["recall"] > 0.97 and answer["graph"]["points"] == 600
    assert np.load(out / "ids.npy", mmap_mode="r").shape == np.load(out / "dist.npy", mmap_mode="r").shape == (600, 10)
    assert np.load(out / "edge_index.npy").shape == (2, 6000)
    assert told(EXAMPLE, "-k", "10", "--ranks", "2", "--out", str(out))["found"] == answer["found"]


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    out = str(tmp_path / "knn")
    rows = points(50, 4, 0)
    write_vectors(tmp_path / "cut.fbin", rows)
    (tmp_path / "cut.fbin").write_bytes((tmp_path / "cut.fbin").read_bytes()[:-5])
    rows[3, 1] = np.nan
    np.save(tmp_path / "nan.npy", rows)
    np.save(tmp_path / "flat.npy", rows[0])
    write_vectors(tmp_path / "few.fbin", points(50, 4, 0))
    for name, more, says in [
        ("cut.fbin", (), "cut, or another format"),
        ("nan.npy", (), "row 3 has a number that is not finite"),
        ("flat.npy", (), "of shape"),
        ("few.fbin", ("-k", "20", "--ranks", "4"), "50 points in 4 parts, 20 neighbours"),
        ("few.fbin", ("-k", "50"), "1 to 49 expected"),
        ("none.fbin", (), "cannot read"),
    ]:
        error = told(str(tmp_path / name), "--out", out, *(more or ("-k", "5")), code=2)
        assert says in str(error) and "\n" not in str(error), (name, error)
        assert getattr(error, "exit_code", None) == 2
    assert not Path(out).exists(), "nothing was begun"


def test_an_unknown_metric_is_told() -> None:
    with pytest.raises(ValueError, match="no metric 'manhattan'; euclidean or cosine expected"):
        knn_graph(points(50, 4, 0), 5, metric="manhattan")


def test_a_part_that_is_missing_is_not_made_up() -> None:
    import asyncio

    from assay.data.interface import NotFound
    from assay.data.solanet.crashing import recipe
    from assay.data.store.memory import MemStore

    async def main() -> None:
        build = Build(recipe(0))
        await build.begin(MemStore())
        assert not await build.complete()
        await build.finish(np.arange(6))

    with pytest.raises(NotFound, match="part 0 has no final lists yet"):
        asyncio.run(main())
