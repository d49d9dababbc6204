"""Two policies over one graph: which operator next, on which device; taught by a heuristic, then by runs.

A few rounds of messages along the graph's edges, once an episode, give every operator a vector. The first network
scores operators from their vector, the mean vectors on the longest ways to an entry and to an exit, and their features;
the second scores devices for the chosen one from its vector, the mean of what lies there, and what a device would mean
for it now. Stage I copies critical-path list scheduling (log-likelihood), stage II follows the policy gradient of
simulated runs, stage III that of real ones; the advantage is over a running mean.

Updates after sixteen episodes and Adam's rates, the better of two, falling to a twentieth, are ours (the paper updates
after each, at 1e-4).
Needs the extra `torch`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

from assay.sim.adam import Adam
from assay.sim.learners import Mlp
from assay.sim.random import stream
from assay.sim.ready_queues import turned
from assay.training.doppler import episode, runtime
from assay.training.doppler.graphs import OpGraph
from assay.training.interface import Floats, Ints

VECTOR, WIDTH, ROUNDS = 16, 32, 3
FEATURES = 6
BATCH = 16
RATES, LAST = (1e-2, 4e-3), 0.05  # of Adam, and what of it is left in the end
LESSONS = 100  # batches of the teacher's episodes; more of them leave less to be learned after
LOOKS = 2  # simulated runs of an episode's placement
Reward = Callable[[Ints, np.random.Generator], float]


@dataclass(frozen=True)
class Kind:
    """Which parts are learned and seen: the whole, one policy alone, or what others do.

    `order`: operators by the longest way on ("path"), or as they are numbered ("number"), where that is not learned.
    """

    name: str = "doppler"
    selects: bool = True
    places: bool = True
    sees: bool = True  # what a device would mean for an operator now
    order: str = "path"
    taught: bool = True


DOPPLER = Kind()
SELECT_ONLY = Kind("select only", places=False)
PLACE_ONLY = Kind("place only", selects=False)
PLACETO = Kind("placeto-like", selects=False, sees=False, order="number", taught=False)


class View:
    """A graph as the networks see it, over the seconds that it takes on as many devices without waiting."""

    def __init__(self, graph: OpGraph, devices: int) -> None:
        self.graph, self.devices = graph, devices
        scale = graph.seconds.sum() / devices
        top, bottom = graph.levels
        into = np.array([sum(graph.sending[list(b)]) for b in graph.inputs])
        leaf = np.array([float(not b) for b in graph.inputs])
        columns = [graph.seconds / scale * 10, into / scale * 10, graph.sending / scale * 10, top / scale,
                   bottom / scale, leaf]  # fmt: skip
        self.features = torch.tensor(np.stack(columns, 1), dtype=torch.float32)
        self.bottom = bottom
        edges = np.array([(u, v) for v, b in enumerate(graph.inputs) for u in b], np.int64).reshape(-1, 2).T
        self.before, self.behind = torch.from_numpy(edges[0].copy()), torch.from_numpy(edges[1].copy())
        self.up, self.down = _ways(graph, top, bottom)
        self.at, self.after, _ = turned(graph.dag.indptr, graph.dag.indices)


class Ways:
    """Of every operator the longest way to an entry (or exit), each step to the next operator, and the last to nowhere.

    Sums along them double their reach step by step: as many additions as a way's length has digits.

    >>> Ways([1, 2, 3]).mean(torch.tensor([[3.0], [6.0], [9.0]])).flatten().tolist()  # 3 is nowhere
    [6.0, 7.5, 9.0]
    """

    def __init__(self, following: list[int]) -> None:
        n = len(following)
        reach, self.hops = torch.tensor([*following, n]), []
        count = torch.ones(n + 1)
        count[n] = 0.0
        while bool((reach < n).any()):
            self.hops.append(reach)
            count, reach = count + count[reach], reach[reach]
        self.count = count[:n, None]

    def mean(self, values: Tensor) -> Tensor:
        """Of rows, along every way."""
        total = torch.cat([values, values.new_zeros(1, values.shape[1])])
        for hop in self.hops:
            total = total + total[hop]
        return total[:-1] / self.count


def _ways(graph: OpGraph, top: Floats, bottom: Floats) -> tuple[Ways, Ways]:
    """To an entry and to an exit."""
    readers: list[list[int]] = [[] for _ in range(graph.nodes)]
    for v, b in enumerate(graph.inputs):
        for u in b:
            readers[u].append(v)
    up, down = (
        Ways([max(nexts[v], key=lambda u: worth[u]) if nexts[v] else graph.nodes for v in range(graph.nodes)])
        for nexts, worth in ((graph.inputs, top + graph.seconds + graph.sending), (readers, bottom))
    )
    return up, down


def _mean(values: Tensor, to: Tensor, n: int) -> Tensor:
    """Rows added up by number, over how many there were."""
    total = values.new_zeros((n, values.shape[1])).index_add(0, to, values)
    count = values.new_zeros(n).index_add(0, to, values.new_ones(len(to)))
    return total / count.clamp(min=1.0)[:, None]


class Policy(nn.Module):
    """Both networks."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.first = nn.Linear(FEATURES, VECTOR)
        self.rounds = nn.ModuleList(nn.Linear(3 * VECTOR, VECTOR) for _ in range(ROUNDS))
        self.select = nn.Sequential(nn.Linear(3 * VECTOR + FEATURES, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
        self.own = nn.Linear(VECTOR + FEATURES, WIDTH)
        self.there = nn.Linear(VECTOR, WIDTH, bias=False)
        self.live = nn.Linear(episode.LIVE, WIDTH, bias=False)
        self.last = nn.Linear(WIDTH, 1, bias=False)

    def look(self, view: View) -> tuple[Tensor, Tensor, Tensor]:
        """Of every operator its vector, its score, and its part of the second network's hidden layer."""
        n = view.graph.nodes
        h = self.first(view.features).relu()
        for layer in self.rounds:
            near = [_mean(h[view.before], view.behind, n), _mean(h[view.behind], view.before, n)]
            h = h + layer(torch.cat([h, *near], 1)).relu()
        ways = [view.up.mean(h), view.down.mean(h)]
        score = self.select(torch.cat([h, *ways, view.features], 1)).squeeze(1)
        return h, score, self.own(torch.cat([h, view.features], 1))

    def layers(self) -> dict[str, Mlp]:
        """As plain arrays, to be stored."""
        found = {}
        for name, part in self.named_modules():
            if isinstance(part, nn.Linear):
                bias = getattr(part, "bias", None)
                bias = torch.zeros(1) if bias is None else bias
                arrays = (x.detach().numpy().astype(float) for x in (part.weight.T, bias))
                found[name.replace(".", "-")] = Mlp(*([array] for array in arrays))
        return found

    def restore(self, layers: dict[str, Mlp]) -> Policy:
        """From what :meth:`layers` gave."""
        with torch.no_grad():
            for name, part in self.named_modules():
                if isinstance(part, nn.Linear):
                    stored = layers[name.replace(".", "-")]
                    part.weight.copy_(torch.tensor(stored.weights[0].T))
                    if part.bias is not None:
                        part.bias.copy_(torch.tensor(stored.biases[0]))
        return self


@dataclass
class Episode:
    """What was chosen, and what was looked at."""

    order: Ints
    chosen: Ints
    place: Ints
    live: Floats
    able: Ints
    until: Ints


class Player:
    """Plays episodes of a policy on a graph; the networks are looked at once for all until they change."""

    def __init__(self, policy: Policy, view: View, kind: Kind) -> None:
        self.view, self.kind = view, kind
        with torch.no_grad():
            h, score, own = policy.look(view)
        self._arrays = [
            np.ascontiguousarray(x.detach().numpy().astype(float))
            for x in (
                score,
                own,
                h,
                policy.there.weight.T,
                policy.live.weight.T * float(kind.sees),
                policy.last.weight[0],
            )
        ]
        self._rule = view.bottom if kind.order == "path" else -np.arange(view.graph.nodes, dtype=float)

    def play(
        self, random: np.random.Generator, temperature: float = 1.0, taught: bool = False, ports: bool = False
    ) -> Episode:
        """One episode; `taught`: the teacher plays, `ports`: counting on messages that wait for ports."""
        graph, dag = self.view.graph, self.view.graph.dag
        learned = np.array([False, False, ports] if taught else [self.kind.selects, self.kind.places, ports])
        order, chosen, place, live, able, until = episode.play(
            dag.indptr, dag.indices, self.view.at, self.view.after, graph.data, graph.seconds, graph.sending,
            self.view.bottom if taught else self._rule, self.view.devices, *self._arrays, temperature,
            random.random((graph.nodes, 2)), random.random(graph.nodes), learned,
        )  # fmt: skip
        return Episode(order, chosen, graph.settled(place), live, able, until)


def likelihood(policy: Policy, view: View, kind: Kind, episodes: list[Episode]) -> Tensor:
    """Of each episode the log-likelihood of its choices a step."""
    looked = policy.look(view)
    total = looked[0].new_zeros(len(episodes))
    if kind.selects:
        total = total + torch.stack([_selected(looked[1], e) for e in episodes])
    if kind.places:
        log = device_scores(policy, looked, kind, episodes).log_softmax(-1)
        chosen = torch.from_numpy(np.stack([e.chosen for e in episodes]))
        total = total + log.gather(-1, chosen[..., None]).squeeze(-1).mean(1)
    return total


def device_scores(policy: Policy, looked: tuple[Tensor, Tensor, Tensor], kind: Kind, episodes: list[Episode]) -> Tensor:
    """What the second network says of every device at every choice: [episode, choice, device]."""
    h, _, own = looked
    order, chosen = (torch.from_numpy(np.stack([getattr(e, name) for e in episodes])) for name in ("order", "chosen"))
    live = torch.from_numpy(np.stack([e.live[:, :, : episode.LIVE] for e in episodes])).float() * float(kind.sees)
    there = torch.nn.functional.one_hot(chosen, live.shape[2]).float()
    before = (there[..., None] * h[order][:, :, None]).cumsum(1).roll(1, 1)  # what lay there before each choice
    sizes = there.cumsum(1).roll(1, 1)
    first = torch.arange(order.shape[1]) > 0
    mean = before * first[:, None, None] / (sizes * first[:, None]).clamp(min=1.0)[..., None]
    hidden = own[order][:, :, None] + policy.there(mean) + policy.live(live)
    scores: Tensor = policy.last(hidden.relu()).squeeze(-1)
    return scores


def _selected(score: Tensor, one: Episode) -> Tensor:
    """Mean log-probability of the operators chosen among those that could be."""
    sizes = np.diff(one.until, prepend=0)
    step = torch.from_numpy(np.repeat(np.arange(len(sizes)), sizes))
    able = score[torch.from_numpy(one.able)]
    top = torch.from_numpy(np.maximum.reduceat(able.detach().numpy(), one.until - sizes))
    weight = score.new_zeros(len(sizes)).index_add(0, step, (able - top[step]).exp())
    return (score[torch.from_numpy(one.order)] - top - weight.log()).mean()


@dataclass
class Learned:
    """A policy, and how its episodes went: seconds of each, in order."""

    policy: Policy
    view: View
    kind: Kind
    history: list[float] = field(default_factory=list)

    def player(self) -> Player:
        """To play with."""
        return Player(self.policy, self.view, self.kind)


class Usual:
    """What runs took lately: a policy that gets worse is told so, also where all its runs are alike.

    >>> Usual().advantage(np.array([1.0, 3.0])).round(6).tolist()
    [1.0, -1.0]
    """

    def __init__(self) -> None:
        self.mean, self.spread = np.nan, np.nan

    def advantage(self, seconds: Floats) -> Floats:
        """By how many usual spreads runs were shorter than usual."""
        first = np.isnan(self.mean)
        self.mean = seconds.mean() if first else 0.8 * self.mean + 0.2 * seconds.mean()
        self.spread = seconds.std() if first else 0.95 * self.spread + 0.05 * seconds.std()
        return np.clip((self.mean - seconds) / (self.spread + 1e-9), -3.0, 3.0)


def simulated(graph: OpGraph, devices: int) -> Reward:
    """Seconds of simulated runs of a placement, their mean."""
    return lambda place, random: runtime.seconds(graph, place, devices, LOOKS, random)


def imitate(learned: Learned, batches: int, seed: int) -> None:
    """Stage I: raise the likelihood of what critical-path list scheduling does."""
    if not learned.kind.taught:
        return
    random = stream(seed, "doppler", "teacher")
    optimiser = Adam(learned.policy.parameters(), 3e-3)
    player = learned.player()
    for _ in range(batches):
        episodes = [player.play(random, taught=True) for _ in range(2)]
        total = likelihood(learned.policy, learned.view, learned.kind, episodes)
        optimiser.zero_grad()
        (-total.mean()).backward()
        optimiser.step()


def reinforce(learned: Learned, episodes: int, seed: int, reward: Reward, rate: float = RATES[0]) -> None:
    """Stages II and III: the policy gradient of runs, the rate falling linearly."""
    random = stream(seed, "doppler", "episodes")
    optimiser = Adam(learned.policy.parameters(), rate)
    batches, usual = max(1, episodes // BATCH), Usual()
    for batch in range(batches):
        left = 1 - batch / batches
        optimiser.rate = rate * (LAST + (1 - LAST) * left)
        player = learned.player()
        played = [player.play(random) for _ in range(BATCH)]
        seconds = np.array([reward(one.place, random) for one in played])
        learned.history += seconds.tolist()
        advantage = torch.tensor(usual.advantage(seconds), dtype=torch.float32)
        loss = -(advantage * likelihood(learned.policy, learned.view, learned.kind, played)).mean() * 20
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(learned.policy.parameters(), 1.0)
        optimiser.step()


def one_thread() -> None:
    """Networks this small are slower on several."""
    torch.set_num_threads(1)


def learn(
    graph: OpGraph, devices: int, episodes: int, seed: int, kind: Kind = DOPPLER, lessons: int = LESSONS,
    rate: float = RATES[0],
) -> Learned:  # fmt: skip
    """Stages I and II."""
    one_thread()
    learned = Learned(Policy(seed), View(graph, devices), kind)
    imitate(learned, lessons, seed)
    reinforce(learned, episodes, seed, simulated(graph, devices), rate)
    return learned


def placements(learned: Learned, count: int, seed: int) -> list[Ints]:
    """So many placements of a policy: its likeliest, then drawn ones."""
    random, player = stream(seed, "doppler", "placements"), learned.player()
    return [player.play(random, temperature=0.0 if k == 0 else 1.0).place for k in range(count)]
