"""QUANTAS experiment files: read, turned into worlds, run."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.protocols.faults import Equivocate
from assay.protocols.interface import Ctx, Message, Node, NodeId
from assay.protocols.kernel.net import Net, Poisson, Uniform
from assay.protocols.kernel.world import World
from assay.protocols.nodes.chain import Ghost, LongestChain
from assay.protocols.quantas import Experiment, Whole, answer, parse, read
from assay.protocols.quantas.parasite import Parasite
from assay.protocols.quantas.peers import PEERS, Outages
from assay.record.errors import BadInput


def text(peer: str = "PBFTPeer", n: int = 4, **fields: Any) -> str:
    """A file with one experiment; `fields` replace or join its own."""
    shape = {"type": "complete", "initialPeers": n, "initialPeerType": peer, **fields.pop("topology", {})}
    one = {"logFile": "log.txt", "threadCount": 48, "tests": 2, "rounds": 30, "topology": shape, **fields}
    return json.dumps({"algorithms": [f"{peer}/{peer}.cpp"], "experiments": [one]})


def one(*arguments: Any, **fields: Any) -> Experiment:
    (experiment,) = parse(text(*arguments, **fields))
    return experiment


class Numbers(Node):
    """Node 0 sends 0, 1, 2, … to node 1, some a round; node 1 keeps what it gets and when."""

    every_round = True
    burst = 3

    def __init__(self) -> None:
        self.sent = 0
        self.got: list[tuple[float, int]] = []

    def tick(self, ctx: Ctx, inbox: list[tuple[NodeId, Message]]) -> None:
        self.got += [(ctx.now, msg[1]) for _, msg in inbox]
        for _ in range(self.burst if ctx.id == 0 and ctx.now <= 10 else 0):
            ctx.send(1, ("number", self.sent))
            self.sent += 1


def received(net: Net, seed: int = 0) -> list[tuple[float, int]]:
    outcome = World(n=2, node=Numbers, net=net, seed=seed).run("rounds", limit=200, metered=False)
    return outcome.nodes[1].got  # type: ignore[attr-defined,no-any-return]


class TestLinks:
    def test_a_cap_lets_so_many_through_in_a_round_and_keeps_the_rest_in_order(self) -> None:
        got = received(Net(fifo=True, per_round=2))
        assert [number for _, number in got] == list(range(30))
        assert set(Counter(time for time, _ in got).values()) == {2}

    def test_what_does_not_fit_on_a_link_is_lost(self) -> None:
        got = received(Net(fifo=True, per_round=1, room=4))
        assert len(got) == 10 + 3  # one leaves a round, and at the end what waits
        assert [number for _, number in got] == sorted(number for _, number in got)

    @settings(max_examples=40, deadline=None)
    @given(st.integers(0, 10**6), st.integers(1, 4))
    def test_in_order_means_that_nobody_overtakes(self, seed: int, cap: int) -> None:
        slow = Uniform(0.5, 5.5)
        ordered = [number for _, number in received(Net(slow, fifo=True, per_round=cap), seed)]
        assert ordered == list(range(30))
        loose = [number for _, number in received(Net(slow), seed)]
        assert sorted(loose) == list(range(30))

    def test_without_order_somebody_does(self) -> None:
        assert any(
            [number for _, number in received(Net(Uniform(0.5, 5.5)), seed)] != list(range(30)) for seed in range(5)
        )

    def test_whole_delays_are_equally_likely(self) -> None:
        drawn = Counter(Whole(1, 3).draw(np.random.default_rng(1), 30_000).tolist())
        assert set(drawn) == {1.0, 2.0, 3.0}
        assert max(drawn.values()) - min(drawn.values()) < 600


class TestReading:
    def test_defaults_are_those_of_the_program(self) -> None:
        net = one().world().net
        assert (net.per_round, net.room, net.fifo, net.drop) == (1, None, True, 0.0)
        assert net.latency == Whole(1, 1)

    def test_a_distribution_becomes_a_network(self) -> None:
        given = {
            "type": "POISSON", "minDelay": 1, "maxDelay": 9, "avgDelay": 4, "dropProbability": 0.1, "size": 5,
            "duplicateProbability": 0.2, "reorderProbability": 0.3, "maxMsgsRec": 7,
        }  # fmt: skip
        net = one(distribution=given).world().net
        assert net.latency.model == Poisson(4, 1, 9)  # type: ignore[attr-defined]
        assert (net.drop, net.duplicate, net.reorder, net.per_round, net.room) == (0.1, 0.2, 0.3, 7, 5)

    @pytest.mark.parametrize(
        ("shape", "n", "rows"),
        [
            ({"type": "grid", "height": 2, "width": 3}, 6, [(1, 3), (0, 2, 4), (1, 5), (0, 4), (1, 3, 5), (2, 4)]),
            ({"type": "torus", "height": 1, "width": 4}, 4, [(1, 3), (0, 2), (1, 3), (0, 2)]),
            ({"type": "userList", "list": {"0": [1, 2], "1": [2]}}, 3, [(1, 2), (2,), ()]),
            ({"type": "unidirectionalRing"}, 3, [(1,), (2,), (0,)]),
            ({"type": "star"}, 3, [(1, 2), (0,), (0,)]),
        ],
    )
    def test_shapes(self, shape: dict[str, Any], n: int, rows: list[tuple[int, ...]]) -> None:
        assert one("AltBitPeer", n, topology=shape).world().neighbours() == rows

    def test_random_identifiers_move_the_shape_and_keep_it(self) -> None:
        star = one("AltBitPeer", 9, topology={"type": "star", "identifiers": "random"})
        hubs = set()
        for test in range(6):
            rows = star.world(test).neighbours() or []
            assert sorted(map(len, rows)) == [1] * 8 + [8]
            hubs.add(max(range(9), key=lambda node: len(rows[node])))
        assert len(hubs) > 1

    def test_peers_and_their_faults_come_from_the_parameters(self) -> None:
        parasite = {
            "mineRates": [3, 0, 1],
            "mineScaler": 2,
            "parasiteFault": {"leadThreshold": 2, "peerIndices": [0, 2]},
        }
        world = one("EthereumPeer", 3, parameters=parasite).world()
        assert sorted(world.faults) == [0, 2]
        assert isinstance(world.faults[0], Parasite)
        assert world.faults[0].lead == 2
        rates = [node.rate for node in world.node]  # type: ignore[union-attr]
        assert rates[1] == 0 < rates[2] < rates[0]
        assert isinstance(world.node[0].ledger, Ghost)  # type: ignore[index]
        bitcoin = one("BitcoinPeer", 3, parameters={"parasiteFault": {"count": 1}}).world()
        assert sorted(bitcoin.faults) == [0]
        assert type(bitcoin.node[0].ledger) is LongestChain  # type: ignore[index]
        liars = one("PBFTPeer", 7, parameters={"byzantine_count": 2}).world()
        assert sorted(liars.faults) == [0, 1]
        assert isinstance(liars.faults[0], Equivocate)

    def test_crashes_of_raft_come_at_the_start_and_at_random(self) -> None:
        given = {"crash_count": 2, "crash_recovery_round": 40, "crash_odds": 0.02, "crash_recovery_delay": 10}
        faults = one("RaftPeer", 9, rounds=500, parameters=given).world(3).faults
        spans = {node: fault.spans for node, fault in faults.items() if isinstance(fault, Outages)}
        assert [spans[node][0] for node in (0, 1)] == [(0.0, 40.0)] * 2
        assert all(back - away == 10 for node in range(2, 9) for away, back in spans[node])
        assert all(one[1] < two[0] for row in spans.values() for one, two in pairwise(row))

    def test_a_server_is_away_in_its_spans_and_comes_back(self) -> None:
        class Beat(Node):
            every_round = True

            def tick(self, ctx: Ctx, inbox: list[tuple[NodeId, Message]]) -> None:
                ctx.decide(1, ctx.now)

        outcome = World(n=1, node=Beat, faults={0: Outages(((0.0, 3.0), (5.0, 8.0)))}).run("rounds", limit=10)
        assert list(outcome.decisions[0]) == [3.0, 4.0, 8.0, 9.0, 10.0]

    def test_a_class_of_ones_own_takes_a_peer_types_place(self) -> None:
        (experiment,) = parse(text("MyPeer", 2), {"MyPeer": Numbers})
        assert experiment.run()["messages"] == 30.0

    def test_a_file_is_read_and_all_its_tests_are_run(self, tmp_path: Path) -> None:
        path = tmp_path / "input.json"
        path.write_text(text("AltBitPeerConcrete", 2, parameters={"timeOutRate": 4}))
        found = answer(path)
        assert [row["test"] for row in found["table"]] == [0, 1]
        assert all(row["delivered"] == 15 and row["faithful"] for row in found["table"])

    @pytest.mark.parametrize(
        ("content", "word"),
        [
            ("", "experiment file expected"),
            ("[]", "experiment file expected"),
            ('{"experiments": []}', "no experiment"),
            ('{"experiments": [{"rounds": 3}]}', "topology"),
            (text(rounds=0), "rounds is 0"),
            (text(rounds="many"), "rounds"),
            (text(n=0), "initialPeers is 0"),
            (text(n=10**7), "initialPeers"),
            (text("ShoutPeer"), "no peer type 'ShoutPeer'; one of BitcoinPeer"),
            (text(topology={"type": "moebius"}), "topology.type is 'moebius'"),
            (text(topology={"type": "grid", "height": 3, "width": 3}), "3 × 3"),
            (text(topology={"type": "userList", "list": {"0": [9]}}), "neighbour 9"),
            (text(distribution={"type": "LATE"}), "distribution.type is 'LATE'"),
            (text(distribution={"minDelay": 4}), "maxDelay"),
            (text(distribution={"dropProbability": 2}), "drop is 2"),
            (text(distribution={"maxMsgsRec": 0}), "maxMsgsRec"),
            (text(parameters={"byzantine_count": "two"}), "byzantine_count"),
            (text("BitcoinPeer", parameters={"mineRates": "all"}), "mineRates"),
            (text("BitcoinPeer", parameters={"parasiteFault": 3}), "parasiteFault"),
        ],
    )
    def test_bad_input_is_one_line(self, tmp_path: Path, content: str, word: str) -> None:
        path = tmp_path / "input.json"
        path.write_text(content)
        with pytest.raises(BadInput) as caught:
            read(path)
        assert word in str(caught.value)
        assert "input.json" in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_a_missing_file_is_one_line(self, tmp_path: Path) -> None:
        with pytest.raises(BadInput, match="cannot read"):
            read(tmp_path / "none.json")

    VALUES = st.recursive(
        st.none() | st.booleans() | st.integers(-3, 10**7) | st.floats(allow_nan=False) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        max_leaves=5,
    )

    @settings(max_examples=150, deadline=None)
    @given(
        st.sampled_from(sorted(PEERS)), st.sampled_from(["rounds", "tests", "distribution", "topology", "parameters"]),
        st.sampled_from(["type", "initialPeers", "maxDelay", "size", "list", "mineRates", "parasiteFault", "crash_odds",
                         "height"]),
        VALUES,
    )  # fmt: skip
    def test_any_file_is_read_or_refused(self, peer: str, field: str, inner: str, value: Any) -> None:
        fields = {field: value} if field in ("rounds", "tests") else {field: {inner: value}}
        try:
            (experiment,) = parse(text(peer, 5, **fields))
        except ValueError as error:
            assert str(error)
        else:
            assert experiment.world().n == experiment.shape.initial_peers


class TestRunning:
    @pytest.mark.parametrize("peer", sorted(PEERS))
    def test_every_peer_type_runs_without_parameters_and_the_same_each_time(self, peer: str) -> None:
        experiment = one(peer, 2 if peer in ("AltBitPeer", "StableDataLinkPeer") else 6, rounds=60)
        assert repr(experiment.run()) == repr(experiment.run())
        assert experiment.run()["messages"] > 10

    def test_what_they_do_is_what_their_names_say(self) -> None:
        assert one("PBFTPeer", 4, rounds=50).run()["answered"] == 10
        raft = one("RaftPeer", 5, rounds=200, parameters={"timeout_spacing": 10}).run()
        assert raft["throughput"] > 0.3
        assert raft["conflicts"] == 0
        for peer in ("LinearChordPeer", "KademliaPeer"):
            found = one(peer, 16, rounds=100).run()
            assert found["found_ratio"] == 1.0
            assert found["lookups"] > 20
        lossy = {"dropProbability": 0.2, "maxDelay": 3}
        for peer in ("AltBitPeer", "StableDataLinkPeer"):
            link = one(peer, 2, rounds=300, distribution=lossy, parameters={"timeOutRate": 6}).run()
            assert link["faithful"] == 1.0
            assert 5 < link["delivered"] < 75
        chain = one("BitcoinPeer", 6, rounds=400, parameters={"mineScaler": 4}).run()
        assert chain["blocks"] > 40

    def test_two_liars_among_four_are_found_out(self) -> None:
        assert one("PBFTPeer", 4, rounds=60, parameters={"byzantine_count": 1}).run()["conflicts"] == 0
        assert one("PBFTPeer", 4, rounds=60, parameters={"byzantine_count": 2}).run()["conflicts"] > 0
