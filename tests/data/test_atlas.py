"""Rows streamed from disk are those of the definition, in any memory, by any rule, after any crash."""

from __future__ import annotations

import errno
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.cli.main import assay
from assay.data.atlas import Inferred, infer, layers, read_model, trials
from assay.data.atlas.attention import groups, weigh
from assay.data.atlas.choosing import choose, count_spills, sampled_spills
from assay.data.atlas.compare import why
from assay.data.atlas.engine import Plan
from assay.data.atlas.gather import gather_layer, in_memory
from assay.data.atlas.layers import MAX, SUM, degrees
from assay.data.atlas.strips import StripPlan, run_strips, strips_of
from assay.data.atlas.tiers import FREE, POLICIES, HotTier
from assay.data.disk.arrays import DiskArray, write_rows
from assay.data.disk.graphs import DiskGraph
from assay.record import catalogue
from assay.record.errors import BadInput
from tests.oracles import gnn as oracle

KINDS = ("gcn", "sage", "gin", "gat")
RULES = ("auto", "strips", *POLICIES[:-1])


@contextmanager
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        yield Path(folder)


def weights(kind: str, into: int, out: int, rng: np.random.Generator, heads: int = 2) -> dict[str, Any]:
    """One layer's, by PyG's names."""
    draw = lambda *shape: (rng.normal(size=shape) / np.sqrt(shape[-1])).astype(np.float32)  # noqa: E731
    if kind == "gcn":
        return {"lin.weight": draw(out, into), "bias": draw(out)}
    if kind == "sage":
        return {"lin_l.weight": draw(out, into), "lin_l.bias": draw(out), "lin_r.weight": draw(out, into)}
    if kind == "gin":
        inner = {"nn.0.weight": draw(out, into), "nn.0.bias": draw(out), "nn.2.weight": draw(out, out)}
        return inner | {"nn.2.bias": draw(out), "eps": np.float32([0.3])}
    parts = {"lin.weight": draw(heads * out, into), "bias": draw(rng.choice([out, heads * out]))}
    return parts | {"att_src": draw(1, heads, out), "att_dst": draw(1, heads, out)}


def least_memory(model: list[Any], n: int) -> int:
    """The smallest memory that every layer accepts."""
    return max(Plan.least(layer, n, DiskArray.group_of(4 * layer.out_width)) for layer in model)


@given(
    st.sampled_from([*KINDS, "sage max"]), st.integers(2, 25), st.integers(0, 70),
    st.sampled_from([(3, 5), (8, 2), (2, 7)]),
    st.sampled_from(RULES), st.booleans(), st.integers(0, 10**6),
)  # fmt: skip
@settings(max_examples=10)
def test_rows_are_those_of_the_definition(
    kind: str, n: int, m: int, widths: tuple[int, int], policy: str, little: bool, seed: int
) -> None:
    """Repeated edges, self-loops and nodes without edges included."""
    kind, _, how = kind.partition(" ")
    rng = np.random.default_rng(seed)
    edges = rng.integers(0, n, (m, 2))
    x = rng.normal(size=(n, widths[0])).astype(np.float32)
    named = weights(kind, *widths, rng)
    model = layers({f"convs.0.{name}": value for name, value in named.items()}, how or "mean")
    with scratch() as folder:
        graph = DiskGraph.build(folder / "g", [edges], n)
        write_rows(folder / "x.npy", x)
        memory = least_memory(model, n) if little else 1 << 24
        infer(model, graph, folder / "x.npy", folder / "y.npy", memory, policy=policy)
        got = np.load(folder / "y.npy")
        assert np.array_equal(got.shape, (n, model[0].out_width))
        held = in_memory(model[0], graph.reversed(folder / "r"), x)
    right = oracle.layer(kind, named, [tuple(edge) for edge in edges.tolist()], x, how or "mean")
    assert np.abs(got - right).max() < 1e-4
    assert np.abs(held - right).max() < 1e-4


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A graph with hubs and loops whose accumulators are many times the smallest memory."""
    folder = tmp_path_factory.mktemp("atlas")
    rng = np.random.default_rng(7)
    n, width = 2000, 48
    edges = np.concatenate([trials.edges_of("rmat", 1024, 8, 3), rng.integers(0, n, (4000, 2)), [[5, 5], [9, 9]]])
    x = rng.normal(size=(n, width)).astype(np.float32)
    write_rows(folder / "x.npy", x)
    graph = DiskGraph.build(folder / "g", [edges], n)
    return {"folder": folder, "graph": graph, "edges": edges, "x": x}


def test_every_kind_and_rule_spills_in_little_memory_and_gives_the_same_rows(bench: dict[str, Any]) -> None:
    folder, graph = bench["folder"], bench["graph"]
    for kind in KINDS:
        model = trials.model_of(kind, (48, 40, 12), 1)
        infer(model, graph, folder / "x.npy", folder / "all.npy", 1 << 27)
        right = np.load(folder / "all.npy")
        for policy in POLICIES[:-1] if kind == "gcn" else ("min-pending",):
            ran = infer(model, graph, folder / "x.npy", folder / "y.npy", least_memory(model, graph.n), policy=policy)
            assert sum(layer.evicted for layer in ran.layers) > graph.n, "the case must really evict"
            assert all(layer.returns > 0 and layer.spill_bytes > 0 for layer in ran.layers[:1])
            assert np.abs(np.load(folder / "y.npy") - right).max() < 1e-4 * np.abs(right).max(), (kind, policy)


def test_a_last_layer_of_attention_that_does_not_say_what_becomes_of_its_heads_is_refused() -> None:
    named = {name: value for name, value in weights("gat", 4, 3, np.random.default_rng(1)).items() if name != "bias"}
    with pytest.raises(ValueError, match="save a zero bias"):
        layers({f"convs.0.{name}": value for name, value in named.items()})
    after = weights("gcn", 6, 2, np.random.default_rng(1))
    state = {f"convs.0.{name}": value for name, value in named.items()}
    first, _ = layers(state | {f"convs.1.{name}": value for name, value in after.items()})
    assert first.out_width == 6, "side by side, because the next layer takes six columns"


@pytest.mark.slow  # importing torch-geometric; the definition, above, is its quick twin
@pytest.mark.skipif(importlib.util.find_spec("torch_geometric") is None, reason="torch-geometric is not installed")
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("GCN", {}), ("GraphSAGE", {}), ("GraphSAGE", {"aggr": "max"}), ("GIN", {}), ("GIN", {"norm": "batch_norm"}),
        ("GAT", {"heads": 4}), ("GAT", {"heads": 1, "bias": False}),
    ],
)  # fmt: skip
def test_models_of_torch_geometric_give_the_same_rows(
    bench: dict[str, Any], name: str, options: dict[str, Any]
) -> None:
    import torch
    from torch_geometric.nn import models

    torch.manual_seed(3)
    model = getattr(models, name)(48, 16, 2, 7, **options)
    edge_index = torch.from_numpy(bench["edges"].T.copy())
    if options.get("norm"):
        model.norms = torch.nn.ModuleList([torch.nn.Identity()] * 2)  # of GIN only the inner norms
        model.train()(torch.from_numpy(bench["x"]), edge_index)  # norms that differ from where they begin
    with torch.no_grad():
        right = model.eval()(torch.from_numpy(bench["x"]), edge_index).numpy()
    made = layers({key: value.numpy() for key, value in model.state_dict().items()}, options.get("aggr", "mean"))
    folder = bench["folder"]
    for memory in (least_memory(made, 2000), 1 << 26):
        infer(made, bench["graph"], folder / "x.npy", folder / "pyg.npy", memory)
        assert np.abs(np.load(folder / "pyg.npy") - right).max() < 1e-4 * max(1, np.abs(right).max())


def check_gather(graph: DiskGraph, x: Any, kind: str, cache: str, widths: tuple[int, int], memory: int) -> None:
    """The gather's rows are those in memory, and its cache was too small for all of them or was hit."""
    [layer] = trials.model_of(kind, widths, 2)
    out_degree = np.diff(graph.indptr.rows(0, graph.n + 1)).astype(np.int32)
    with scratch() as folder:
        incoming = graph.reversed(folder / "in")
        right = in_memory(layer, incoming, x)
        write_rows(folder / "x.npy", x)
        with DiskArray.open(folder / "x.npy") as source:
            ran = gather_layer(layer, incoming, out_degree, source, folder / "z.npy", memory, folder, cache)
        assert np.abs(np.load(folder / "z.npy") - right).max() < 1e-4 * np.abs(right).max()
    assert ran.evicted > 0, "rows were missed"
    assert ran.feature_bytes > 1.5 * x.nbytes or ran.returns > 0


@pytest.mark.parametrize("cache", ["lru", "static"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_gathers_it_is_compared_with_give_the_same_rows(kind: str, cache: str) -> None:
    rng = np.random.default_rng(11)
    x = rng.normal(size=(400, 24)).astype(np.float32)
    with scratch() as folder:
        graph = DiskGraph.build(folder / "g", [rng.integers(0, 400, (800, 2))], 400)
        for widths in ((24, 20), (24, 60)):
            check_gather(graph, x, kind, cache, widths, 30_000)


@pytest.mark.slow  # thousands of small reads; the smaller graph, above, is its quick twin
@pytest.mark.parametrize("cache", ["lru", "static"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_gathers_give_the_same_rows_on_a_graph_with_hubs(bench: dict[str, Any], kind: str, cache: str) -> None:
    for widths in ((48, 40), (48, 120)):
        check_gather(bench["graph"], bench["x"], kind, cache, widths, 200_000)


@pytest.mark.parametrize("kind", [*KINDS, "sage max"])
def test_strips_of_any_width_give_the_same_rows_and_evict_nobody(bench: dict[str, Any], kind: str) -> None:
    """Part of a head, whole heads, all columns; a chunk's edges in several pieces."""
    kind, _, how = kind.partition(" ")
    graph, n = bench["graph"], bench["graph"].n
    for widths in ((48, 40), (48, 120)):  # projected before they are sent, and after
        [layer] = trials.model_of(kind, widths, 2)
        layer = replace(layer, reduce=MAX) if how else layer
        degree = degrees(layer, graph.in_degree(), graph.loops())
        with scratch() as folder, DiskArray.open(bench["folder"] / "x.npy") as source:
            right = in_memory(layer, graph.reversed(folder / "in"), bench["x"])
            for floats in (7, 27, 200):
                plan = StripPlan(tuple(strips_of(layer, floats)), rows=700, sent=700, edges=3000)
                with DiskArray.create(folder / "y.npy", (n, layer.out_width), np.float32) as target:
                    stats = run_strips(layer, graph, degree, source, target, plan, folder, lambda rows: None)
                assert np.abs(np.load(folder / "y.npy") - right).max() < 1e-4 * np.abs(right).max(), floats
                told = plan.moved(layer, graph) - 4 * n * layer.out_width - source.nbytes * (1 + (kind == "sage"))
                passes = 2 * len(groups(plan.together, plan.heads)) if kind == "gat" else len(plan.strips)
                edges = passes * (4 * graph.m + 8 * n) + (8 * n * len(plan.strips) if kind == "gat" else 0)
                assert abs(told - edges - stats.read_bytes - stats.write_bytes) < 0.2 * (told - edges) + 80 * 4096
            assert {path.name for path in folder.iterdir()} == {"in", "y.npy"}


@given(st.sampled_from(KINDS), st.integers(6, 300), st.integers(1, 40))
def test_strips_cover_every_column_once_and_are_as_wide_as_is_allowed(kind: str, floats: int, out: int) -> None:
    [layer] = trials.model_of(kind, (48, 4 * out), 0)
    strips = strips_of(layer, floats)
    columns = [column for strip in strips for column in range(strip.start, strip.stop)]
    assert columns == list(range(layer.message_width - (layer.heads if kind == "gat" else 0)))
    assert all(strip.width <= floats for strip in strips)


@given(
    st.integers(1, 9),
    st.lists(st.tuples(st.integers(0, 8), st.integers(0, 8)), max_size=40),
    st.sampled_from([0.0, 1.0, 200.0]),
    st.integers(1, 7),
)
def test_edges_weigh_what_a_softmax_over_each_nodes_edges_says(
    n: int, pairs: list[tuple[int, int]], scale: float, at_once: int
) -> None:
    """Whatever the logits: hundreds apart, all alike; repeats count, loops of the graph do not."""
    edges = sorted((u % n, v % n) for u, v in pairs)
    rng = np.random.default_rng(n)
    logits, facing = (scale * rng.standard_normal((n, 2)).astype(np.float32) for _ in range(2))
    with scratch() as folder:
        graph = DiskGraph.build(folder / "g", [np.array(edges, np.int64).reshape(-1, 2)], n)
        for together, most in (([slice(0, 1), slice(1, 2)], 1), ([slice(0, 1), slice(1, 2)], 2), ([slice(0, 2)], 1)):
            found = weigh(graph, logits, facing, together, most, at_once, folder)
            for heads, head in ((one, head) for one in together for head in range(one.start, one.stop)):
                right = oracle.attention(edges, logits[:, head].tolist(), facing[:, head].tolist())
                weighed, mine = found.edges[heads.start].rows(0, len(edges)), found.own[heads.start].rows(0, n)
                assert weighed[:, 0].tolist() == [v for _, v in edges]
                column = head - heads.start
                assert np.allclose(weighed.view(np.float32)[:, 1 + column], right[0], atol=1e-5)
                assert np.allclose(mine[:, column], right[1], atol=1e-5)
            found.close()
        assert {path.name for path in folder.iterdir()} == {"g"}


def test_strips_are_chosen_where_less_crosses_the_disk_with_them() -> None:
    [layer] = trials.model_of("gcn", (64, 64), 1)
    with scratch() as folder:
        graph = DiskGraph.build(folder / "g", [trials.edges_of("rmat", 4096, 16, 1)], 4096)
        strips = StripPlan.of(layer, 4096, 1 << 20)
        assert strips is not None
        assert choose(layer, graph, 100, strips) == "strips"
        assert choose(layer, graph, 100, None) == "min-pending", "with too little memory for any strip"
        assert choose(layer, graph, 4096, strips) == "min-pending", "with room for all, nothing is set aside"
        near = np.stack([np.arange(4095), np.arange(1, 4096)], axis=1)
        path = DiskGraph.build(folder / "p", [near], 4096)
        assert choose(layer, path, 100, strips) != "strips", "neighbours lie together: nothing is evicted early"


def test_features_are_read_once_a_layer_and_twice_for_attention(bench: dict[str, Any]) -> None:
    folder, size = bench["folder"], bench["x"].nbytes
    for kind, passes in (("gcn", 1), ("gin", 1), ("gat", 2)):
        model = trials.model_of(kind, (48, 48), 1)
        ran = infer(model, bench["graph"], folder / "x.npy", folder / "y.npy", 1 << 24)
        assert passes * size <= ran.layers[0].feature_bytes <= passes * size * 1.1 + 2 * 4096


# ------------------------------------------------------------------------------------- eviction rules


@given(st.integers(2, 12), st.lists(st.integers(0, 11), min_size=1, max_size=120), st.integers(1, 6))
def test_the_least_recently_touched_leave_as_in_the_plain_tier(n: int, targets: list[int], slots: int) -> None:
    targets = [v % n for v in targets]
    found, _, live, _ = count_spills(np.arange(len(targets)), np.array(targets), n, slots, "lru", chunk=1)
    assert live <= slots
    assert found == oracle.spills(targets, n, slots)


@given(st.lists(st.integers(0, 9), min_size=3, max_size=30), st.integers(1, 30), st.integers(0, 99))
def test_victims_are_those_with_the_fewest_or_most_to_come_and_complete_ones_first(
    pending: list[int], count: int, seed: int
) -> None:
    n = len(pending)
    tier = HotTier(n, n, 0, np.array(pending, np.int32), 1, SUM)
    tier.owner[:] = np.random.default_rng(seed).permutation(n)
    tier.state[FREE] = 0
    left = np.array(pending)
    for rule, sign in (("min-pending", 1), ("max-pending", -1)):
        chosen = tier.victims(count, rule)
        value = np.where(left == 0, -100, sign * left)
        assert sorted(value[chosen]) == sorted(value)[: min(count, n)]
    assert (left[tier.victims(count, "random", seed)] == 0).sum() == min((left == 0).sum(), count)


@given(st.integers(2, 12), st.lists(st.integers(0, 11), min_size=1, max_size=120), st.integers(1, 7))
def test_nobody_returns_more_seldom_than_who_knows_the_future(n: int, targets: list[int], slots: int) -> None:
    nodes = np.array([v % n for v in targets])
    arrive = np.arange(len(nodes))
    returns = {rule: count_spills(arrive, nodes, n, slots, rule)[1] for rule in POLICIES}
    assert returns["belady"] == min(returns.values())


def test_the_rule_is_chosen_by_how_the_nodes_lie() -> None:
    with scratch() as folder:
        scattered = DiskGraph.build(folder / "s", [trials.edges_of("rmat", 2048, 16, 1)], 2048)
        together = DiskGraph.build(folder / "t", [trials.edges_of("ordered", 2048, 16, 1)], 2048)
        for graph, better, worse in ((scattered, "min-pending", "lru"), (together, "lru", "min-pending")):
            for sample in (200_000, 10_000):  # all edges, and a third of them
                spilled = sampled_spills(graph, 200, False, sample)
                assert spilled[better] < spilled[worse], sample


# -------------------------------------------------------------------------------------------- crashes

POINTS = {
    "run_layer:-2": 1, "run_layer:1": 0, "run_layer:3": 2, "_mark:-1": 0, "_mark:1": 1, "_mark:3": 3, "_publish:-1": 3,
    "_sync_folder:4": 3,
}  # fmt: skip
"""Before (-) or after the n-th call of a step the process dies; so many layers must then be whole."""

CRASHING = """
import json, os, sys, traceback
from pathlib import Path
from assay.data.atlas import infer, read_model, run
from assay.data.disk.graphs import DiskGraph

folder = Path(sys.argv[1])

def go(out):
    return infer(read_model(folder / "m.npz"), DiskGraph(folder / "g"), folder / "x.npy", folder / out, 1 << 22)

def die(point, out):
    name, _, count = point.partition(":")
    original, calls = getattr(run, name), [0]

    def crash(*given, **named):
        calls[0] += 1
        if calls[0] == abs(int(count)):
            if int(count) > 0:
                original(*given, **named)
            os._exit(137)
        return original(*given, **named)

    setattr(run, name, crash)
    go(out)

def again(point, out):
    ran = go(out)
    (folder / (out + ".json")).write_text(json.dumps([ran.resumed, len(ran.layers)]))

codes = []
for turn, point in enumerate(sys.argv[2:]):
    for act in (die, again):  # each in a process of its own; this one never starts a thread
        if (child := os.fork()) == 0:
            try:
                act(point, f"y{turn}.npy")
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print(json.dumps(codes))
"""


@dataclass(frozen=True)
class Asked:
    """Three layers over a small graph, on disk, and the rows of a run that nothing stopped."""

    folder: Path

    def infer(self, out: str) -> Inferred:
        files = self.folder / "x.npy", self.folder / out
        with closing(DiskGraph(self.folder / "g")) as graph:
            return infer(read_model(self.folder / "m.npz"), graph, *files, 1 << 22)

    def check(self, out: str, point: str, resumed: int, computed: int) -> None:
        assert (resumed, computed) == (POINTS[point], 3 - POINTS[point]), point
        assert np.array_equal(np.load(self.folder / out), np.load(self.folder / "right.npy")), point
        assert not (self.folder / f"{out}.work").exists(), point


@pytest.fixture
def asked(tmp_path: Path) -> Asked:
    rng = np.random.default_rng(3)
    DiskGraph.build(tmp_path / "g", [rng.integers(0, 300, (2000, 2))], 300).close()
    write_rows(tmp_path / "x.npy", rng.normal(size=(300, 16)).astype(np.float32))
    state = {f"convs.{i}.{k}": v for i in range(3) for k, v in weights("gcn", 16, 16, rng).items()}
    np.savez(tmp_path / "m.npz", **state)
    made = Asked(tmp_path)
    made.infer("right.npy")
    return made


class Stop(BaseException):
    """What nobody catches on the way out."""


@pytest.mark.parametrize("point", POINTS)
def test_a_stopped_run_goes_on_behind_its_last_whole_layer(
    asked: Asked, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before and after a layer is computed, before and after its marker, before and after the output is in place."""
    from assay.data.atlas import run

    name, _, count = point.partition(":")
    original, calls = getattr(run, name), itertools.count(1)

    def stop(*given: Any, **named: Any) -> Any:
        if next(calls) != abs(int(count)):
            return original(*given, **named)
        if int(count) > 0:
            original(*given, **named)
        raise Stop

    with monkeypatch.context() as patched, pytest.raises(Stop):
        patched.setattr(run, name, stop)
        asked.infer("y.npy")
    ran = asked.infer("y.npy")
    asked.check("y.npy", point, ran.resumed, len(ran.layers))


@pytest.mark.slow  # two processes a point; the stopped run, above, is its quick twin
def test_a_killed_run_goes_on_behind_its_last_whole_layer(asked: Asked) -> None:
    command = [sys.executable, "-c", CRASHING, str(asked.folder), *POINTS]
    ended = subprocess.run(command, env=os.environ | _path(), capture_output=True, text=True)
    assert ended.returncode == 0 and ended.stdout, f"exit code {ended.returncode}\n{ended.stderr}"
    assert json.loads(ended.stdout) == [137, 0] * len(POINTS), ended.stderr
    for turn, point in enumerate(POINTS):
        told = json.loads((asked.folder / f"y{turn}.npy.json").read_text())
        asked.check(f"y{turn}.npy", point, *told)


def test_two_runs_into_one_output_do_not_take_each_others_layers(asked: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    from assay.data.atlas import run

    original = run.run_layer

    def beside(*given: Any) -> Any:
        with monkeypatch.context() as patched, pytest.raises(BadInput, match="another run is writing to"):
            patched.setattr(run, "run_layer", original)
            asked.infer("y.npy")
        return original(*given)

    monkeypatch.setattr(run, "run_layer", beside)
    asked.infer("y.npy")
    assert np.array_equal(np.load(asked.folder / "y.npy"), np.load(asked.folder / "right.npy"))
    assert not (asked.folder / "y.npy.work").exists()


def _path() -> dict[str, str]:
    import assay as package

    return {"PYTHONPATH": str(Path(package.__file__).parents[1])}


def test_layers_of_another_model_or_of_changed_features_are_not_taken_over(tmp_path: Path) -> None:
    from assay.data.atlas import run

    rng = np.random.default_rng(3)
    graph = DiskGraph.build(tmp_path / "g", [rng.integers(0, 50, (200, 2))], 50)
    x = rng.normal(size=(50, 8)).astype(np.float32)
    write_rows(tmp_path / "x.npy", x)
    models = [trials.model_of("gcn", (8, 8, 4), seed) for seed in (1, 2)]
    work = tmp_path / "y.npy.work"
    work.mkdir()
    write_rows(work / "layer-1.npy", np.zeros((50, 8), np.float32))
    run._mark(work, 1, run._identity(models[0], graph, tmp_path / "x.npy"))
    assert infer(models[1], graph, tmp_path / "x.npy", tmp_path / "y.npy", 1 << 22).resumed == 0
    work.mkdir()
    write_rows(work / "layer-1.npy", np.zeros((50, 8), np.float32))
    run._mark(work, 1, run._identity(models[0], graph, tmp_path / "x.npy"))
    write_rows(tmp_path / "x.npy", x + 1)
    assert infer(models[0], graph, tmp_path / "x.npy", tmp_path / "y.npy", 1 << 22).resumed == 0


# ------------------------------------------------------------------------------------- the command line


def files(folder: Path, kind: str = "gcn") -> list[str]:
    rng = np.random.default_rng(1)
    (folder / "e.txt").write_text("".join(f"{u} {v}\n" for u, v in rng.integers(0, 90, (400, 2))))
    np.save(folder / "x.npy", rng.normal(size=(100, 6)))  # ten nodes have no edge; double precision
    np.savez(folder / "m.npz", **{f"convs.0.{name}": value for name, value in weights(kind, 6, 3, rng).items()})
    return ["data", "gnn", "infer", f"{folder}/e.txt", "--features", f"{folder}/x.npy", "--model", f"{folder}/m.npz",
            "--out", f"{folder}/y.npy"]  # fmt: skip


@pytest.fixture
def verb(monkeypatch: pytest.MonkeyPatch) -> None:
    """`assay data gnn` as atlas brings it: another paper's share of the verb would import torch."""
    monkeypatch.setattr(catalogue, "verbs", lambda room: {"gnn": ("assay.data.atlas.commands.gnn",)})


@pytest.mark.usefixtures("verb")
def test_the_command_writes_the_rows_and_tells_what_it_took(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        assay, [*files(tmp_path), "--memory", "4GB", "--undirected", "--json"], catch_exceptions=False
    )
    told = json.loads(done.stdout)
    assert told["graph"]["nodes"] == 100 and told["graph"]["edges"] > 700
    assert told["memory"]["peak_bytes"] is None or told["memory"]["peak_bytes"] < 4e9
    assert np.load(tmp_path / "y.npy").shape == (100, 3)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["e.txt", "m.npz", "x.npy", "y.npy"]


@pytest.mark.usefixtures("verb")
@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda f: np.save(f / "x.npy", np.zeros((100, 5))), "has 5 columns; the model takes 6"),
        (lambda f: np.save(f / "x.npy", np.zeros((80, 6))), "0 to below 80"),
        (lambda f: np.save(f / "x.npy", np.zeros((100, 6), int)), "floats of shape"),
        (lambda f: np.savez(f / "m.npz", **{"head.weight": np.zeros((3, 6))}), "'head.weight', which is no layer's"),
        (lambda f: np.savez(f / "m.npz", **{"convs.0.lin_edge.weight": np.zeros((3, 6))}), "'lin_edge'"),
        (lambda f: (f / "m.npz").write_bytes(b"PK not a zip"), "m.npz: "),
        (lambda f: (f / "m.npz").unlink(), "no such file"),
        (lambda f: (f / "e.txt").write_text("0 1\n2 x\n"), "line 2: '2 x'"),
        (lambda f: os.truncate(f / "x.npy", 1000), "header promises"),
    ],
)
def test_bad_input_is_one_line_with_the_cure(tmp_path: Path, spoil: Any, says: str) -> None:
    arguments = files(tmp_path)
    spoil(tmp_path)
    with pytest.raises(BadInput, match=says) as told:
        CliRunner().invoke(assay, [*arguments, "--memory", "4GB"], catch_exceptions=False, standalone_mode=False)
    assert "\n" not in str(told.value)
    assert not (tmp_path / "y.npy").exists()


@pytest.mark.usefixtures("verb")
def test_a_stopped_run_does_not_go_on_with_edges_that_changed_in_their_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = [*files(tmp_path), "--memory", "4GB"]
    ogb = tmp_path / "ogb"
    ogb.mkdir()
    (ogb / "edge.csv").write_text("0,1\n1,2\n")
    arguments[3] = str(ogb)

    def run(*_: Any) -> Any:
        return CliRunner().invoke(assay, arguments, catch_exceptions=False, standalone_mode=False)

    with monkeypatch.context() as patched, pytest.raises(Stop):
        patched.setattr("assay.data.atlas.commands.gnn.infer", lambda *_, **__: (_ for _ in ()).throw(Stop))
        run()
    (ogb / "edge.csv").write_text("0,2\n2,1\n")  # as many bytes, and the folder has not changed
    run()
    found = np.load(tmp_path / "y.npy")
    (tmp_path / "y.npy").unlink()
    run()
    assert np.array_equal(found, np.load(tmp_path / "y.npy"))


@pytest.mark.usefixtures("verb")
def test_a_full_disk_is_one_line_and_the_next_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    arguments = [*files(tmp_path), "--memory", "4GB"]
    with monkeypatch.context() as patched, pytest.raises(BadInput, match=r"no space is left in .*; free some"):
        patched.setattr(os, "pwrite", full)
        CliRunner().invoke(assay, arguments, catch_exceptions=False, standalone_mode=False)
    CliRunner().invoke(assay, arguments, catch_exceptions=False, standalone_mode=False)
    assert np.load(tmp_path / "y.npy").shape == (100, 3)


@pytest.mark.usefixtures("verb")
def test_too_little_memory_tells_how_much_it_would_take(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="the program alone takes"):
        CliRunner().invoke(assay, [*files(tmp_path), "--memory", "1MB"], catch_exceptions=False, standalone_mode=False)
    graph = DiskGraph.build(tmp_path / "g", [np.array([(0, 1)])], 100_000)
    write_rows(tmp_path / "x.npy", np.zeros((100_000, 8), np.float32))
    with pytest.raises(ValueError, match=r"too few for 100,000 nodes; [0-9,]+ or more"):
        infer(trials.model_of("gcn", (8, 8), 1), graph, tmp_path / "x.npy", tmp_path / "y.npy", 10**6)


@pytest.mark.slow
def test_a_process_takes_what_it_was_given_and_no_more_than_a_tenth_above() -> None:
    sizes = {"width": 128, "degree": 4, "seed": 0}
    for nodes, share in ((1 << 18, 0.1), (1 << 17, 0.1), (1 << 16, 0.1)):  # 13, 7 and 3 MB
        found = trials.held(f"{trials.OURS} {trials.AUTO}", nodes=nodes, share=share, **sizes)
        if found[trials.OURS]["taken"] is None:
            pytest.skip("this system does not tell how much memory a process took")
        assert all(one["taken_ratio"] <= 1.1 for one in found.values()), found


# ----------------------------------------------------------------------------------------- the comparison


def test_the_comparison_runs_everybody_on_the_users_graph_and_says_who_wins(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    (tmp_path / "e.txt").write_text("".join(f"{u} {v}\n" for u, v in rng.integers(0, 90, (400, 2))))
    asked = ["compare", "atlas", "--input", f"{tmp_path}/e.txt", "--width", "16", "--memory", "2MB", "--rounds", "1"]
    told = json.loads(CliRunner().invoke(assay, [*asked, "--json"], catch_exceptions=False).stdout)
    rows = {row["method"]: row for row in told["table"]}
    assert set(rows) == {trials.OURS, trials.AUTO, trials.LRU, trials.STATIC, trials.MEMORY}
    assert all(row["difference"] < 1e-4 for row in rows.values())
    assert told["graph"]["memory_bytes"] == 2_000_000
    with pytest.raises(BadInput, match="bytes are too few for 90 nodes"):
        CliRunner().invoke(assay, [*asked[:-3], "1000"], catch_exceptions=False, standalone_mode=False)


def row(method: str, seconds: float) -> dict[str, Any]:
    return {"method": method, "seconds": seconds, "policy": "strips", "read_ratio": 1.0, "spilled_ratio": 4.0}


@pytest.mark.parametrize(
    ("ours", "theirs", "says"),
    [
        (1.0, 6.0, "atlas-auto is 6.0 times as fast as gather-lru"),
        (3.0, 2.0, "gather-lru is 1.5 times as fast as atlas-auto"),
        (2.0, 2.1, "atlas-auto and gather-lru tie"),
    ],
)
def test_a_lead_inside_the_noise_is_a_tie(ours: float, theirs: float, says: str) -> None:
    table = [row("atlas", 9.0), row("atlas-auto", ours), row("gather-lru", theirs), row("gather-static", 9.0)]
    assert why(table).startswith(says)


def test_a_tier_keeps_nothing_of_the_pieces_that_were_pushed() -> None:
    """Python 3.11 does keep up to 2,000 tuples of twenty arguments."""
    tier, row = HotTier(8, 8, 4, np.full(8, 10**6, np.int32), 8, SUM), np.ones((1, 4), np.float32)
    before = sys.getallocatedblocks()
    for _ in range(1000):
        tier.begin_chunk()
        tier.push(0, row, row, np.array([0, 1]), 0, np.array([5], np.int32), False, None)
    assert sys.getallocatedblocks() - before < 500
