"""Trained part by part from disk, a network gets the gradients of the whole graph: any cut, any memory, any layer."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from assay.data.disk.arrays import DiskArray, write_rows  # noqa: E402
from assay.data.grinnder.blocks import cut  # noqa: E402
from assay.data.grinnder.layers import KINDS, Network  # noqa: E402
from assay.data.grinnder.plan import Plan, planned  # noqa: E402
from assay.data.grinnder.rivals import InMemory, Mapped, Snapshots  # noqa: E402
from assay.data.grinnder.trainer import Trainer, difference, fit, gradients  # noqa: E402
from tests.oracles import gnn_training as oracle  # noqa: E402

HELD = {
    "all": lambda layer: Plan(0, 0, 1 << 28, True, "layers", True),
    "parts": lambda layer: Plan(0, 0, int(1.3 * layer), True, "parts"),
    "logged": lambda layer: Plan(0, 0, int(1.3 * layer), False, "parts"),
    "rows": lambda layer: Plan(0, 0, layer // 3, True, "rows"),
    "nothing": lambda layer: Plan(0, 0, 0, False, "rows"),
}
"""What memory holds, given a layer's bytes: all rows, some parts, a few rows, and neither rows nor gradients."""


@contextmanager
def made(
    network: Network, edges: Any, x: Any, labels: Any, parts: int, held: str, how: type[Trainer] = Trainer
) -> Iterator[Trainer]:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as name:
        folder = Path(name)
        write_rows(folder / "x.npy", x)
        graph = cut(folder / "cut", lambda: iter([edges]), len(x), parts, network.own_loops)
        plan = HELD[held](4 * len(x) * max(network.widths[:-1]))
        trainer = how(network, graph, plan, folder / "rows", labels, labels >= 0)
        with DiskArray.open(folder / "x.npy") as rows:
            trainer.load(rows)
        yield trainer
        trainer.close()


def some_graph(n: int, m: int, columns: int, seed: int) -> tuple[Any, Any, Any]:
    """Repeats, self-loops, nodes without edges, and nodes without a label."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, columns)).astype(np.float32)
    labels = rng.integers(-1, 3, n)
    labels[0] = 0
    return rng.integers(0, n, (m, 2)), x, labels


@given(
    st.sampled_from(KINDS), st.integers(2, 30), st.integers(0, 80), st.integers(1, 5), st.sampled_from(list(HELD)),
    st.sampled_from([(4, 8, 3), (6, 4, 4, 3), (5, 3)]), st.integers(0, 10**6),
)  # fmt: skip
@settings(max_examples=8)
def test_gradients_are_those_of_the_definition(
    kind: str, n: int, m: int, parts: int, held: str, widths: tuple[int, ...], seed: int
) -> None:
    edges, x, labels = some_graph(n, m, widths[0], seed)
    network = Network(kind, widths, heads=2, seed=seed)
    loss, right = oracle.gradients(kind, network.state_dict(), edges.tolist(), x, labels, labels >= 0)
    with made(network, edges, x, labels, min(parts, n), held) as trainer:
        found = [(trainer.epoch().loss, gradients(network)) for _ in range(2)]  # nothing is left of the first
    for one, blamed in found:
        assert one == pytest.approx(loss, rel=1e-5)
        for name, grad in right.items():
            scale = max(np.abs(grad).max(), 1e-3 * max(np.abs(g).max() for g in right.values()))
            assert np.abs(blamed[name] - grad).max() < 1e-4 * scale, name


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_without_nodes_adds_nothing(kind: str) -> None:
    _, x, labels = some_graph(7, 0, 4, 0)
    ring = np.array([(i, (i + 1) % 7) for i in range(7)])
    network = Network(kind, (4, 8, 3), heads=2)
    _, right = oracle.gradients(kind, network.state_dict(), ring.tolist(), x, labels, labels >= 0)
    with made(network, ring, x, labels, 7, "all") as trainer:
        assert trainer.graph.sizes.min() == 0
        trainer.epoch()
    assert difference(gradients(network), right) < 1e-4


@pytest.fixture(scope="module")
def hubs() -> tuple[Any, Any, Any]:
    from assay.workloads.graph_generate import rmat

    _, x, labels = some_graph(128, 0, 8, 3)
    return np.concatenate([rmat(7, 6, 1), [[5, 5], [9, 9]]]), x, labels


@pytest.mark.parametrize("kind", KINDS)
def test_every_rival_computes_the_same_gradients(kind: str, hubs: tuple[Any, Any, Any], tmp_path: Path) -> None:
    edges, x, labels = hubs
    network = Network(kind, (8, 8, 8, 3), heads=2)
    write_rows(tmp_path / "x.npy", x)
    whole = cut(tmp_path / "one", lambda: iter([edges]), len(x), 1, network.own_loops)
    with DiskArray.open(tmp_path / "x.npy") as rows:
        loss = InMemory(network, whole, rows, labels, labels >= 0).epoch().loss
    right = gradients(network)
    _, exact = oracle.gradients(kind, network.state_dict(), edges.tolist(), x, labels, labels >= 0)
    assert difference(right, exact) < 1e-5
    for how in (Trainer, Snapshots, Mapped):
        for held in ("all", "nothing"):
            with made(network, edges, x, labels, 3, held, how) as trainer:
                epochs = [trainer.epoch(), trainer.epoch()]
                assert epochs[1].loss == pytest.approx(loss, rel=1e-5), (how, held)
                assert difference(gradients(network), right) < 1e-5, (how, held)


@pytest.mark.slow  # importing torch-geometric; the definition, above, is its quick twin
@pytest.mark.skipif(importlib.util.find_spec("torch_geometric") is None, reason="torch-geometric is not installed")
@pytest.mark.parametrize("kind", KINDS)
def test_ten_epochs_are_those_of_torch_geometric(kind: str, tmp_path: Path) -> None:
    """One, two, four and sixteen parts, whatever memory holds: gradients to 1e-5, and the curve of losses."""
    from torch_geometric.nn import models

    edges, x, labels = some_graph(600, 4000, 12, 5)
    options = {"heads": 4} if kind == "gat" else {}
    for parts in (1, 2, 4, 16):
        for held in HELD:
            network = Network(kind, (12, 16, 16, 3), heads=4)
            twin = {"gcn": models.GCN, "sage": models.GraphSAGE, "gat": models.GAT}[kind](12, 16, 3, 3, **options)
            twin.load_state_dict(network.state_dict())
            ours, theirs = (torch.optim.Adam(one.parameters(), lr=0.01) for one in (network, twin))
            chosen = torch.from_numpy(labels >= 0)
            with made(network, edges, x, labels, parts, held) as trainer:
                for epoch in range(10):
                    told = trainer.epoch()
                    theirs.zero_grad()
                    out = twin(torch.from_numpy(x), torch.from_numpy(edges.T.copy()))
                    loss = torch.nn.functional.cross_entropy(out[chosen], torch.from_numpy(labels)[chosen])
                    loss.backward()
                    right = {name: p.grad.numpy() for name, p in twin.named_parameters()}
                    if epoch == 0:
                        assert difference(gradients(network), right) < 1e-5, (parts, held)
                    assert told.loss == pytest.approx(loss.item(), rel=1e-4), (parts, held, epoch)
                    ours.step()
                    theirs.step()


def test_a_mean_loss_of_each_part_would_be_another_gradient(hubs: tuple[Any, Any, Any]) -> None:
    """The trap: parts with few training nodes would count as much as parts with many."""
    edges, x, labels = hubs
    labels = np.where(np.arange(len(labels)) < 100, labels, -1)
    network = Network("gcn", (8, 8, 3))
    with made(network, edges, x, labels, 4, "all") as trainer:
        trainer.epoch()
        right = gradients(network)
        counts = [int(trainer.train[a:b].sum()) for a, b in zip(trainer.graph.ptr, trainer.graph.ptr[1:], strict=False)]
        assert max(counts) > min(counts)
        summed = trainer._loss
        trainer._loss = lambda out, block: summed(out, block) / max(counts[block.part], 1)  # type: ignore[method-assign]
        trainer.epoch()
    scaled = {name: grad * np.float32(trainer.count / 4) for name, grad in gradients(network).items()}
    assert difference(scaled, right) > 1e-2


def test_degrees_are_those_of_the_whole_graph(tmp_path: Path) -> None:
    """The other trap: normalised part by part, a node would forget those who listen elsewhere."""
    edges = np.array([(0, 1), (2, 1), (3, 1), (0, 2)])
    graph = cut(tmp_path, lambda: iter([edges]), 4, 2, True, part=np.array([0, 0, 1, 1]))
    assert graph.block(0).degree.tolist() == [4, 1, 2, 1], (
        "own loops included; nobody outside wants node 1, so it comes first"
    )
    assert graph.amplification == (4 + 3) / 4


def test_training_learns_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    from assay.data import Checkpointer

    edges, x, labels = some_graph(60, 300, 6, 2)
    write_rows(tmp_path / "x.npy", x)

    def trained(epochs: int, store: str | None, seed: int = 0, edges: Any = edges) -> tuple[Any, Any]:
        network = Network("gcn", (6, 8, 3), seed=seed)
        saved = Checkpointer(str(tmp_path / store), keep=2) if store else None
        done = fit(
            network, lambda: iter([edges]), tmp_path / "x.npy", labels, memory=1 << 27, epochs=epochs, checkpoints=saved
        )  # fmt: skip
        return done, {name: value.numpy() for name, value in network.state_dict().items()}

    done, right = trained(7, None)
    assert done.losses[-1] < done.losses[0]
    trained(3, "ckpt")
    again, found = trained(7, "ckpt")
    assert (again.resumed, len(again.epochs), len(again.losses)) == (3, 4, 7)
    assert again.losses == pytest.approx(done.losses, abs=0)
    assert all(np.array_equal(found[name], right[name]) for name in right)
    with pytest.raises(ValueError, match="holds 7 epochs of this training, and 3 are wanted"):
        trained(3, "ckpt")
    other = "a training of other data or settings; name another store"
    for change in ({"seed": 1}, {"edges": edges[:-1]}, {"edges": np.concatenate([edges, edges[:, ::-1]])}):
        with pytest.raises(ValueError, match=other):
            trained(9, "ckpt", **change)
    labels[0] = 2
    with pytest.raises(ValueError, match=other):
        trained(9, "ckpt")


def test_the_fewest_parts_are_taken_whose_work_fits_and_too_little_memory_says_what_it_takes(tmp_path: Path) -> None:
    edges, _, _ = some_graph(4000, 8000, 64, 1)
    network = Network("gcn", (64, 64, 3))
    ample, plan = planned(tmp_path / "a", lambda: iter([edges]), 4000, network, 1 << 28, None)
    assert (ample.parts, plan.mode, plan.gradients, plan.blocks) == (1, "layers", True, True)
    tight, plan = planned(tmp_path / "b", lambda: iter([edges]), 4000, network, 20 << 20, None)
    assert tight.parts > 1 and plan.fixed + plan.work + plan.cache <= 20 << 20
    with pytest.raises(ValueError, match=r"9,000,000 bytes are too few for 4,000 nodes; more than [0-9,]+ expected"):
        planned(tmp_path / "c", lambda: iter([edges]), 4000, network, 9_000_000, None)
    (tmp_path / "c").mkdir()
    with pytest.raises(ValueError, match=r"13,000,000 bytes are too few for 2 parts; [0-9,]+ or more expected"):
        planned(tmp_path / "c", lambda: iter([edges]), 4000, network, 13_000_000, 2)
    assert not any((tmp_path / "c").iterdir()), "cuts that were tried are gone"


def test_gradients_are_logged_where_holding_them_would_leave_no_room_for_a_blocks_inputs(tmp_path: Path) -> None:
    network = Network("gcn", (64, 64, 64, 4))
    edges = np.random.default_rng(1).integers(0, 4000, (30_000, 2))
    graph = cut(tmp_path / "g", lambda: iter([edges]), 4000, 4, True)
    layer = 4 * 4000 * 64
    least = Plan.of(network, graph, 1 << 40)
    base = least.fixed + least.work
    for extra, holds, mode in (
        (6.0, True, "layers"),
        (2.5, True, "parts"),
        (1.5, False, "parts"),
        (0.5, False, "rows"),
    ):
        plan = Plan.of(network, graph, base + int(extra * layer))
        assert (plan.gradients, plan.mode) == (holds, mode), extra
    held = Plan.of(network, graph, base + int(1.5 * layer), regathers=False)
    assert held.gradients and held.mode == "rows", "who has stored its inputs needs none of them near"
    graph.close()
