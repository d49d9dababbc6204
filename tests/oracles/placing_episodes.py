"""An episode of placing operators, choice by choice, from the definitions: what a device would mean for an operator is
computed anew from the list of what was placed so far, in order, with nothing kept between choices."""

from __future__ import annotations

from typing import Any

import numpy as np

from assay.training.doppler.graphs import OpGraph


class Placed:
    """Operators placed so far, in order."""

    def __init__(self, graph: OpGraph, devices: int) -> None:
        self.graph, self.devices = graph, devices
        self.steps: list[tuple[int, int]] = []

    def replay(self) -> dict[str, Any]:
        """Ends and free devices, as if messages went at once (`ends`, `busy`) and with ports (`done`, `late`)."""
        graph = self.graph
        ends, done, place, sent = {}, {}, {}, {}
        busy, late, port = (np.zeros(self.devices) for _ in range(3))
        for v, d in self.steps:
            ready = there = 0.0
            for u in graph.inputs[v]:
                place.setdefault(u, d)  # data lies where it is first read
                if place[u] == d:
                    ready, there = max(ready, ends.get(u, 0.0)), max(there, done.get(u, 0.0))
                    continue
                ready = max(ready, ends.get(u, 0.0) + graph.sending[u])
                if (u, d) not in sent:
                    sent[u, d] = port[place[u]] = max(done.get(u, 0.0), port[place[u]]) + graph.sending[u]
                there = max(there, sent[u, d])
            place[v] = d
            ends[v] = busy[d] = max(ready, busy[d]) + graph.seconds[v]
            done[v] = late[d] = max(there, late[d]) + graph.seconds[v]
        return {"ends": ends, "done": done, "place": place, "sent": sent, "busy": busy, "late": late, "port": port}

    def tells(self, v: int) -> np.ndarray:
        """What tells of each device for operator v: how busy, when inputs are there, how late it would end, what must
        be sent, how late with ports; then both ends."""
        graph, now = self.graph, self.replay()
        rows, scale = [], graph.seconds.max()
        for d in range(self.devices):
            ready = there = brought = 0.0
            for u in graph.inputs[v]:
                if u not in now["place"]:
                    continue
                if now["place"][u] == d:
                    ready, there = max(ready, now["ends"].get(u, 0.0)), max(there, now["done"].get(u, 0.0))
                    continue
                ready = max(ready, now["ends"].get(u, 0.0) + graph.sending[u])
                free = max(now["done"].get(u, 0.0), now["port"][now["place"][u]])
                there = max(there, now["sent"].get((u, d), free + graph.sending[u]))
                brought += graph.sending[u]
            rows.append([now["busy"][d] - now["busy"].mean(), ready - now["busy"][d], brought,
                         max(ready, now["busy"][d]) + graph.seconds[v],
                         max(there, now["late"][d]) + graph.seconds[v]])  # fmt: skip
        busy, ready, brought, end, late = np.array(rows).T
        seen = np.stack([busy, ready, end - end.min(), brought, late - late.min()], 1) / scale
        return np.column_stack([seen.clip(-8, 8), end, late])


def taught(graph: OpGraph, devices: int, worth: np.ndarray, order: list[int], ports: bool) -> tuple[bool, np.ndarray]:
    """Whether an order and its devices `order` are ones that list scheduling could have chosen; and what it looked at.

    `order` are pairs (operator, device): every operator has the most worth of those that could come, every device the
    earliest end.
    """
    placed, looked, right = Placed(graph, devices), [], True
    for v, d in order:
        before = {u for u, _ in placed.steps} | {int(u) for u in np.flatnonzero(graph.data)}
        able = [w for w in range(graph.nodes) if w not in before and set(graph.inputs[w]) <= before]
        seen = placed.tells(v)
        ends = seen[:, -1 if ports else -2]
        right &= (
            v in able and worth[v] >= max(worth[w] for w in able) * (1 - 1e-6) and ends[d] <= ends.min() * (1 + 1e-6)
        )
        looked.append(seen)
        placed.steps.append((int(v), int(d)))
    return right, np.array(looked)
