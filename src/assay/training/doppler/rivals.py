"""Other placers: list scheduling, an enumeration level by level, learned ones of one policy, and rules of thumb.

All of them see the same estimates of seconds and bytes, and who searches judges by as many simulated runs.
"""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np

from assay.sim.random import stream
from assay.training.doppler import runtime
from assay.training.doppler.graphs import OpGraph
from assay.training.interface import Ints

TRIES = 50  # placements that a searcher may choose from
LOOKS = 4  # simulated runs of each


def chosen(graph: OpGraph, places: list[Ints], devices: int, seed: int) -> Ints:
    """The placement whose simulated runs were shortest."""
    random = stream(seed, "doppler", "choose")
    return places[int(np.argmin([runtime.seconds(graph, place, devices, LOOKS, random) for place in places]))]


def round_robin(graph: OpGraph, devices: int) -> Ints:
    """Operators in turn.

    >>> from assay.training.doppler.graphs import chainmm
    >>> round_robin(chainmm(2), 4)[20:26].tolist()
    [0, 1, 2, 3, 0, 1]
    """
    place = np.zeros(graph.nodes, np.int64)
    place[~graph.data] = np.arange(int((~graph.data).sum())) % devices
    return graph.settled(place)


def single(graph: OpGraph, devices: int) -> Ints:
    """All on one device."""
    return np.zeros(graph.nodes, np.int64)


def enumerative(graph: OpGraph, devices: int) -> Ints:
    """Level by level: of all ways to deal the next operators of one product to the devices, the one that sends least.

    Operators of a product go in groups as large as there are devices, each group one to a device.
    """
    place = np.full(graph.nodes, -1)  # data is where it is first read, and costs nothing before
    orders = list(permutations(range(devices)))
    for meta in np.unique(graph.meta[~graph.data]):
        mine = np.flatnonzero((graph.meta == meta) & ~graph.data)
        for first in range(0, len(mine), devices):
            some = mine[first : first + devices]
            sends = np.zeros((len(some), devices))
            for i, v in enumerate(some):
                for u in (u for u in graph.inputs[v] if place[u] >= 0):
                    sends[i] += np.where(np.arange(devices) == place[u], 0.0, graph.sending[u])
            best = min(orders, key=lambda order: sum(sends[i, order[i]] for i in range(len(some))))
            place[some] = best[: len(some)]
            for v in some:
                for u in (u for u in graph.inputs[v] if place[u] < 0):
                    place[u] = place[v]
    return graph.settled(place)


def one_shot(graph: OpGraph, devices: int, episodes: int, seed: int, rate: float) -> list[Ints]:
    """As GDP: one network sees the whole graph once and draws all devices at once; 50 placements after training."""
    import torch

    from assay.sim.adam import Adam
    from assay.training.doppler import policy

    torch.set_num_threads(1)
    view, body, random = policy.View(graph, devices), policy.Policy(seed), stream(seed, "doppler", "one-shot")
    head = torch.nn.Sequential(torch.nn.Linear(policy.VECTOR + policy.FEATURES, policy.WIDTH), torch.nn.ReLU(),
                               torch.nn.Linear(policy.WIDTH, devices))  # fmt: skip
    optimiser = Adam([*body.parameters(), *head.parameters()], rate)
    reward, batches, usual = policy.simulated(graph, devices), max(1, episodes // policy.BATCH), policy.Usual()

    def drawn(log: Any, count: int) -> list[Ints]:
        chances = log.detach().exp().numpy().cumsum(1)[None] < random.random((count, graph.nodes, 1))
        return [graph.settled(place) for place in np.minimum(chances.sum(2), devices - 1)]

    def look() -> Any:
        vectors, _, _ = body.look(view)
        return head(torch.cat([vectors, view.features], 1)).log_softmax(1)

    for batch in range(batches):
        left = 1 - batch / batches
        optimiser.rate = rate * (policy.LAST + (1 - policy.LAST) * left)
        log = look()
        places = drawn(log, policy.BATCH)
        seconds = np.array([reward(place, random) for place in places])
        advantage = torch.tensor(usual.advantage(seconds), dtype=torch.float32)
        picked = torch.from_numpy(np.stack(places))
        total = log[None].expand(policy.BATCH, -1, -1).gather(2, picked[..., None]).squeeze(2).mean(1)
        optimiser.zero_grad()
        (-(advantage * total).mean() * 20).backward()
        optimiser.step()
    return drawn(look(), TRIES)


def drawn_places(graph: OpGraph, devices: int, tries: int, seed: int) -> Ints:
    """The best of drawn placements, each looked at once and the best few again."""
    random = stream(seed, "doppler", "luck")
    places = [graph.settled(random.integers(0, devices, graph.nodes)) for _ in range(tries)]
    once = np.array([runtime.play(graph, place, devices, random).seconds for place in places])
    return chosen(graph, [places[k] for k in np.argsort(once)[:TRIES]], devices, seed)
