"""Full information without hashing or compiling: a view is the nested tuple of everything heard, literally."""

from __future__ import annotations

from itertools import product


def views_of(graph, inputs, traitor, faces, rounds):
    """`faces[v]` is None (silent) or (input, set of in-neighbours that the face never hears)."""
    n = len(graph)
    now = {node: ("input", node, inputs[node]) for node in range(n) if node != traitor}
    masks = {v: ("input", traitor, face[0]) for v, face in faces.items() if face is not None}
    for _ in range(rounds):
        following = {}
        for node in now:
            heard = [
                masks.get(node, "nothing") if sender == traitor else now[sender]
                for sender in range(n)
                if graph[sender] >> node & 1
            ]
            following[node] = (node, now[node], tuple(heard))
        grown = {}
        for v, mask in masks.items():
            deaf = faces[v][1]
            heard = [
                "nothing" if sender in deaf else now[sender] for sender in range(n) if graph[sender] >> traitor & 1
            ]
            grown[v] = (traitor, mask, tuple(heard))
        now, masks = following, grown
    return now


def impossible(graph, rounds):
    n = len(graph)
    parent = {}
    forced = []

    def find(key):
        while parent.setdefault(key, key) != key:
            key = parent[key]
        return key

    for traitor in (None, *range(n)):
        targets = [] if traitor is None else [v for v in range(n) if graph[traitor] >> v & 1]
        ears = frozenset(u for u in range(n) if traitor is not None and graph[u] >> traitor & 1)
        choices = [None, *((bit, deaf) for bit in (0, 1) for deaf in {frozenset(), ears})]
        for inputs in product((0, 1), repeat=n):
            for picked in product(choices, repeat=len(targets)):
                views = views_of(graph, inputs, traitor, dict(zip(targets, picked, strict=True)), rounds)
                keys = [(node, view) for node, view in views.items()]
                for key in keys[1:]:
                    parent[find(key)] = find(keys[0])
                given = {inputs[node] for node in views}
                if len(given) == 1:
                    forced.append((keys[0], given.pop()))
    labels = {}
    for key, bit in forced:
        labels.setdefault(find(key), set()).add(bit)
    return any(len(bits) == 2 for bits in labels.values())
