"""Pages, rows, edges and graphs on disk are what they would be in memory, however small the pieces they come in."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from assay.data.disk.arrays import DiskArray, RowWriter, write_rows
from assay.data.disk.edges import read_edges
from assay.data.disk.graphs import DiskGraph
from assay.data.disk.pages import PAGE, PagedFile
from assay.sim.memory import parse_size
from tests.oracles import edge_lists


@contextmanager
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:  # /tmp may be in memory, without O_DIRECT
        yield Path(folder)


# ------------------------------------------------------------------------------------------- pages


@given(st.integers(1, 5 * PAGE), st.lists(st.integers(0, 4), max_size=12), st.booleans())
def test_pages_come_in_the_order_asked_and_each_is_read_once(size: int, wanted: list[int], direct: bool) -> None:
    content = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    padded = np.zeros(-(-size // PAGE) * PAGE, np.uint8)
    padded[:size] = content
    wanted = [page for page in wanted if page < len(padded) // PAGE]
    with scratch() as folder:
        (folder / "f").write_bytes(content.tobytes())
        with PagedFile.open(folder / "f", direct) as file:
            ids = np.array(wanted, np.int64)
            assert np.array_equal(file.read(ids), padded.reshape(-1, PAGE)[ids])
            assert np.array_equal(file.read_async(ids).wait(), padded.reshape(-1, PAGE)[ids])
            assert file.stats.read_bytes == 2 * PAGE * len(set(wanted))
            runs = sum(page - 1 not in wanted for page in set(wanted))
            assert (file.stats.reads, file.stats.asked) == (2 * runs, 2 * len(wanted))


def test_a_long_run_is_cut_into_requests_that_overlap() -> None:
    with scratch() as folder, PagedFile.create(folder / "f") as file:
        pages = np.arange(600 * PAGE, dtype=np.uint32).view(np.uint8)[: 600 * PAGE].reshape(600, PAGE)
        file.write(np.arange(600)[::-1], pages[::-1], barrier=True)
        assert file.stats.writes == 3  # of a mebibyte at most
        assert np.array_equal(file.read_span(0, 600), pages.reshape(-1))


def test_a_page_beyond_the_end_is_an_error_and_no_zeros() -> None:
    with scratch() as folder:
        (folder / "f").write_bytes(b"x" * 10)
        with PagedFile.open(folder / "f") as file, pytest.raises(IndexError, match="pages 0 to 0"):
            file.read(np.array([1]))


def test_a_file_that_is_cut_while_it_is_open_is_an_error_and_no_zeros() -> None:
    with scratch() as folder:
        (folder / "f").write_bytes(b"x" * 3 * PAGE)
        with PagedFile.open(folder / "f") as file:
            os.truncate(folder / "f", PAGE)
            with pytest.raises(EOFError, match="cut meanwhile"):
                file.read(np.array([2]))


# -------------------------------------------------------------------------------------------- rows


@st.composite
def tables(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    kind = np.dtype(draw(st.sampled_from(["<f4", "<i8", "u1", "<f8"])))
    shape = (draw(st.integers(0, 400)), draw(st.integers(1, 300)))
    return np.random.default_rng(shape[0]).integers(0, 100, shape).astype(kind)


@given(tables(), st.booleans(), st.data())
def test_rows_are_those_of_numpy_in_our_files_and_in_others(table: Any, ours: bool, data: st.DataObject) -> None:
    n = len(table)
    ids = np.array(data.draw(st.lists(st.integers(0, max(n - 1, 0)), max_size=20 if n else 0)), np.int64)
    start = data.draw(st.integers(0, n))
    stop = data.draw(st.integers(start, n))
    step = data.draw(st.integers(1, 100))
    with scratch() as folder:
        write_rows(folder / "t.npy", table) if ours else np.save(folder / "t.npy", table)
        assert np.array_equal(np.load(folder / "t.npy"), table)
        with DiskArray.open(folder / "t.npy") as array:
            assert np.array_equal(array.take(ids), table[ids])
            assert np.array_equal(array.rows(start, stop), table[start:stop])
            blocks = [rows for _, rows in array.stream(step)]
            assert np.array_equal(np.concatenate([table[:0], *blocks]), table)


@given(tables(), st.lists(st.integers(0, 90), max_size=8))
def test_rows_appended_in_any_pieces_are_the_rows(table: Any, pieces: list[int]) -> None:
    with scratch() as folder:
        writer = RowWriter(DiskArray.create(folder / "t.npy", table.shape, table.dtype), buffer=PAGE)
        at = 0
        for piece in [*pieces, len(table)]:
            writer.append(table[at : at + piece])
            at = min(at + piece, len(table))
        writer.close()
        assert np.array_equal(np.load(folder / "t.npy"), table)


def test_rows_that_would_share_a_page_with_others_are_refused() -> None:
    with scratch() as folder:
        array = DiskArray.create(folder / "t.npy", (100, 3), np.float32)
        with array, pytest.raises(ValueError, match="multiples of 1024"):
            array.write(3, np.zeros((5, 3), np.float32))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"not an array", "no .npy file"),
        (np.lib.format.magic(1, 0) + b"\x10\x00", "no .npy file"),
    ],
)
def test_what_is_no_array_is_told_in_one_line(tmp_path: Path, content: bytes, says: str) -> None:
    (tmp_path / "x.npy").write_bytes(content)
    with pytest.raises(ValueError, match=says) as told:
        DiskArray.open(tmp_path / "x.npy")
    assert "\n" not in str(told.value)


def test_a_cut_array_objects_and_columns_first_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "cut.npy", np.zeros((100, 10)))
    os.truncate(tmp_path / "cut.npy", 4000)
    with pytest.raises(ValueError, match="header promises 8128"):
        DiskArray.open(tmp_path / "cut.npy")
    np.save(tmp_path / "objects.npy", np.array([{}], object))
    with pytest.raises(ValueError, match="never unpickled"):
        DiskArray.open(tmp_path / "objects.npy")
    np.save(tmp_path / "columns.npy", np.asfortranarray(np.zeros((3, 4))))
    with pytest.raises(ValueError, match="column by column"):
        DiskArray.open(tmp_path / "columns.npy")


# ------------------------------------------------------------------------------------------- edges


@st.composite
def lists(draw: st.DrawFn) -> str:
    """A SNAP edge list with all that such files have."""
    lines = []
    if draw(st.booleans()):
        lines.append("# Directed graph")
    if draw(st.booleans()):
        lines.append("source,target")
    for _ in range(draw(st.integers(1, 30))):
        u, v = draw(st.integers(0, 10**6)), draw(st.integers(0, 40))
        sep = draw(st.sampled_from(["\t", " ", ",", "  ", ", "]))
        more = draw(st.sampled_from(["", " 0.5", "\t17\t3", ",x", "\r"]))
        lines.append(f"{draw(st.sampled_from(['', ' ']))}{u}{sep}{v}{more}")
        lines += draw(st.sampled_from([[], [""], ["% note"], ["   "]]))
    return "\n".join(lines) + draw(st.sampled_from(["", "\n"]))


@given(lists(), st.booleans())
@example("1 2\n3,4", True)
def test_an_edge_list_reads_as_the_plain_parser_reads_it(text: str, packed: bool) -> None:
    with scratch() as folder:
        path = folder / ("e.txt.gz" if packed else "e.txt")
        path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
        found = [tuple(edge) for block in read_edges(path) for edge in block.tolist()]
    assert found == edge_lists.pairs(text)


def test_blocks_cut_a_list_only_between_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.data.disk.edges.BLOCK", 7)
    (tmp_path / "e.txt").write_text("".join(f"{i} {i * i}\n" for i in range(200)))
    found = np.concatenate(list(read_edges(tmp_path / "e.txt")))
    assert found.tolist() == [[i, i * i] for i in range(200)]


def test_arrays_matrices_and_ogb_folders_hold_the_same_edges(tmp_path: Path) -> None:
    from scipy.sparse import coo_array, save_npz

    edges = np.array([(0, 3), (1, 0), (2, 2), (3, 1)])
    np.save(tmp_path / "wide.npy", edges.T.copy())
    np.save(tmp_path / "long.npy", edges.astype(np.int32))
    save_npz(tmp_path / "sparse.npz", coo_array((np.ones(4), (edges[:, 0], edges[:, 1])), shape=(4, 4)).tocsr())
    (tmp_path / "m.mtx").write_text(
        "%%MatrixMarket matrix coordinate pattern general\n% note\n4 4 4\n"
        + "".join(f"{u + 1} {v + 1}\n" for u, v in edges)
    )
    (tmp_path / "ogb" / "raw").mkdir(parents=True)
    with gzip.open(tmp_path / "ogb" / "raw" / "edge.csv.gz", "wt") as file:
        file.writelines(f"{u},{v}\n" for u, v in edges)
    for name in ("wide.npy", "long.npy", "sparse.npz", "m.mtx", "ogb"):
        assert np.concatenate(list(read_edges(tmp_path / name))).tolist() == edges.tolist(), name


def test_a_symmetric_matrix_stores_one_triangle_and_means_both(tmp_path: Path) -> None:
    (tmp_path / "s.mtx").write_text("%%MatrixMarket matrix coordinate real symmetric\n3 3 3\n2 1 0.5\n3 3 1\n3 2 1\n")
    found = {tuple(edge) for block in read_edges(tmp_path / "s.mtx") for edge in block.tolist()}
    assert found == {(1, 0), (0, 1), (2, 2), (2, 1), (1, 2)}


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("e.txt", "0 1\n1 x\n", "line 2: '1 x'"),
        ("e.txt", "0 1\n7\n", "line 2: '7'"),
        ("e.txt", "0 1\n-3 4\n", "line 2: '-3 4'"),
        ("e.txt", "# nothing\n", "no edges"),
        ("e.txt", "0 99999999999\n", "out of range"),
        ("e.mtx", "%%MatrixMarket matrix array real general\n2 2\n", "coordinate"),
        ("e.mtx", "%%MatrixMarket matrix coordinate real general\n2 3 1\n1 1 1\n", "square"),
        ("e.mtx", "%%MatrixMarket matrix coordinate real general\n2 2 1\n3 1 1\n", "node 3 of a matrix of 2"),
        ("e.mtx", "%%MatrixMarket matrix coordinate real general\n2 2 1\n0 1 1\n", "out of range"),
    ],
)
def test_a_bad_list_is_told_with_its_line(tmp_path: Path, name: str, text: str, says: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=says) as told:
        list(read_edges(tmp_path / name))
    assert "\n" not in str(told.value) and name in str(told.value)


def test_gzip_that_ends_early_is_told(tmp_path: Path) -> None:
    whole = gzip.compress(b"".join(b"%d %d\n" % (i, i * 7919 % 1000) for i in range(5000)))
    (tmp_path / "e.txt.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="broken gzip"):
        list(read_edges(tmp_path / "e.txt.gz"))


# ------------------------------------------------------------------------------------------ graphs


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=300), st.integers(1, 50), st.data())
def test_a_graph_built_from_blocks_is_its_sorted_edges(edges: list[Any], size: int, data: st.DataObject) -> None:
    pairs = np.array(edges, np.int64).reshape(-1, 2)
    step = data.draw(st.integers(1, 40))
    with scratch() as folder:
        graph = DiskGraph.build(folder / "g", [pairs[i : i + size] for i in range(0, len(pairs), size)], 61)
        streamed = [(u, v) for s, t in graph.stream(step) for u, v in zip(s.tolist(), t.tolist(), strict=True)]
        assert streamed == sorted(edges)
        assert graph.in_degree().tolist() == np.bincount(pairs[:, 1], minlength=61).tolist()
        loops = np.bincount(pairs[pairs[:, 0] == pairs[:, 1], 0], minlength=61)
        assert (graph.loops().tolist() if graph.loops() is not None else [0] * 61) == loops.tolist()  # type: ignore[union-attr]
        back = graph.reversed(folder / "b")
        turned = [(u, v) for s, t in back.stream(step) for u, v in zip(s.tolist(), t.tolist(), strict=True)]
        assert turned == sorted((v, u) for u, v in edges)


def test_ranges_of_sources_that_do_not_fit_together_are_sorted_apart() -> None:
    """A hub with more edges than a range may hold, isolated nodes, and ends of ranges between them."""
    rng = np.random.default_rng(5)
    hub = np.stack([np.full(150_000, 7), rng.integers(0, 5000, 150_000)], axis=1)
    rest = rng.integers(0, 4000, (300_000, 2))
    pairs = np.concatenate([hub, rest])[rng.permutation(450_000)]
    with scratch() as folder:
        graph = DiskGraph.build(folder / "g", np.array_split(pairs, 9), 5000, memory=1)
        order = np.lexsort((pairs[:, 1], pairs[:, 0]))
        assert np.array_equal(graph.indices.rows(0, graph.m), pairs[order, 1])
        assert np.array_equal(np.diff(graph.indptr.rows(0, graph.n + 1)), np.bincount(pairs[:, 0], minlength=5000))


def test_a_build_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def blocks() -> Iterator[Any]:
        yield np.array([(0, 1)])
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        DiskGraph.build(tmp_path / "g", blocks())
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="0 to below 3"):
        DiskGraph.build(tmp_path / "g", [np.array([(0, 3)])], 3)


# ------------------------------------------------------------------------------------------ memory


WORK = """
import numpy as np
from assay.sim.memory import Peak
with Peak() as peak:
    np.ones(40 << 20, np.uint8)
print(int(peak.known), peak.before, peak.grown, peak.peak)
"""


def test_the_peak_is_seen_after_the_memory_is_free_again() -> None:
    """In a process of its own: threads that other tests left may free memory meanwhile."""
    ended = subprocess.run([sys.executable, "-c", WORK], capture_output=True, text=True, check=True)
    known, before, grown, peak = map(int, ended.stdout.split())
    if not known:
        pytest.skip("this system does not tell the highest resident size")
    assert 38 << 20 <= grown < 60 << 20  # the system counts in batches of pages
    assert peak >= before + grown


@pytest.mark.parametrize("text", ["", "MB", "12 parsecs", "1e", "--"])
def test_what_is_no_size_is_told(text: str) -> None:
    with pytest.raises(ValueError, match="is no size"):
        parse_size(text)
