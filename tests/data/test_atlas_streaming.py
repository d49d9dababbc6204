"""Streams that read ahead, and threads that share work, give what one read and one thread would."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.data.atlas.layers import columns, ends, facing, finish, message
from assay.data.atlas.streaming import blocks, pieces, shared
from assay.data.atlas.trials import model_of
from assay.data.disk.arrays import DiskArray, write_rows
from assay.data.disk.graphs import DiskGraph
from assay.data.disk.pages import PAGE, PagedFile, aligned


@given(st.integers(0, 900), st.integers(1, 9), st.integers(1, 400))
@settings(max_examples=10)
def test_blocks_are_the_rows_in_order(n: int, width: int, at_once: int) -> None:
    rows = np.arange(n * width, dtype=np.float32).reshape(n, width)
    with tempfile.TemporaryDirectory() as folder:
        write_rows(Path(folder, "a.npy"), rows)
        with DiskArray.open(Path(folder, "a.npy")) as array:
            got = [(first, some.copy()) for first, some in blocks(array, at_once)]  # each is there until the next one
    assert [first for first, _ in got] == list(range(0, n, at_once))
    assert np.array_equal(np.concatenate([np.empty((0, width), np.float32), *(some for _, some in got)]), rows)


@given(st.integers(1, 60), st.integers(0, 200), st.integers(1, 30), st.integers(1, 50), st.integers(0, 99))
@settings(max_examples=10)
def test_pieces_have_every_edge_once_beside_the_row_of_its_source(
    n: int, m: int, rows: int, at_once: int, seed: int
) -> None:
    edges = np.random.default_rng(seed).integers(0, n, (m, 2))
    with tempfile.TemporaryDirectory() as folder:
        graph = DiskGraph.build(Path(folder, "g"), [edges], n)
        write_rows(Path(folder, "x.npy"), np.arange(n, dtype=np.float32)[:, None])
        found, chunks = [], set()
        with DiskArray.open(Path(folder, "x.npy")) as source:
            for first, x, bounds, start, targets in pieces(graph, blocks(source, rows), blocks(graph.indices, at_once)):
                chunks.add(first)
                for e, target in enumerate(targets.tolist(), start):
                    row = int(np.searchsorted(bounds, e, side="right")) - 1
                    assert x[row, 0] == first + row
                    found.append((first + row, target))
        streamed = [pair for some in graph.stream(at_once) for pair in zip(*(a.tolist() for a in some), strict=True)]
        graph.close()
    right = sorted(map(tuple, edges.tolist()))
    assert found == right
    assert streamed == right
    assert chunks == set(range(0, n, rows)), "also of nodes without edges"


def test_threads_that_share_work_do_each_item_once_and_hand_on_what_fails() -> None:
    done = np.zeros(50, int)

    def count(item: int, room: list[int]) -> None:
        room.append(item)
        done[item] += 1
        assert room.pop() == item, "nobody else is in this room"

    assert list(shared(count, iter(range(50)), [[], [], []])) == list(range(50))
    assert (done == 1).all()
    with pytest.raises(ZeroDivisionError):
        list(shared(lambda item, room: item // 0, iter([1, 2, 3]), [None, None]))


def test_a_reserved_file_holds_what_is_written_in_any_order() -> None:
    with tempfile.TemporaryDirectory() as folder, PagedFile.create(Path(folder, "pages")) as file:
        file.reserve(6 * PAGE)
        data = aligned(6 * PAGE)
        data[:] = np.repeat(np.arange(6), PAGE)
        file.write_spans([(4, data[4 * PAGE :]), (0, data[:PAGE]), (1, data[PAGE : 4 * PAGE])])
        got = aligned(6 * PAGE)
        file.read_into([(3, got[: 3 * PAGE]), (0, got[3 * PAGE :])])
        assert np.array_equal(got, np.roll(data, 3 * PAGE))
        assert file.stats.read_bytes == file.stats.write_bytes == 6 * PAGE


@pytest.mark.parametrize("kind", ["gcn", "sage", "gin", "gat"])
@pytest.mark.parametrize("widths", [(12, 8), (8, 24)])
def test_columns_made_in_a_given_place_are_those_of_the_message(kind: str, widths: tuple[int, int]) -> None:
    [layer] = model_of(kind, widths, 3)
    x = np.random.default_rng(1).standard_normal((30, widths[0])).astype(np.float32)
    degree = np.arange(30, dtype=np.int32)
    sent = message(layer, x.copy(), degree)
    heads = layer.heads if kind == "gat" else 0
    into = np.empty((30, layer.message_width - heads), np.float32)
    assert np.allclose(columns(layer, x, degree, into), sent[:, heads:], atol=1e-5)
    if kind == "gat":
        z = (x @ layer.weights["lin"].T).reshape(30, heads, -1)
        logits = np.einsum("nhc,hc->nh", z, layer.weights["att_src"])
        assert np.allclose(sent[:, :heads], logits, atol=1e-4)
        assert np.allclose(ends(layer, x), np.concatenate([logits, facing(layer, x)], axis=1), atol=1e-4)


@pytest.mark.parametrize("kind", ["gcn", "sage", "gin"])
@pytest.mark.parametrize("widths", [(12, 8), (8, 24)])
@pytest.mark.parametrize("floats", [0, 30 * 24])
def test_rows_finished_in_a_given_place_are_those_finished_anywhere(
    kind: str, widths: tuple[int, int], floats: int
) -> None:
    [layer] = model_of(kind, widths, 3)
    total = np.random.default_rng(1).standard_normal((30, layer.width)).astype(np.float32)
    degree, room = np.arange(30, dtype=np.int32), np.full(floats, np.nan, np.float32)
    assert np.array_equal(finish(layer, total.copy(), degree, room), finish(layer, total.copy(), degree))
