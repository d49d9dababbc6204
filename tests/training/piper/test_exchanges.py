"""All-to-alls as messages: every block arrives, HALO sends one for a pair of nodes, the network decides who wins."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.training.piper.exchange_job import ragged
from assay.training.piper.exchanges import SCHEDULES, flat, halo
from assay.training.piper.machine import Machine, arrivals
from assay.training.piper.network import HALO, Network, frontier
from tests.oracles import exchanges as oracle


@st.composite
def machines(draw: st.DrawFn) -> tuple[Machine, list[range]]:
    """A few nodes, one group of all ranks or several side by side."""
    per_node = draw(st.sampled_from([1, 2, 4]))
    machine = Machine(
        draw(st.integers(1, 6)), per_node, draw(st.sampled_from([d for d in (1, 2) if per_node % d == 0])),
        draw(st.integers(1, 3)),
    )  # fmt: skip
    stride = draw(st.sampled_from([d for d in (1, 2, 4) if per_node % d == 0]))
    return machine, [range(first, machine.ranks, stride) for first in range(stride)]


@pytest.mark.parametrize("name", list(SCHEDULES))
@given(case=machines())
def test_every_block_arrives_and_nothing_is_sent_before_it_is_there(
    name: str, case: tuple[Machine, list[range]]
) -> None:
    machine, groups = case
    held = oracle.performed(SCHEDULES[name](machine, groups), machine.ranks)
    for group in groups:
        for rank in group:
            assert {(source, rank) for source in group} <= held[rank]


@pytest.mark.parametrize("name", list(SCHEDULES))
@given(case=machines(), seed=st.integers(0, 99))
def test_what_arrives_has_the_sizes_that_were_given(name: str, case: tuple[Machine, list[range]], seed: int) -> None:
    """Ragged, with blocks of nothing; between nodes every byte travels once."""
    machine, groups = case
    sizes = ragged(machine.ranks, 1000.0, seed).astype(float)
    messages = SCHEDULES[name](machine, groups)
    between = np.array(messages.src) // machine.per_node != np.array(messages.dst) // machine.per_node
    far = [
        sizes[a, b] for group in groups for a in group for b in group if a // machine.per_node != b // machine.per_node
    ]
    assert messages.nbytes(sizes)[between].sum() == pytest.approx(sum(far)) if len(messages) else not far


def test_halo_sends_one_message_for_a_pair_of_nodes() -> None:
    """Messages between nodes are 64 times fewer and 64 times larger."""
    machine = Machine(nodes=10)
    counts = {}
    for name in ("flat", "two-level", "halo"):
        made = SCHEDULES[name](machine, [range(80)])
        counts[name] = sum(a // 8 != b // 8 for a, b in zip(made.src, made.dst, strict=True))
    assert counts == {"flat": 10 * 9 * 64, "two-level": 10 * 9 * 8, "halo": 10 * 9}


def test_every_card_of_a_node_has_its_share() -> None:
    """The dies of a node are in charge of equally many nodes, coming and going."""
    machine = Machine(nodes=17)
    made = halo(machine, [range(machine.ranks)])
    for ends in (made.src, made.dst):
        pairs = [end for end, a, b in zip(ends, made.src, made.dst, strict=True) if a // 8 != b // 8]
        busy = np.bincount(pairs, minlength=machine.ranks).reshape(17, 8)
        assert busy.sum(axis=1).tolist() == [16] * 17
        assert busy.max() <= 3


def test_nodes_of_a_group_begin_with_different_groups() -> None:
    """No cable carries two messages of one round, where there are as many other groups as nodes in a group."""
    machine = Machine(nodes=20, per_node=1, cards=1, group=4)
    made = halo(machine, [range(20)])
    group = [rank // 4 for rank in range(20)]
    rounds: dict[int, list[tuple[int, int]]] = {}
    sent = dict.fromkeys(range(20), 0)
    for a, b in zip(made.src, made.dst, strict=True):
        rounds.setdefault(sent[a], []).append((group[a], group[b]))
        sent[a] += 1
    assert all(a == b for number in range(3) for a, b in rounds[number])  # their own group first
    for number in range(3, 19):
        assert len(set(rounds[number])) == len(rounds[number])
        assert all(a != b for a, b in rounds[number])


def test_messages_share_what_they_have_in_common() -> None:
    machine = Machine(nodes=2, start_outside=0.0, start_inside=0.0)
    src, dst, size = np.array([0, 1, 2]), np.array([8, 9, 10]), np.array([25e6, 25e6, 25e6])
    ends = arrivals(machine, src, dst, size, [[], [], []])
    assert ends == pytest.approx([2e-3, 2e-3, 1e-3])  # dies 0 and 1 share a card, die 2 has one with die 3
    in_turn = arrivals(replace(machine, window=1), np.array([0, 0]), np.array([8, 16 - 1]), size[:2], [[], []])
    assert in_turn == pytest.approx([1e-3, 2e-3])


def test_cables_between_groups_are_narrower_than_what_nodes_inject() -> None:
    """Flat over two groups takes longer a byte than over one, and the taper says by how much at least."""
    one, two = (Machine(nodes=n, group=4, taper=0.25, per_node=2, cards=2) for n in (4, 8))
    seconds = [flat(m, [range(m.ranks)]).seconds(m, np.full((m.ranks, m.ranks), 1e6)) for m in (one, two)]
    crossing = 8 * 8 * 1e6 / two.far
    assert seconds[1] >= crossing
    assert crossing > 1.5 * seconds[0]


def test_halo_is_quicker_where_messages_are_many_and_small() -> None:
    """A die has a tenth of the bandwidth between nodes that it has within; 16 kB to each of 127 others."""
    machine, sizes = Machine(nodes=16, inside=125e9), np.full((128, 128), 16e3)
    took = {name: SCHEDULES[name](machine, [range(128)]).seconds(machine, sizes) for name in ("flat", "halo")}
    assert took["flat"] >= 1.5 * took["halo"]


def test_it_is_no_magic_on_few_nodes_or_with_large_blocks() -> None:
    """Two nodes have one pair of dies in charge: one card of four carries everything."""
    machine, sizes = Machine(nodes=2), np.full((16, 16), 1e6)
    assert halo(machine, [range(16)]).seconds(machine, sizes) > 3 * flat(machine, [range(16)]).seconds(machine, sizes)


def test_without_start_up_times_and_with_one_bandwidth_halo_has_nothing_to_gain() -> None:
    """What a model without a network would say: three trips are longer than one."""
    machine = Machine(nodes=8, per_node=4, cards=4, inside=10e9, card=10e9, local=1e15, taper=1e6, start_inside=0.0,
                      start_outside=0.0)  # fmt: skip
    sizes = np.full((32, 32), 1e6)
    assert halo(machine, [range(32)]).seconds(machine, sizes) > flat(machine, [range(32)]).seconds(machine, sizes)


def test_what_is_chosen_is_never_slower_than_flat() -> None:
    networks = {halo: Network.of(frontier(64), halo) for halo in (True, False)}
    sizes = np.logspace(3, 9, 25)
    for ranks in (16, 64):
        chosen, plain = (networks[halo].seconds("all_to_all", np.arange(ranks), sizes) for halo in (True, False))
        assert (chosen <= plain).all()
    small, large = (networks[True].choice(range(64), nbytes) for nbytes in (64e3, 64e6))
    assert small.algorithm in HALO and small.seconds < small.flat
    assert large.algorithm == "flat"


def test_groups_side_by_side_share_the_cards() -> None:
    """Eight groups of one die a node exchange at once: each gets an eighth of its node's cards."""
    network = Network.of(frontier(64), halo=False)
    apart, alone = network.seconds("all_to_all", 8 * np.arange(8), np.array([64e6]))[0], 7 / 8 * 64e6 / (4 * 20e9)
    assert apart > 7 * alone


def test_ranks_that_lie_unevenly_on_nodes_are_refused() -> None:
    with pytest.raises(ValueError, match="unevenly"):
        halo(Machine(nodes=2), [range(12)])
