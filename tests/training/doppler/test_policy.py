"""What is learned: the networks agree with the compiled episodes, copy their teacher, and get better by runs."""

from __future__ import annotations

from functools import cache
from itertools import product
from unittest.mock import patch

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from assay.sim.random import stream
from assay.training import doppler
from assay.training.doppler import policy, rivals, runtime
from assay.training.doppler.graphs import GRAPHS, OpGraph, chainmm, ffnn

KINDS = (policy.DOPPLER, policy.PLACE_ONLY, policy.PLACETO)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("graph", [chainmm(2), ffnn(2)], ids=lambda graph: graph.name)
def test_compiled_choices_are_those_that_the_networks_score_highest(kind: policy.Kind, graph: OpGraph) -> None:
    view, net = policy.View(graph, 3), policy.Policy(4)
    with torch.no_grad():
        for part in net.parameters():
            part.mul_(2.0)
        one = policy.Player(net, view, kind).play(np.random.default_rng(1), temperature=0.0)
        looked = net.look(view)
        scores = policy.device_scores(net, looked, kind, [one])[0]
    best = scores.max(-1).values
    taken = scores[torch.arange(len(one.chosen)), torch.from_numpy(one.chosen)]
    assert torch.allclose(best, taken, atol=1e-4)
    if kind.selects:
        for t, first in enumerate(np.concatenate([[0], one.until[:-1]])):
            able = one.able[first : one.until[t]]
            assert one.order[t] in able
            assert looked[1][one.order[t]] >= looked[1][torch.from_numpy(able)].max() - 1e-5


def test_an_episode_places_every_operator_after_its_inputs() -> None:
    graph = ffnn(2)
    one = policy.Player(policy.Policy(), policy.View(graph, 4), policy.DOPPLER).play(np.random.default_rng(0))
    assert sorted(one.order.tolist()) == np.flatnonzero(~graph.data).tolist()
    when = {int(v): t for t, v in enumerate(one.order)}
    assert all(when[u] < when[v] for v in when for u in graph.inputs[v] if not graph.data[u])


def test_messages_pass_once_an_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, looks = chainmm(2), []
    learned = policy.Learned(policy.Policy(), policy.View(graph, 4), policy.DOPPLER)
    look = policy.Policy.look
    monkeypatch.setattr(policy.Policy, "look", lambda self, view: looks.append(1) or look(self, view))
    policy.reinforce(learned, 2 * policy.BATCH, 0, policy.simulated(graph, 4))
    assert len(looks) == 4  # for each batch once to play and once to learn


@pytest.mark.parametrize("name", ["ffnn", "llama-layer"])
def test_means_along_longest_ways_are_those_of_walking_them(name: str) -> None:
    graph = GRAPHS[name]()
    view, values = policy.View(graph, 4), torch.randn(graph.nodes, 3)
    top, bottom = graph.levels
    readers = [[v for v, before in enumerate(graph.inputs) if u in before] for u in range(graph.nodes)]
    for ways, nexts, worth in (
        (view.up, graph.inputs, top + graph.seconds + graph.sending),
        (view.down, readers, bottom),
    ):
        found = ways.mean(values)
        for v in range(graph.nodes):
            way = [v]
            while nexts[way[-1]]:
                way.append(max(nexts[way[-1]], key=lambda u: worth[u]))
            assert torch.allclose(found[v], values[way].mean(0), atol=1e-5)


# What is trained differs between processors: means of many placements are asked for, with what an untrained policy
# draws far outside of the bound.


def test_after_copying_placements_are_nine_tenths_as_fast_as_the_teachers() -> None:
    stages = doppler.lesson(grid=2, episodes=policy.BATCH, seed=0)
    assert stages["teacher"]["mean"] / stages["copied"]["mean"] >= 0.9


def test_simulated_runs_shorten_what_a_policy_draws_that_copied_nobody() -> None:
    policy.one_thread()
    graph, before, after = chainmm(2), 0.0, 0.0
    for seed in range(3):
        learned, random = policy.Learned(policy.Policy(seed), policy.View(graph, 4), policy.DOPPLER), stream(seed)
        before += drawn_seconds(learned, random)
        policy.reinforce(learned, 200, seed, policy.simulated(graph, 4), rate=4 * policy.RATES[0])
        after += drawn_seconds(learned, random)
    assert after < 0.95 * before


def drawn_seconds(learned: policy.Learned, random: np.random.Generator) -> float:
    places = [learned.player().play(random).place for _ in range(50)]
    return sum(runtime.play(learned.view.graph, place, 4, random).seconds for place in places)


def tiny(random: np.random.Generator) -> OpGraph:
    inputs = [tuple(sorted({int(u) for u in random.integers(0, v, 2)})) if v > 1 else () for v in range(8)]
    return OpGraph("tiny", random.uniform(1e-3, 3e-3, 8), random.uniform(1e6, 2e7, 8), tuple(inputs), np.arange(8))


def optimum(graph: OpGraph, devices: int) -> float:
    """The least makespan there is if messages never queue, by CP-SAT."""
    from ortools.sat.python import cp_model

    scale, model = 1e7, cp_model.CpModel()
    took, sends = (np.floor(scale * x).astype(int) for x in (graph.seconds, graph.sending))
    horizon = int(took.sum() + sends.sum())
    start = [model.new_int_var(0, horizon, f"s{v}") for v in range(graph.nodes)]
    on = [[model.new_bool_var(f"{v}on{d}") for d in range(devices)] for v in range(graph.nodes)]
    end = model.new_int_var(0, horizon, "end")
    for v in range(graph.nodes):
        model.add_exactly_one(on[v])
        model.add(end >= start[v] + took[v])
        for u in graph.inputs[v]:
            model.add(start[v] >= start[u] + took[u])
            for d in range(devices):
                apart = [on[v][d], on[u][d].negated()]
                model.add(start[v] >= start[u] + took[u] + sends[u]).only_enforce_if(apart)
    for d in range(devices):
        model.add_no_overlap([
            model.new_optional_fixed_size_interval_var(start[v], int(took[v]), on[v][d], f"{v}at{d}")
            for v in range(graph.nodes)
        ])  # fmt: skip
    model.minimize(end)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    assert solver.solve(model) == cp_model.OPTIMAL
    return solver.objective_value / scale


def test_on_a_tiny_graph_it_finds_nearly_the_best_of_all_placements() -> None:
    pytest.importorskip("ortools")
    graph, seed = tiny(np.random.default_rng(0)), 0
    every = [np.array(place) for place in product(range(2), repeat=8)]
    best = min(runtime.seconds(graph, place, 2, 4, stream(0, "tiny")) for place in every)
    place = rivals.chosen(graph, doppler.trained(graph, 2, "doppler", 240, seed), 2, seed)
    found = runtime.seconds(graph, place, 2, 4, stream(0, "tiny"))
    assert found <= 1.1 * best
    assert optimum(graph, 2) <= best * 1.1  # runs are drawn a little off, and in any order


@cache
def judged() -> dict[str, dict[str, float]]:
    """Seconds of every placer on every graph, the mean over the trainings that are stored."""
    seeds = range(len(doppler.stored()["provenance"]["seeds"]))
    with patch.object(doppler, "LUCK", 10):  # drawn placements, which nobody here asks about
        found = {name: [doppler.judge(name, "", seed) for seed in seeds] for name in GRAPHS}
    return {name: {placer: float(np.mean([run[placer]["seconds"] for run in runs])) for placer in runs[0]}
            for name, runs in found.items()}  # fmt: skip


def test_what_is_stored_fits_the_graphs_and_took_minutes() -> None:
    kept = doppler.stored()
    assert kept["provenance"]["episodes"] == doppler.EPISODES
    trainings = len(kept["provenance"]["seeds"]) * len(GRAPHS) * len(doppler.LEARNED)
    assert kept["provenance"]["cpu_seconds"] / trainings <= 15 * 60
    for name, make in GRAPHS.items():
        for method in doppler.LEARNED:
            assert kept[f"{name}|{method}"].shape[1] == make().nodes
            assert kept[f"{name}|{method}"].max() < doppler.DEVICES


@pytest.mark.parametrize("name", ["chainmm", "ffnn", "llama-block"])
def test_it_is_a_tenth_faster_than_the_best_of_fifty_list_schedules(name: str) -> None:
    assert judged()[name]["doppler"] <= 0.9 * judged()[name]["critical path"]


def test_but_not_on_a_whole_llama_layer_where_simple_rules_are_better_than_either() -> None:
    found = judged()["llama-layer"]
    assert 0.9 * found["critical path"] < found["doppler"] <= 1.02 * found["critical path"]
    assert found["round robin"] < found["doppler"]
    assert found["enumerative"] < found["doppler"]


def test_both_policies_are_better_than_the_choice_of_operators_alone_but_not_of_devices_alone() -> None:
    """Who learns where to put operators in the order of longest ways is about as good: what holds of the ablations."""
    over = {name: found["doppler"] / found["select only"] for name, found in judged().items()}
    assert max(over.values()) < 1
    beside = [found["doppler"] / found["place only"] for found in judged().values()]
    assert 0.93 <= np.mean(beside) <= 1.07


def test_policies_are_stored_and_restored() -> None:
    graph = chainmm(2)
    view, one = policy.View(graph, 2), policy.Policy(3)
    other = policy.Policy(4).restore(one.layers())
    with torch.no_grad():
        assert all(torch.allclose(a, b) for a, b in zip(one.look(view), other.look(view), strict=True))
