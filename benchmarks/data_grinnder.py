"""An epoch of full-batch training in little memory: grinnder, stored inputs, mapped files, memory, and PyG, in one run.

    python benchmarks/data_grinnder.py --scale 15 --width 128 --degree 8 --share 0.25

All but PyG run on the same cut, files and layers, the first of them another one each seed. Seconds are the median epoch
after the first; `difference` is of the first epoch's gradients from those in memory. PyTorch Geometric, where it is
installed, trains the same network in memory.
"""

from __future__ import annotations

import argparse
import importlib.util
from time import perf_counter

import numpy as np
import torch

from assay.data.grinnder import Network, trials
from assay.sim.random import stream


def pyg(graph: str, kind: str, nodes: int, width: int, degree: int, epochs: int, seed: int) -> float:
    """Seconds of PyTorch Geometric's epoch on the same graph, features and labels."""
    from torch_geometric.nn import models

    network = Network(kind, (width, width, width, trials.CLASSES), seed=seed)
    named = {"gcn": models.GCN, "sage": models.GraphSAGE, "gat": models.GAT}[kind]
    twin = named(width, width, 3, trials.CLASSES, **({"heads": 4} if kind == "gat" else {}))
    twin.load_state_dict(network.state_dict())
    rng = stream(seed, "grinnder", graph, nodes)
    x = torch.from_numpy(rng.standard_normal((nodes, width), np.float32))
    labels = torch.from_numpy(rng.integers(0, trials.CLASSES, nodes))
    edges = torch.from_numpy(trials.edges_of(graph, nodes, degree, seed).T.copy())
    seen = []
    for _ in range(epochs + 1):
        began = perf_counter()
        twin.zero_grad()
        torch.nn.functional.cross_entropy(twin(x, edges), labels).backward()  # type: ignore[no-untyped-call]
        seen.append(perf_counter() - began)
    return float(np.median(seen[1:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=int, default=15, help="2**scale nodes")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--degree", type=int, default=8)
    parser.add_argument("--parts", type=int, default=8)
    parser.add_argument("--share", type=float, action="append")
    parser.add_argument("--kind", default="gcn", choices=["gcn", "sage", "gat"])
    parser.add_argument("--graph", choices=trials.GRAPHS, action="append")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args()
    print(
        f"{'graph':12}{'share':>6}{'seed':>5}{'method':>11}{'seconds':>9}{'read MB':>9}{'written':>9}{'difference':>12}"
    )
    size = (given.kind, 1 << given.scale, given.width, given.degree)
    shares = " ".join(map(str, given.share or (0.25, 0.5)))
    for graph in given.graph or trials.GRAPHS:
        for seed in range(given.seeds):
            for row in trials.speed(graph, *size, given.parts, given.epochs, shares, seed=seed).values():
                moved = f"{row['read_bytes'] / 1e6:9.1f}{row['written_bytes'] / 1e6:9.1f}"
                told = f"{row['seconds']:9.3f}{moved}{row['difference']:12.1e}"
                print(f"{graph:12}{row['share']:6.2f}{seed:5}{row['method']:>11}{told}", flush=True)
            if importlib.util.find_spec("torch_geometric"):
                seconds = pyg(graph, *size, given.epochs, seed)
                print(f"{graph:12}{'':6}{seed:5}{'PyG':>11}{seconds:9.3f}", flush=True)


if __name__ == "__main__":
    main()
