from __future__ import annotations

import gzip
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import scipy.io
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.sim.graphs import CSR, edges_of, random_regular
from assay.workloads.graphs import read_graph, read_opinions


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def named(graph: CSR, labels: np.ndarray) -> set[tuple[object, object]]:
    names = labels.tolist()
    return {(names[u], names[v]) for u, v in edges_of(graph)}


@pytest.mark.parametrize(
    "text",
    [
        "# SNAP\n# FromNodeId\tToNodeId\n3\t1\n1\t20\n20\t1\n",
        "% KONECT\n\n3 1 0.5 1234\n 1   20\n",
        "Source,Target,Weight\n3,1,9\n1, 20,9\n",
        "\ufeff3 1\r\n1 20\r\n20 20\r\n",
    ],
)
def test_edge_lists_of_integers(tmp_path: Path, text: str) -> None:
    graph, labels = read_graph(write(tmp_path, "edges.txt", text))
    assert labels.dtype == np.int64
    assert labels.tolist() == [1, 3, 20]
    assert named(graph, labels) == {(1, 3), (1, 20)}
    again, _ = read_graph(write(tmp_path, "edges.txt.gz", gzip.compress(text.encode())))
    assert again.indices.tolist() == graph.indices.tolist()


@pytest.mark.parametrize("odd", ["żółw", "1_000", "1.5", str(2**64)])
def test_one_name_that_is_no_integer_makes_all_strings(tmp_path: Path, odd: str) -> None:
    graph, labels = read_graph(write(tmp_path, "edges.csv", f"10,2\n{odd},2\n"))
    assert labels.tolist() == sorted(["10", "2", odd])
    assert named(graph, labels) == {tuple(sorted(edge)) for edge in [("10", "2"), (odd, "2")]}


@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=1, max_size=30), st.booleans())
@settings(deadline=None)
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, edges: list[tuple[int, int]], text: bool
) -> None:
    mark = "n" if text else ""
    path = write(tmp_path_factory.getbasetemp(), "round.txt", "".join(f"{mark}{u} {mark}{v}\n" for u, v in edges))
    graph, labels = read_graph(path)
    twin = nx.Graph((f"{mark}{u}", f"{mark}{v}") for u, v in edges)
    assert sorted(map(str, labels.tolist())) == sorted(twin)
    simple = {frozenset(edge) for edge in twin.edges() if edge[0] != edge[1]}
    assert {frozenset(map(str, edge)) for edge in named(graph, labels)} == simple


def test_matrices(tmp_path: Path) -> None:
    graph = random_regular(50, 4)
    scipy.sparse.save_npz(tmp_path / "a.npz", graph.to_scipy())
    scipy.io.mmwrite(tmp_path / "a.mtx", graph.to_scipy(), symmetry="symmetric")
    write(tmp_path, "b.mtx.gz", gzip.compress((tmp_path / "a.mtx").read_bytes()))
    for name, first in [("a.npz", 0), ("a.mtx", 1), ("b.mtx.gz", 1)]:
        read, labels = read_graph(tmp_path / name)
        assert read.indices.tolist() == graph.indices.tolist()
        assert labels.tolist() == list(range(first, first + 50))


MTX = "%%MatrixMarket matrix coordinate pattern general\n"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("e.txt", "1 2\n# c\n3\n", r"e\.txt, line 3: one name, '3'; two expected"),
        ("e.txt", "", r"e\.txt: no edges; lines of two"),
        ("e.txt", "# nothing\n", r"e\.txt: no edges; lines of two"),
        ("e.txt", b"1 2\n\xff\xfe 3\n", r"e\.txt, line 2: not UTF-8"),
        ("e.txt.gz", b"junk", r"e\.txt\.gz: broken gzip data"),
        ("e.txt.gz", gzip.compress(b"1 2\n" * 99, mtime=0)[:-9], r"e\.txt\.gz: broken gzip data"),
        ("m.mtx", "hello\n", r"m\.mtx: Line 1: .* expected"),
        ("m.mtx", MTX + "3 3 2\n1 2\n9 1\n", r"m\.mtx: Line 4: .* expected"),
        ("m.mtx", MTX + "3 4 1\n1 2\n", r"3 rows and 4 columns; a square"),
        ("m.mtx", "%%MatrixMarket matrix array real general\n1 1\n1\n", r"a dense matrix"),
        ("m.npz", b"junk", r"m\.npz: no zip archive; a file by scipy"),
    ],
)
def test_bad_graph_files_are_told_in_one_line(tmp_path: Path, name: str, content: str | bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        read_graph(write(tmp_path, name, content))
    assert "\n" not in str(caught.value)


def test_pickles_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "evil.npz", format=b"coo", shape=np.array([2, 2]), row=[0], col=[1], data=np.array([print]))
    with pytest.raises(ValueError, match="save_npz expected"):
        read_graph(tmp_path / "evil.npz")


def test_a_missing_file_stays_that(tmp_path: Path) -> None:
    for name in ("a.txt", "a.npz", "a.mtx"):
        with pytest.raises(FileNotFoundError):
            read_graph(tmp_path / name)


def test_opinions(tmp_path: Path) -> None:
    path = write(tmp_path, "o.csv", "# poll\nnode,opinion\n20, 4\n1,-3\n\n3,0\n")
    assert read_opinions(path, np.array([1, 3, 20])).tolist() == [-3, 0, 4]
    assert read_opinions(write(tmp_path, "o.csv", '"a,b",1\nc,2\n'), np.array(["a,b", "c"])).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("1,2,3\n", r"line 1: 3 fields"),
        ("node,opinion\n0,1\n0,2\n", r"line 3: a second opinion of node '0'"),
        ("0,1\n1,x\n", r"line 2: the opinion 'x' is no integer"),
        ("0,1\n1,99999999999999999999\n", r"line 2: the opinion"),
        ("0,1\n7,1\n", r"line 2: the graph has no node '7'"),
        ("0,1\n", r"1 nodes without opinion, first 1"),
        (b"0,1\n\xff,1\n", r"line 2: not UTF-8"),
    ],
)
def test_bad_opinions_are_told_in_one_line(tmp_path: Path, content: str | bytes, message: str) -> None:
    with pytest.raises(ValueError, match=r"o\.csv.*" + message) as caught:
        read_opinions(write(tmp_path, "o.csv", content), np.array([0, 1]))
    assert "\n" not in str(caught.value)
