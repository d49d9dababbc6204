"""A torch module as an operator graph: traced by torch.fx, shapes by a run on zeros, seconds by counting.

Needs the extra `torch`. The module is the user's own code, which tracing runs.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import fx
from torch.fx.passes.shape_prop import ShapeProp

from assay.record.errors import BadInput
from assay.training.doppler.graphs import FLOPS, LAUNCH, MEMORY, OpGraph, ordered


def traced(module: torch.nn.Module, shapes: list[tuple[int, ...]], name: str) -> OpGraph:
    """Operators of a module's forward pass on inputs of these shapes; weights are there, inputs too.

    >>> traced(torch.nn.Sequential(torch.nn.Linear(8, 4), torch.nn.ReLU()), [(2, 8)], "two").nodes
    3

    Raises:
        BadInput: the module cannot be traced, or does not take these shapes.
    """
    try:
        graph = fx.symbolic_trace(module)
        with torch.no_grad():
            module(*(torch.zeros(shape) for shape in shapes))  # whose errors are plainer, and printed by nobody
            ShapeProp(graph).propagate(*(torch.zeros(shape) for shape in shapes))
    except Exception as error:
        said = (str(error).splitlines() or [""])[0]
        raise BadInput(f"{name} cannot be traced on {_told(shapes)}: {type(error).__name__}: {said}") from error
    nodes = [node for node in graph.graph.nodes if node.op != "output"]
    number = {node: k for k, node in enumerate(nodes)}
    edges = [(number[u], number[v]) for v in nodes for u in v.all_input_nodes]
    nbytes = np.array([_bytes(node) for node in nodes])
    seconds = np.array([_seconds(node, graph) for node in nodes])
    return ordered(name, seconds, nbytes, edges, [node.name for node in nodes])


def _told(shapes: list[tuple[int, ...]]) -> str:
    return ", ".join("x".join(map(str, shape)) for shape in shapes)


def _shape(node: Any) -> tuple[int, ...]:
    found = node.meta.get("tensor_meta")
    return tuple(found.shape) if hasattr(found, "shape") else ()


def _bytes(node: Any) -> float:
    return 4.0 * math.prod(_shape(node))


def _seconds(node: fx.Node, graph: fx.GraphModule) -> float:
    """Data takes none; else FLOPs of products or bytes of everything else."""
    if node.op in ("placeholder", "get_attr"):
        return 0.0
    flops, moved = 0.0, _bytes(node) + sum(_bytes(u) for u in node.all_input_nodes)
    out = math.prod(_shape(node))
    if node.op == "call_module":
        part = graph.get_submodule(str(node.target))
        weight = getattr(part, "weight", None)
        if isinstance(part, torch.nn.Linear):
            flops = 2.0 * out * part.in_features
        elif isinstance(part, torch.nn.modules.conv._ConvNd):
            flops = 2.0 * out * part.in_channels / part.groups * math.prod(part.kernel_size)
        moved += 4.0 * weight.numel() if isinstance(weight, torch.Tensor) else 0.0
    elif getattr(node.target, "__name__", str(node.target)) in ("matmul", "bmm", "mm", "linear"):
        flops = 2.0 * out * (_shape(node.all_input_nodes[0]) or (1,))[-1]
    return LAUNCH + max(flops / FLOPS, moved / MEMORY)
