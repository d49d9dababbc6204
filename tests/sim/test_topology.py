"""Topologies have the ranks, the links and the distances that their definitions say."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.record.errors import BadInput
from assay.sim import topology
from assay.sim.collectives import Link

LINK = Link(1e-6, 1e9)


def joined(found: topology.Topology, source: int, target: int) -> list[int]:
    """The vertices along a path, checked to be one."""
    ends = found.ends[found.path(source, target)]
    assert ends[0, 0] == source and ends[-1, 1] == target
    assert (ends[1:, 0] == ends[:-1, 1]).all()
    return [source, *ends[:, 1].tolist()]


NETWORKS = [
    topology.nodes(4, 2, Link(1e-6, 9e9), LINK, pod=2, oversubscribed=2.0),
    topology.fat_tree(4, LINK),
    topology.dragonfly(4, 3, 2, LINK),
    topology.torus([3, 4, 2], LINK),
    topology.torus([2, 4, 4], LINK, twist={0: (0, 2, 2)}),
]


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.name)
def test_paths_are_shortest_and_no_rank_forwards_where_it_must_not(network: topology.Topology) -> None:
    for source in range(network.ranks):
        far = network.distances(source)
        for target in range(network.ranks):
            if source != target:
                way = joined(network, source, target)
                assert len(way) == far[target] + 1
                assert network.forwards or all(vertex >= network.ranks for vertex in way[1:-1])


@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.name)
def test_every_link_leads_both_ways(network: topology.Topology) -> None:
    there = sorted(map(tuple, network.ends.tolist()))
    assert there == sorted((b, a) for a, b in there)


@given(st.lists(st.integers(3, 6), min_size=1, max_size=3))
def test_in_a_torus_distance_is_the_way_round_each_dimension(shape: list[int]) -> None:
    far = topology.torus(shape, LINK).distances(0)
    places = np.stack(np.unravel_index(np.arange(far.size), shape), axis=1)
    assert far.tolist() == np.minimum(places, np.array(shape) - places).sum(axis=1).tolist()


def test_a_twist_brings_ranks_nearer_without_another_link() -> None:
    plain, twisted = topology.torus([4, 8], LINK), topology.torus([4, 8], LINK, twist={0: (0, 4)})
    assert len(plain.ends) == len(twisted.ends) == 2 * 2 * 32
    assert twisted.distances(0).sum() < plain.distances(0).sum()


def test_a_fat_tree_spreads_pairs_over_its_cores() -> None:
    tree = topology.fat_tree(4, LINK)
    cores = {joined(tree, a, b)[3] for a in range(4) for b in range(4, 16)}
    assert len(cores) == 4


def test_a_group_sees_only_the_levels_it_spans() -> None:
    network = NETWORKS[0]
    assert [level.name for level in network.levels([0, 1])] == ["node"]
    assert [level.name for level in network.levels([0, 2])] == ["pod"]
    assert [level.name for level in network.levels(range(8))] == ["node", "pod", "core"]
    assert network.levels(range(8))[2].link.bandwidth == LINK.bandwidth / 2


def test_in_a_graph_neighbours_get_what_the_worst_of_them_gets() -> None:
    cables = [(0, 1, LINK), (1, 2, LINK), (2, 3, LINK)]
    line = topology.Topology("line", 4, *topology.both_ways(cables), forwards=True)
    assert line.levels([0, 1, 2, 3])[0].link.bandwidth == LINK.bandwidth  # 3 -> 0 goes back alone
    assert line.levels([0, 2, 1, 3])[0].link.bandwidth == LINK.bandwidth / 2  # 0 -> 2 and 1 -> 3 share 1 -> 2


def written(path: Path, content: object) -> Path:
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def test_a_graph_of_ones_own_is_read(tmp_path: Path) -> None:
    square = written(
        tmp_path / "square.json", {"ranks": 4, "links": [[0, 1, 1e9], [1, 2, 1e9], [2, 3, 1e9], [3, 0, 1e9]]}
    )
    found = topology.read(square)
    assert (found.name, found.ranks, found.forwards, len(found.path(0, 2))) == ("square", 4, True, 2)
    star = written(tmp_path / "star.json", {"ranks": 2, "links": [[0, 2, 1e9, 1e-6], [1, 2, 1e9, 1e-6]]})
    assert not topology.read(star).forwards


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ([1, 2], '"ranks": 4'),
        ({"ranks": 0, "links": []}, "ranks is 0"),
        ({"ranks": 2, "links": [[0, 1]]}, "link 1: [from, to, bytes a second, seconds] expected"),
        ({"ranks": 2, "links": [[0, 0, 1e9]]}, "link 1: joins 0 and 0"),
        ({"ranks": 2, "links": [[0, 1, -1]]}, "link 1: bandwidth -1"),
        ({"ranks": 3, "links": [[0, 1, 1e9]]}, "no link leads from rank 0 to rank 2"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_a_line(tmp_path: Path, content: object, said: str) -> None:
    with pytest.raises(BadInput) as error:
        topology.read(written(tmp_path / "mine.json", content))
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_missing_file_and_broken_json_are_told(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot read"):
        topology.read(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(BadInput, match="no JSON"):
        topology.read(tmp_path / "bad.json")
