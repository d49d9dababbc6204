"""Chord, Pastry, Kademlia and what they are compared with: tables, routing, records, faults, hostile messages."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.protocols.dht_discovery.directory import Scenario, continuum, loaded, maker, synthetic
from assay.protocols.dht_discovery.flooding import Flooding, RandomWalk, Registry
from assay.protocols.dht_discovery.pastry import Pastry
from assay.protocols.interface import Ctx, Message, Node, Tag
from assay.protocols.kernel.run import Outcome
from assay.protocols.kernel.world import World
from assay.protocols.nodes.chord import Chord
from assay.protocols.nodes.kademlia import Kademlia
from assay.protocols.nodes.overlay import MASK, Agent, Load, Overlay, Settings, ident, key_of

KINDS: dict[str, Callable[..., Overlay]] = {"chord": Chord, "pastry": Pastry, "kademlia": Kademlia}
ALL = {**KINDS, "registry": Registry, "flooding": Flooding, "random-walk": RandomWalk}


def grown(kind: str, n: int, seconds: float, **world: Any) -> Outcome:
    """A directory that grew by itself, from one node, through messages alone."""
    agents = synthetic(n)
    shared = loaded(Settings(), agents, Scenario(warm_up=seconds - 20, seconds=20.0))
    return World(n=n, node=maker(kind, shared, n), inputs=agents, net=continuum(n), **world).run("timed", limit=seconds)


def root_of(kind: str, key: int, n: int) -> int:
    """Who is responsible for a key, by definition, over all nodes."""
    if kind == "chord":
        return min(range(n), key=lambda node: (ident(node) - key) & MASK)
    if kind == "pastry":
        return min(range(n), key=lambda node: min((ident(node) - key) & MASK, (key - ident(node)) & MASK))
    return min(range(n), key=lambda node: ident(node) ^ key)


def holders(outcome: Outcome, key: bytes) -> set[int]:
    return {node for node, state in enumerate(outcome.nodes) if key in state.store}  # type: ignore[attr-defined]


class TestTables:
    def test_chord_learns_the_ring_that_a_global_view_would_give(self) -> None:
        n = 48
        outcome = grown("chord", n, 100.0)
        for node, learned in enumerate(outcome.nodes):
            perfect = Chord().perfect(node, range(n))
            assert isinstance(learned, Chord)
            assert learned.successors == perfect.successors
            assert learned.predecessor == perfect.predecessor
            assert learned.fingers.items() >= perfect.fingers.items()

    def test_pastry_learns_its_leaf_set_and_never_misfiles_a_node(self) -> None:
        n = 48
        outcome = grown("pastry", n, 60.0)
        for node, learned in enumerate(outcome.nodes):
            perfect = Pastry().perfect(node, range(n))
            assert isinstance(learned, Pastry)
            assert (learned.right, learned.left) == (perfect.right, perfect.left)
            assert {row: set(entries) for row, entries in learned.table.items() if entries} == {
                row: set(entries) for row, entries in perfect.table.items()
            }

    def test_kademlia_knows_its_whole_neighbourhood(self) -> None:
        n = 48
        outcome = grown("kademlia", n, 60.0)
        for node, learned in enumerate(outcome.nodes):
            assert isinstance(learned, Kademlia)
            near = sorted((other for other in range(n) if other != node), key=lambda other: ident(other) ^ ident(node))
            assert set(learned.closest(ident(node), 8)) == set(near[:8])
            assert all(len(bucket) <= learned.k for bucket in learned.buckets.values())

    @pytest.mark.parametrize("kind", KINDS)
    def test_a_node_that_died_leaves_the_tables_and_its_records_stay(self, kind: str) -> None:
        n, dead = 32, 20
        outcome = grown(kind, n, 120.0, churn=[(40.0, dead, False)])
        for state in (state for node, state in enumerate(outcome.nodes) if node != dead):
            if isinstance(state, Chord):
                assert dead not in (*state.successors, *state.fingers.values(), state.predecessor)
            elif isinstance(state, Pastry):
                assert dead not in {node for _, node in (*state.right, *state.left)}
        agent = synthetic(n)[3]
        assert len(holders(outcome, key_of(agent.did)) - {dead}) >= 7


class TestRouting:
    @given(key=st.binary(min_size=20, max_size=20), start=st.integers(0, 99), kind=st.sampled_from(["chord", "pastry"]))
    @settings(max_examples=150, deadline=None)
    def test_every_walk_through_local_tables_ends_at_the_root(self, key: bytes, start: int, kind: str) -> None:
        n, place = 100, int.from_bytes(key)
        at, final, hops = start, False, 0
        while True:
            node = KINDS[kind]().perfect(at, range(n))  # type: ignore[attr-defined]
            to, final = node.next_hop(place, final)
            if to < 0:
                break
            at, hops = to, hops + 1
            assert hops <= 12
        assert at == root_of(kind, place, n)

    @given(target=st.integers(0, MASK), own=st.integers(0, 59), count=st.integers(1, 30))
    @settings(max_examples=200, deadline=None)
    def test_kademlias_closest_contacts_are_those_of_a_full_sort(self, target: int, own: int, count: int) -> None:
        node = Kademlia(k=4).perfect(own, range(60))
        known = sorted((n for bucket in node.buckets.values() for n in bucket), key=lambda n: ident(n) ^ target)
        assert sorted(node.closest(target, count)) == sorted(known[:count])

    @given(target=st.integers(0, MASK), own=st.integers(0, 59))
    @settings(max_examples=200, deadline=None)
    def test_whether_a_node_is_the_closest_is_told_from_its_buckets_alone(self, target: int, own: int) -> None:
        node = Kademlia().perfect(own, range(60))
        known = [n for bucket in node.buckets.values() for n in bucket]
        assert node._is_closest(target, -1) == all(ident(own) ^ target < ident(n) ^ target for n in known)

    @given(spoke=st.lists(st.tuples(st.booleans(), st.integers(1, 59)), max_size=80), target=st.integers(0, MASK))
    @settings(max_examples=100, deadline=None)
    def test_kademlia_knows_which_buckets_are_filled_whoever_comes_and_goes(
        self, spoke: list[tuple[bool, int]], target: int
    ) -> None:
        class Ctx:
            id, now = 0, 0.0

        node, ctx = Kademlia(k=80), Ctx()
        node.me = ident(0)
        for alive, other in spoke:
            (node._heard if alive else node.drop)(ctx, other)  # type: ignore[arg-type]
        known = [n for bucket in node.buckets.values() for n in bucket]
        last = {other: alive for alive, other in spoke}
        assert sorted(known) == sorted(other for other, alive in last.items() if alive)
        assert node.filled == sum(1 << place for place, bucket in node.buckets.items() if bucket)
        assert sorted(node.closest(target, 8)) == sorted(sorted(known, key=lambda n: ident(n) ^ target)[:8])
        for but in (-1, *known):
            closer = [n for n in known if n != but and ident(n) ^ target < ident(0) ^ target]
            assert node._is_closest(target, but) == (not closer)

    @given(met=st.sets(st.integers(1, 199), max_size=60), named=st.lists(st.integers(1, 199), max_size=20))
    @settings(max_examples=100, deadline=None)
    def test_pastry_lets_exactly_those_near_who_would_become_leaves(self, met: set[int], named: list[int]) -> None:
        node = Pastry().perfect(0, [0, *met])
        wanted = []
        for other in named:
            around = {*node.leaves, other}
            right = sorted(around, key=lambda n: (ident(n) - ident(0)) & MASK)[:8]
            left = sorted(around, key=lambda n: (ident(0) - ident(n)) & MASK)[:8]
            if other not in node.leaves and other in (*right, *left):
                wanted.append(other)
        assert node._near(named) == wanted

    @pytest.mark.parametrize("kind", KINDS)
    def test_records_lie_with_the_nodes_closest_to_their_key(self, kind: str) -> None:
        n = 40
        outcome = grown(kind, n, 130.0)
        for agent in synthetic(n):
            key = key_of(agent.did)
            kept = holders(outcome, key)
            assert root_of(kind, int.from_bytes(key), n) in kept
            assert len(kept) >= 8

    @pytest.mark.parametrize("kind", ALL)
    def test_every_lookup_finds_who_offers_the_capability(self, kind: str) -> None:
        outcome = grown(kind, 40, 60.0)
        offered = {agent.did: agent.capabilities for agent in synthetic(40)}
        assert len(outcome.operations) > 10
        for operation in outcome.operations:
            hops, found = operation.result
            assert operation.status == "ok"
            assert found
            assert hops >= 0
            assert all(operation.key in offered[did] for did in found)

    def test_perfect_tables_are_what_maintenance_comes_close_to(self) -> None:
        def hops(kind: str) -> float:
            results = [operation.result[0] for operation in grown(kind, 64, 60.0).operations]
            return sum(results) / len(results)

        for kind in KINDS:
            assert hops(kind) == pytest.approx(hops(f"{kind}-oracle"), rel=0.25)


class TestRecords:
    def test_a_record_expires_unless_it_is_published_again(self) -> None:
        class Ctx:
            now = 0.0

        node, key, ctx = Chord(), key_of("x"), Ctx()
        node.keep(ctx, key, ("did:a", ("x",), "host:1", 150.0))  # type: ignore[arg-type]
        ctx.now = 100.0
        node.keep(ctx, key, ("did:b", ("x",), "host:2", 150.0))  # type: ignore[arg-type]
        assert [record[0] for record in node.records(ctx, key)] == ["did:b", "did:a"]  # type: ignore[arg-type]
        ctx.now = 200.0
        assert [record[0] for record in node.records(ctx, key)] == ["did:b"]  # type: ignore[arg-type]

    def test_nobody_can_make_a_record_live_longer_than_the_settings_allow(self) -> None:
        class Ctx:
            now = 0.0

        node, ctx = Chord(), Ctx()
        node.keep(ctx, key_of("x"), ("did:a", ("x",), "host:1", 1e300))  # type: ignore[arg-type]
        ctx.now = Settings.ttl + 1
        assert node.records(ctx, key_of("x")) == ()  # type: ignore[arg-type]

    def test_the_registry_is_one_node_to_lose(self) -> None:
        outcome = grown("registry", 20, 90.0, churn=[(50.0, 0, False)])
        late = [operation for operation in outcome.operations if operation.complete < 90.0]
        assert late
        assert all(operation.status == "fail" for operation in late)


@pytest.mark.parametrize("kind", ALL)
def test_a_lookup_of_a_node_that_never_gets_in_fails_at_its_deadline(kind: str) -> None:
    load = Load(("a",), (1.0,), rate=1.0, end=20.0)
    shared = Settings(deadline=5.0, timeout=1.0, load=load)
    world = World(n=4, node=maker(kind, shared, 4), churn=[(0.0, 0, False)])  # nobody founds the directory
    asked = [operation for operation in world.run("timed", limit=30.0).operations if operation.process != 0]
    assert asked and all(operation.status == "fail" for operation in asked)
    assert all(operation.complete - operation.invoke <= 6.0 for operation in asked)  # a last call may be under way


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=3)
    | st.binary(max_size=21),
    lambda inner: st.lists(inner, max_size=4).map(tuple),
    max_leaves=8,
)


def hostile(kind: str) -> st.SearchStrategy[Message]:
    """Messages of every kind the node knows, of the right shape and of any other."""
    field = {
        str: st.text(max_size=3), int: st.integers(-3, 40) | st.just(2**64 - 1), bool: st.booleans(),
        bytes: st.binary(min_size=20, max_size=20), tuple: st.lists(VALUES, max_size=4).map(tuple),
        float: st.floats(allow_nan=False),
    }  # fmt: skip
    shapes = ALL[kind].shapes  # type: ignore[attr-defined]
    shaped = st.sampled_from(sorted(shapes)).flatmap(
        lambda name: st.tuples(st.just(name), *(field[part] for part in shapes[name][1:]))
    )
    loose = st.tuples(st.sampled_from([*shapes, "nonsense"]), VALUES, VALUES)
    return st.one_of(shaped, loose)


@pytest.mark.parametrize("kind", ALL)
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_whatever_a_hostile_peer_sends_nobody_crashes_or_believes_in_nodes_that_cannot_be(
    kind: str, data: st.DataObject
) -> None:
    messages = data.draw(st.lists(hostile(kind), max_size=30))

    class Hostile(Node):
        def start(self, ctx: Ctx) -> None:
            for position, msg in enumerate(messages):
                ctx.send(1 + position % 5, msg)

    shared = Settings(period=0.5, timeout=0.2, gateways=3)
    make = maker(kind if kind not in KINDS else f"{kind}-oracle", shared, 6)

    def member(node: int) -> Node:
        return Hostile() if node == 0 else make(node)

    agents = [Agent(f"did:x:{node}", ("a",), "h:1") for node in range(6)]
    outcome = World(n=6, node=member, inputs=agents).run("timed", limit=2.0)  # metered: what is passed on fits the wire
    assert outcome.stopped == "limit"


@pytest.mark.parametrize("kind", ["flooding", "random-walk"])
@pytest.mark.parametrize("hops", [-1, 2**64 - 1])
def test_a_search_that_claims_to_come_from_beyond_the_reach_is_not_passed_on(kind: str, hops: int) -> None:
    class Liar(Node):
        def start(self, ctx: Ctx) -> None:
            ctx.timer(20.0, "all have joined")

        def timeout(self, ctx: Ctx, tag: Tag) -> None:
            ctx.broadcast(("get", key_of("nowhere"), 0, 1, hops, 3), to=ctx.peers)

    make = maker(kind, Settings(), 4)
    world = World(n=4, node=lambda node: Liar() if node == 3 else make(node))
    assert world.run("timed", limit=30.0).meter.by_kind["get"][0] == 3


def test_equal_seeds_give_equal_runs_and_others_differ() -> None:
    digests = {seed: grown("kademlia", 24, 40.0, seed=seed).digest for seed in (0, 1)}
    assert grown("kademlia", 24, 40.0, seed=0).digest == digests[0] != digests[1]


def test_nodes_hold_plain_state() -> None:
    import pickle

    for kind in ALL:
        outcome = grown(kind, 12, 30.0)
        assert len(pickle.loads(pickle.dumps(outcome.nodes))) == 12


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_over_sockets_a_lookup_takes_as_many_hops_as_in_simulation(kind: str) -> None:
    n = 64
    agents = synthetic(n)
    quick = Settings(period=0.5, timeout=1.0, joining=8.0, republish=20.0)
    shared = loaded(quick, agents, Scenario(warm_up=20.0, seconds=25.0, rate=1.0))
    world = World(n=n, node=partial(ALL[kind], shared), inputs=agents)

    def hops(mode: str, **options: Any) -> float:
        done = [o for o in world.run(mode, limit=45.0, **options).operations if o.status == "ok"]
        assert len(done) > 300
        return sum(operation.result[0] for operation in done) / len(done)

    assert hops("live", processes=4) == pytest.approx(hops("timed"), rel=0.1)
