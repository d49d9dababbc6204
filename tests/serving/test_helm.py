"""What HELM must do, on the same requests as its rivals."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.record import catalogue, charts, measures, verdicts
from assay.record.errors import BadInput
from assay.record.lab import Lab
from assay.record.runner import judge
from assay.record.types import Estimate, Verdict
from assay.serving import helm
from assay.serving.helm import policy as helm_policy
from assay.serving.helm.compare import compare
from assay.serving.helm.recommender_node import REFILLS, Fleet, Node
from assay.sim import learners
from assay.workloads import recommender_traffic
from assay.workloads.recommender_traffic import REGIMES, Shape, Traffic, generate
from tests.oracles import recommender_node as oracle

SMALL = Shape(rate=20.0, loyal=60, casual=200, catalogue=800, communities=8)
TINY = Node(pool=2_000_000_000)
TARGET = 0.1
ratio = st.floats(0.05, 0.95)


@cache
def table() -> pl.DataFrame:
    """Two seeds of the study's trials, with every policy."""
    rows = []
    for regime in REGIMES:
        for seed in range(2):
            for policy, row in helm.trial(regime, 3, 110.0, TARGET, True, "", seed).items():
                rows.append({"experiment": "traffic", "regime": regime, "policy": policy, "seed": seed} | row)
    return pl.from_dicts(rows, infer_schema_length=None)


def tail(regime: str, policy: str) -> float:
    chosen = table().filter((pl.col("regime") == regime) & (pl.col("policy") == policy))
    return float(chosen["latency_p99"].mean())  # type: ignore[arg-type]


def farthest(column: str) -> float:
    """HELM's mean over seeds, in the regime where it is largest."""
    ours = table().filter(pl.col("policy") == "helm")
    return float(ours.group_by("regime").agg(pl.col(column).mean())[column].max())  # type: ignore[arg-type]


class TestTheNode:
    @settings(max_examples=12, deadline=None)
    @given(
        st.sampled_from(REGIMES),
        st.sampled_from(REFILLS),
        st.integers(0, 50),
        st.lists(st.tuples(ratio, ratio), min_size=5, max_size=5),
    )
    def test_it_serves_as_the_plain_one_does_and_never_exceeds_the_pool(
        self, regime: str, refill: str, seed: int, splits: list[tuple[float, float]]
    ) -> None:
        traffic = generate(regime, 2, 12.0, seed, shape=SMALL)
        fleet = Fleet(traffic, 2, ratio=0.5, refill=refill, node=TINY)
        moves = [(0.0, [0.5, 0.5])]
        for second, split in enumerate(splits, 1):
            fleet.advance(2.0 * second)
            fleet.split(np.array(split))
            moves.append((2.0 * second, list(split)))
            assert (fleet.capacities.sum(1) == TINY.pool).all()
        fleet.advance(12.0)
        assert (fleet.allocated <= TINY.pool).all()
        assert fleet.latency.tolist() == pytest.approx(oracle.replay(traffic, 2, moves, TINY, refill), rel=1e-12)

    def test_one_list_for_both_kinds_stays_within_the_pool(self) -> None:
        fleet = Fleet(generate("trend", 2, 30.0, 0, shape=SMALL), 2, unified=True, node=TINY)
        fleet.advance(30.0)
        assert 0.9 < fleet.allocated.max() / TINY.pool <= 1.0

    def test_more_room_for_a_cache_means_more_hits_in_it(self) -> None:
        traffic = generate("steady", 2, 60.0, 0)
        looks = []
        for split in (0.2, 0.5, 0.8):
            fleet = Fleet(traffic, 2, ratio=split, router="kv-affinity")
            fleet.advance(60.0)
            looks.append(fleet.look())
        group_hits, kv_hits = (
            [float(look[name].mean()) for look in looks] for name in ("group_hit_ratio", "kv_hit_ratio")
        )
        assert group_hits == sorted(group_hits)
        assert kv_hits == sorted(kv_hits, reverse=True)

    def test_a_bulk_copy_makes_requests_wait_and_a_lazy_one_does_not(self) -> None:
        traffic = generate("steady", 1, 60.0, 0)
        worst = {}
        for refill in REFILLS:
            fleet = Fleet(traffic, 1, ratio=0.6, refill=refill)
            for now, split in ((40.0, 0.3), (45.0, 0.6)):
                fleet.advance(now)
                fleet.split(np.array([split]))
            fleet.advance(60.0)
            worst[refill] = fleet.latency[traffic.arrival > 45.0].max()
        assert worst["bulk"] > 1.0 > worst["idle"]

    def test_routing_goes_where_the_history_lies(self) -> None:
        one = Traffic(
            np.array([0.0, 1.0, 2.0]), np.zeros(3, np.int32), np.full(3, 3000, np.int32),
            np.array([[1], [2], [3]], np.int32), users=1, catalogue=4, duration=3.0,
        )  # fmt: skip
        fleet = Fleet(one, 4)
        fleet.advance(3.0)
        assert len(set(fleet.served_by.tolist())) == 1
        assert fleet.latency[1] < 0.5 * fleet.latency[0]

    def test_unknown_words_are_refused(self) -> None:
        with pytest.raises(ValueError, match="router is one of"):
            Fleet(generate("steady", 1, 5.0, 0), 1, router="random")


class TestTheLayers:
    def test_moves_keep_their_bounds(self) -> None:
        controller, _ = helm.controller("helm", 3, helm.base_policy())
        random = np.random.default_rng(0)
        ratios = np.full(3, 0.5)
        for _ in range(200):
            new = controller.decide(random.random((3, len(helm_policy.FEATURES))) * 2, ratios)
            assert (np.abs(new - ratios) <= helm_policy.STEP + helm_policy.RESIDUAL + 1e-12).all()
            assert (new >= helm_policy.LOW).all() and (new <= helm_policy.HIGH).all()
            controller.learn(random.random(3))
            ratios = new

    def test_in_a_burst_the_border_goes_one_way_no_faster_than_the_idle_link(self) -> None:
        node = Node()
        guard = helm_policy.BurstGuard(1, node)
        features = np.zeros((1, len(helm_policy.FEATURES)))
        features[0, helm_policy.LINK] = 0.9
        random = np.random.default_rng(0)
        for _ in range(30):
            assert guard.limit(np.array([0.05]), features, random.normal(1.0, 0.05, 1)).item() == 0.05
        idle = 0.1 * node.link / node.pool
        assert guard.limit(np.array([0.05]), features, np.array([2.0])).item() == pytest.approx(idle)
        assert guard.limit(np.array([-0.05]), features, np.array([1.0])).item() == 0.0
        for _ in range(4):
            guard.limit(np.array([0.0]), features, np.array([1.0]))
        assert guard.limit(np.array([-0.05]), features, np.array([1.0])).item() == -0.05  # five calm periods later

    def test_the_online_layer_leans_towards_what_pays(self) -> None:
        layer = helm_policy.Residual(8, rate=2e-3)
        features = np.ones((8, len(helm_policy.FEATURES)))
        for _ in range(400):
            layer.learn(100 * layer.correct(features))
        assert layer.correct(features).mean() > 0.5 * helm_policy.RESIDUAL

    def test_hill_climbing_finds_the_bottom_of_a_valley(self) -> None:
        climb, ratios = helm_policy.HillClimb(1), np.array([0.2])
        for _ in range(400):
            features = np.zeros((1, len(helm_policy.FEATURES)))
            features[0, helm_policy.TAIL] = (ratios[0] - 0.6) ** 2
            ratios = climb.decide(features, ratios)
        assert abs(ratios[0] - 0.6) < 0.1

    def test_the_stored_weights_say_where_they_come_from(self) -> None:
        nets, provenance = learners.load(helm_policy.WEIGHTS)
        assert [layer.shape for layer in nets["base"].weights] == [(9, 64), (64, 64), (64, 1)]
        assert provenance == json.loads(json.dumps(helm_policy.provenance(helm.TRAINING_STEPS, helm.TRAINING_SEED))) | {
            "versions": provenance["versions"]
        }
        assert helm_policy.WEIGHTS.stat().st_size < 100_000


class TestWorksWhen:
    @pytest.mark.parametrize("regime", ["trend", "burst"])
    @pytest.mark.parametrize("router", ["", "kv-affinity"])
    def test_where_traffic_changes_a_moving_border_beats_every_fixed_one_under_the_same_router(
        self, regime: str, router: str
    ) -> None:
        ours = f"helm, {router}" if router else "helm"
        assert tail(regime, ours) < tail(regime, helm.best_static(table(), regime, router))

    def test_the_best_static_split_is_one_with_kv_affinity_where_traffic_changes(self) -> None:
        for regime in ("trend", "burst"):
            assert helm.best_static(table(), regime).endswith(", kv-affinity")

    @pytest.mark.xfail(reason="HELM's router loses to KV-affinity under load more than its border gains")
    def test_helm_beats_the_best_static_split_and_router_where_traffic_changes(self) -> None:
        for regime in ("trend", "burst"):
            assert tail(regime, "helm") < tail(regime, helm.best_static(table(), regime)), regime

    def test_helm_costs_little_where_traffic_is_steady(self) -> None:
        tails: dict[str, list[float]] = {}
        for seed in range(5):
            traffic = generate("steady", 3, 110.0, seed, warmup=helm_policy.WARMUP)
            for policy in ("static 0.2", "static 0.3", "static 0.4", "helm"):
                latency = helm.replay(traffic, policy, nodes=3, seed=seed).latency[helm.windows(traffic) >= 0]
                tails.setdefault(policy, []).append(float(np.quantile(latency, 0.99)))
        ours = np.mean(tails.pop("helm"))
        assert ours <= 1.03 * min(np.mean(values) for values in tails.values())

    @pytest.mark.xfail(reason="the tail is flat around its optimum: replay finds 0.3, the network rests at 0.2")
    def test_helm_stays_within_a_twentieth_of_the_best_split(self) -> None:
        assert farthest("distance_mean") <= 0.05

    def test_helm_stays_near_the_splits_that_replay_cannot_tell_from_the_best(self) -> None:
        assert farthest("distance_from_tied_mean") <= 0.07

    def test_without_layer_3_bursts_break_the_target(self) -> None:
        assert tail("burst", "helm without layer 3") > Node().target
        assert tail("burst", "helm without layer 3") > tail("burst", "helm")

    def test_nobody_allocates_more_than_the_pool(self) -> None:
        assert table()["allocated_max"].max() <= 1.0


class TestTheStudy:
    def test_a_decision_takes_microseconds(self) -> None:
        rows = helm.timed(rounds=5, seed=0)
        assert rows["helm"]["decision"] < 1e-3  # generous: the claim itself is judged in the study

    def test_a_decision_is_timed_by_the_usual_round_of_what_it_computes(self, monkeypatch: Any) -> None:
        def disturbed(contenders: Any, rounds: int, clock: Any) -> dict[str, list[float]]:
            assert clock is time.process_time
            return {name: [64 * 5e-5, 64 * 2e-5, 64 * 9e-5] for name in contenders}

        monkeypatch.setattr(helm, "interleave", disturbed)
        assert helm.timed(rounds=3, seed=0)["helm"]["decision"] == pytest.approx(5e-5)

    def test_a_decision_that_takes_longer_than_the_bound_is_no_level_near_it(self) -> None:
        sentence = next(claim for claim in catalogue.paper("helm").claims if claim.id == "decision")
        assert verdicts.judge(sentence, Estimate(3.3e-5, 3.25e-5, 3.35e-5, 5)).verdict is Verdict.NOT_REPRODUCED

    def test_the_quick_size_keeps_the_best_of_all_static_splits_and_routers(self) -> None:
        for regime in REGIMES:
            assert helm.best_static(table(), regime) in helm.FEW
        assert set(helm.FEW) <= set(helm.POLICIES)

    def test_the_refined_best_split_lies_between_its_neighbours(self) -> None:
        curves = np.array([[5.0], [3.0], [1.0], [1.1], [4.0], [9.0], [9.0], [9.0], [9.0]])
        assert 0.3 < helm.best_splits(curves)[0] < 0.4

    def test_claims_answer_the_papers_sentences(self) -> None:
        study = catalogue.study("helm")
        asked = [claim.id for claim in study.claims if not claim.asks]
        assert asked == [claim.id for claim in study.paper.claims]
        timed = [{"experiment": "decision", "policy": "helm", "seed": 0, "decision": 5e-5}]
        answers = judge(study, pl.concat([table(), pl.from_dicts(timed)], how="diagonal"))
        assert not any(answer.broken for answer in answers)
        assert all(answer.verdict is not Verdict.NOT_MEASURED for answer in answers)

    def test_the_target_is_what_the_best_static_split_keeps_in_steady_traffic(self) -> None:
        """Nobody chooses it: it comes from the fleet, and the table says how much follows from it."""
        served = helm.serve(Lab("helm", seeds=(11,)), nodes=2, duration=50.0)
        assert served["target"].n_unique() == 1
        least = min(row["latency_p99"] for row in helm.tails(2, 50.0, 11).values())
        assert served["target"][0] == pytest.approx(least)
        shares = [served[f"within_{name}_ratio"] for name in helm.TARGETS]
        assert all((tight <= loose).all() for tight, loose in pairwise(shares))
        steady = measures.rows(served, {"regime": "steady", "policy": helm.best_static(served, "steady")})
        assert steady["within_target_ratio"][0] == pytest.approx(0.99, abs=0.005)

    def test_attainment_is_judged_at_that_target_in_the_worst_regime(self) -> None:
        claim = next(claim for claim in helm.claims if claim.id == "attainment")
        ours = table().filter(pl.col("policy") == "helm")
        least = ours.group_by("regime").agg(pl.col("within_target_ratio").mean())["within_target_ratio"].min()
        assert claim.measure(table()).value == pytest.approx(least)
        assert claim.measure(table()).cases.endswith("of 3 cases")

    def test_steady_traffic_shifts_no_split_beyond_ties(self) -> None:
        steady = table().filter(pl.col("regime") == "steady")
        assert helm.shift(steady).value <= 0.1
        assert helm.shift(table()).value >= 0.2

    def test_the_plot_is_drawn(self) -> None:
        assert charts.svg(helm.plot(table())).startswith("<svg")

    def test_unknown_policies_are_refused(self) -> None:
        with pytest.raises(ValueError, match="no policy 'magic'"):
            helm.controller("magic", 1, helm.base_policy())


@pytest.mark.slow
def test_training_gives_weights_that_run(tmp_path: pytest.TempPathFactory) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "helm.npz"  # type: ignore[operator]
    helm_policy.train(1000, 0, path)
    assert helm.replay("burst", "helm", nodes=2, duration=50.0, weights=str(path)).latency.min() > 0


# ---------------------------------------------------------------------------------------- one's own traffic


def test_on_ones_own_traffic_the_tail_decides_and_the_border_is_told(tmp_path: Path) -> None:
    file, users = tmp_path / "mine.csv", np.random.default_rng(6).integers(0, 40, 900)
    rows = [f"u{user},{3000 + 100 * user},{t / 20 + 100:.2f},a{t % 90} b{t % 7}" for t, user in enumerate(users)]
    file.write_text("\n".join(["user,history,time,groups", *rows]))
    own = recommender_traffic.read(file)
    assert (own.arrival[0], own.groups.shape, own.catalogue) == (0.0, (900, 2), 97)
    small = replace(Node(), pool=4_000_000_000)
    answer = compare(own, ["static 0.9", "static 0.2", "unified-lru", "helm"], nodes=2, node=small, warmup=5.0)
    found = {row["policy"]: row for row in answer["table"]}
    assert found["static 0.2"]["latency_p99"] < found["static 0.9"]["latency_p99"]  # histories are long here
    assert found["static 0.9"]["travel_mean"] == 0.0 < found["helm"]["travel_mean"]
    assert found["unified-lru"]["ratio_mean"] is None
    assert "95 % interval" in answer["why"]
    assert "P99 latency" in answer["why"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("time,user,groups\n", "no column history"),
        ("time,user,history,groups\n1,ann,30,a b\n2,ann,40,a\n", "line 3: 1 groups where the first has 2"),
        ("time,user,history,groups\n1,ann,-3,a\n", "line 2: a time, at least a token of history"),
        ("time,user,history,groups\n1,ann\n", "line 2: time,user,history,groups such as"),
        ("time,user,history,groups\n", "no request"),
    ],
)
def test_a_line_that_is_no_request_is_named(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "mine.csv"
    file.write_text(text)
    with pytest.raises(BadInput, match=said):
        recommender_traffic.read(file)
