"""`assay data graph` on files of one's own: answers, errors of one line, and runs that go on."""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from click.testing import CliRunner

from assay.cli.main import assay
from assay.data import run_graph
from assay.data.graphflash import Design, network
from assay.data.graphflash.compare import why
from assay.data.graphflash.files import read_network
from assay.data.graphflash.function import serving
from assay.data.graphflash.run import perform, plan
from assay.data.interface import StoreError
from assay.data.store.memory import MemStore
from assay.data.store.wrappers import Op, Wrapper
from assay.record.errors import BadInput
from assay.sim.faas import CallFailed, Modelled

EXAMPLES = Path(__file__).parents[3] / "examples"


def told(*arguments: str) -> dict[str, Any]:
    """The answer of a command."""
    found = CliRunner().invoke(assay, ["data", "graph", *arguments, "--workers", "2", "--json"])
    assert found.exit_code == 0, found.output + str(found.exception)
    answer: dict[str, Any] = json.loads(found.output)
    return answer


def test_distances_by_road_in_both_modes_and_out_to_a_file(tmp_path: Path) -> None:
    out = tmp_path / "far.csv"
    store = str(tmp_path / "store")
    first = told("sssp", str(EXAMPLES / "roads.csv"), "--root", "100", "--out", str(out), "--mode", "rotating")
    rows = [line.split(",") for line in out.read_text().splitlines()[1:]]
    far = {int(vertex): float(value) for vertex, value in rows}
    assert far[100] == 0.0 and len(far) == first["graph"]["vertices"]
    roads = ("sssp", str(EXAMPLES / "roads.csv"), "--root", "100", "--store", store)
    again = told(*roads, "--out", str(tmp_path / "f.npy"))
    assert np.load(tmp_path / "f.npy").tolist() == list(far.values())
    assert again["supersteps"]["resumed"] == 0 and again["supersteps"]["cold"] == 2
    third = told(*roads)
    assert third["supersteps"]["resumed"] == again["supersteps"]["steps"], "the answer is there already"
    assert third["table"] == again["table"] and third["supersteps"]["calls"] == 0


def test_a_changed_file_is_another_graph(tmp_path: Path) -> None:
    file, store = tmp_path / "e.txt", str(tmp_path / "store")
    file.write_text("1 2\n2 3\n7 8\n")
    assert told("components", str(file), "--store", store)["why"].startswith("2 components")
    file.write_text("1 2\n2 3\n7 8\n3 7\n")
    assert told("components", str(file), "--store", store)["why"].startswith("1 component.")


def test_python_takes_edges_files_and_networks() -> None:
    ran = run_graph("labels", network([(0, 1), (1, 2), (2, 0)]), workers=1, rounds=3)
    assert len(ran.values) == 3 and ran.bill.calls > 0 and ran.usd() > 0


# -------------------------------------------------------------------------------------------------------------- files


@pytest.mark.parametrize("kind", ["txt", "txt.gz", "csv", "parquet", "mtx", "npy"])
def test_files_of_every_kind_are_the_same_graph(kind: str, tmp_path: Path) -> None:
    edges, weights = [(10, 20), (20, 40), (40, 10), (10, 20)], [2.0, 3.0, 4.5, 1.0]
    path = tmp_path / f"edges.{kind}"
    lines = [f"{u} {v} {w}" for (u, v), w in zip(edges, weights, strict=True)]
    if kind == "txt":
        path.write_text("# a comment\n" + "\n".join(lines))
    elif kind == "txt.gz":
        path.write_bytes(gzip.compress("\n".join(lines).replace(" ", "\t").encode()))
    elif kind == "csv":
        path.write_text("source,target,weight\n" + "\n".join(lines).replace(" ", ","))
    elif kind == "parquet":
        u, v = zip(*edges, strict=True)
        pl.DataFrame({"weight": weights, "dst": v, "src": u}).write_parquet(path)
    elif kind == "mtx":
        path.write_text("%%MatrixMarket matrix coordinate real general\n40 40 4\n" + "\n".join(lines) + "\n")
    else:
        np.save(path, np.array(edges))
    graph = read_network(path)
    assert graph.names is not None
    found = [tuple(pair) for pair in graph.names[graph.edges].tolist()]
    assert found == [(10, 20), (20, 40), (40, 10)]
    if kind == "npy":
        assert graph.weights is None
    else:
        assert graph.weights is not None and graph.weights.tolist() == [1.0, 3.0, 4.5], "the smallest of several"


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.txt", b"", "no edges"),
        ("a.txt", b"# nothing\n", "no edges"),
        ("a.txt", b"1 2\n3 x\n", "could not convert"),
        ("a.txt", b"1 2\n3\n", "two vertices and perhaps a weight a line expected"),
        ("a.txt", b"1.5 2\n", "no whole number"),
        ("a.txt", b"1 2 nan\n", "a weight that is no number"),
        ("a.txt", b"\xff\xfe\x00", "not UTF-8"),
        ("a.txt.gz", gzip.compress(b"1 2\n" * 5000, mtime=0)[:-9], "broken gzip"),
        ("a.parquet", b"PAR1 and then it ends", "a complete parquet file expected"),
        ("a.mtx", b"%%MatrixMarket matrix coordinate real general\n3 4 1\n1 1 1\n", "3 rows and 4 columns"),
        ("gone.txt", None, "No such file"),
    ],
)
def test_broken_files_get_one_line(name: str, content: bytes | None, says: str, tmp_path: Path) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    found = CliRunner().invoke(assay, ["data", "graph", "components", str(path)])
    assert isinstance(found.exception, BadInput) and found.exception.exit_code == 2
    assert says in str(found.exception) and "\n" not in str(found.exception)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["bfs", "--root", "99999"], "the graph has no vertex 99999"),
        (["pagerank", "--memory", "lots"], "is no size"),
        (["pagerank", "--memory", "1MB"], "67,108,864 bytes"),
        (["pagerank", "--out", "ranks.xlsx"], ".csv or .npy expected"),
    ],
)
def test_bad_options_get_one_line(arguments: list[str], says: str) -> None:
    verb, *rest = arguments
    found = CliRunner().invoke(assay, ["data", "graph", verb, str(EXAMPLES / "web.txt"), *rest])
    assert isinstance(found.exception, BadInput) and says in str(found.exception)


def test_distances_refuse_negative_weights() -> None:
    with pytest.raises(BadInput, match="a weight of -1"):
        plan("sssp", network([(0, 1)], np.array([-1.0])))


# ----------------------------------------------------------------------------------------------- stores that give up


class Full(Wrapper):
    """Has room for so many puts and no more."""

    room = 0

    async def around(self, op: Op, call: Any) -> Any:
        """Refuse, as a full disk does."""
        if op.name == "put":
            self.room -= 1
            if self.room < 0:
                raise StoreError("cannot write: No space left on device; free some space there and run it again")
        return await call()


@pytest.mark.parametrize(("mode", "room"), [("pinned", 24), ("rotating", 40)])
def test_a_full_store_is_one_line_and_the_next_run_goes_on(mode: str, room: int) -> None:
    path = network([(i, i + 1) for i in range(40)])

    async def main() -> Any:
        store = Full(MemStore())
        task = plan("bfs", path, design=Design(mode, checkpoint=2), parts=8, workers=4, how="range")
        store.room = room
        async with Modelled(serving(store), slots=4, cold=(0.0, 0.0)) as platform:
            with pytest.raises((CallFailed, StoreError), match="No space left on device; free some space"):
                await perform(task, store, platform)
        store.room = 10**6
        async with Modelled(serving(store), slots=4, cold=(0.0, 0.0)) as platform:
            return await perform(task, store, platform)

    ran = asyncio.run(main())
    assert np.array_equal(ran.values, np.arange(41)) and 0 < ran.resumed < ran.steps


# ------------------------------------------------------------------------------------------------------------ compare


def row(system: str, seconds: float, same: bool = True) -> dict[str, Any]:
    return {"system": system, "seconds": seconds, "requests": 10, "usd": 0.1, "same": same}


def test_who_wins_is_said_and_a_tie_is_called_one() -> None:
    rows = [row("in-memory", 1.0), row("graphflash", 2.0), row("graphflash-rotating", 2.1)]
    said = why([*rows, row("graphless-like", 50.0, same=False)])
    assert said.startswith("graphflash and graphflash-rotating tie;") and "in one machine's memory" in said
    assert said.endswith("graphless-like gave another answer.")


def test_designs_are_compared_on_a_graph_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text("\n".join(f"{i} {(i * 7 + 1) % 30}" for i in range(30)))
    found = CliRunner().invoke(
        assay, ["compare", "data", "--job", "graph", "--input", str(file), "--rounds", "1", "--json"]
    )
    answer = json.loads(found.output)
    assert all(one["same"] for one in answer["table"]), answer
    assert {"graphflash", "graphless-like", "in-memory"} <= {one["system"] for one in answer["table"]}
