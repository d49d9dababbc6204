"""Graph layers as three functions of rows: what a node sends, what it adds itself, and what becomes of the sum.

Every layer here is `finish(own(v) + Σ message(u))` over the edges u → v, with Σ a sum, a maximum or a softmax-weighted
sum that can be taken in any order and in parts. That is all an engine needs to know. Weights are PyTorch Geometric's,
by the names its `state_dict` gives them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from assay.record import reading

Floats = npt.NDArray[np.float32]
Int32s = npt.NDArray[np.int32]

SUM, MAX, SOFTMAX = 0, 1, 2
SLOPE = np.float32(0.2)  # of GAT's leaky rectifier


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer: its kind, its weights by PyG's names, and whether a rectifier follows.

    `steps` of a GIN's inner network are (weight, bias, scale, shift): a linear map, then a folded batch norm or None.
    With `late`, rows are multiplied by the weights only when they are summed up.
    """

    kind: str
    weights: Mapping[str, Floats]
    activate: bool
    steps: tuple[tuple[Floats, Floats | None, Floats | None, Floats | None], ...] = ()
    reduce: int = field(default=SUM)
    late: bool = False

    @property
    def in_width(self) -> int:
        """Columns of the rows that come in."""
        return int(self._first.shape[1])

    @property
    def out_width(self) -> int:
        """Columns of the rows that go out."""
        if self.kind == "gat":
            return len(self.weights["bias"])
        return int(self.steps[-1][0].shape[0] if self.steps else self._first.shape[0])

    @property
    def _first(self) -> Floats:
        return self.steps[0][0] if self.steps else self.weights["lin_l" if self.kind == "sage" else "lin"]

    @property
    def heads(self) -> int:
        """Attention heads of a GAT layer."""
        return int(self.weights["att_src"].shape[0])

    @property
    def drops_loops(self) -> bool:
        """Whether self-loops of the graph are replaced by one of the layer's own, as GCN and GAT do."""
        return self.kind in ("gcn", "gat")

    @property
    def projects(self) -> bool:
        """Whether rows are multiplied by the weights before they are sent: where that makes accumulators narrower."""
        if self.reduce == MAX or self.late:
            return False
        narrow = self._first.shape[0] <= self.in_width * (2 if self.kind == "sage" else 1)
        return self.kind == "gat" or narrow

    @property
    def message_width(self) -> int:
        """Columns of a message."""
        if self.kind == "gat":
            return self.heads + int(self._first.shape[0])
        return int(self._first.shape[0]) if self.projects else self.in_width

    @property
    def width(self) -> int:
        """Columns of an accumulator."""
        if self.kind == "gat":
            return 2 * self.heads + int(self._first.shape[0])
        return self.message_width * (2 if self.kind == "sage" and not self.projects else 1)


def degrees(layer: Layer, in_degree: Int32s, loops: Int32s | None) -> Int32s:
    """Messages that each node will get from others: what means and norms divide by.

    >>> gcn = Layer("gcn", {"lin": np.ones((2, 3), np.float32)}, False)
    >>> degrees(gcn, np.array([2, 1], np.int32), np.array([1, 0], np.int32)).tolist()
    [1, 1]
    """
    return in_degree - loops if loops is not None and layer.drops_loops else in_degree


def message(layer: Layer, x: Floats, degree: Int32s) -> Floats:
    """What the nodes of these rows send along each of their edges; for GAT, a logit a head before the columns."""
    if layer.kind != "gat":
        return columns(layer, x, degree)
    sent = np.empty((len(x), layer.message_width), np.float32)
    columns(layer, x, degree, sent[:, layer.heads :])
    sent[:, : layer.heads] = x @ _attending(layer, "att_src")
    return sent


def columns(layer: Layer, x: Floats, degree: Int32s, out: Floats | None = None) -> Floats:
    """The columns of a message that are added up, in `out` where rows are multiplied; else they may be `x` itself."""
    if layer.projects:
        weight: Floats = layer.weights["lin"] if layer.kind == "gat" else layer._first
        sent: Floats = np.matmul(x, weight.T, out=out)
        return np.divide(sent, _root(degree), out=sent) if layer.kind == "gcn" else sent
    return np.divide(x, _root(degree), out=out) if layer.kind == "gcn" else x


def own(layer: Layer, x: Floats, degree: Int32s, sent: Floats, facing: Floats | None) -> Floats:
    """What a node adds to its own accumulator; `facing` is its half of the attention, for GAT."""
    w = layer.weights
    if layer.kind == "gcn":
        return sent  # the self-loop that the layer brings
    if layer.kind == "gat":
        assert facing is not None
        logits = _leaky(sent[:, : layer.heads] + facing)
        return np.concatenate([logits, np.ones_like(logits), sent[:, layer.heads :]], axis=1)
    if layer.kind == "sage":
        if layer.projects:
            return own_projected(layer, x, degree, np.empty_like(sent))
        return np.concatenate([np.full_like(x, -np.inf if layer.reduce == MAX else 0), x], axis=1)
    return sent * (np.float32(1) + w["eps"])


def own_projected(layer: Layer, x: Floats, degree: Int32s, out: Floats) -> Floats:
    """What a node of a SAGE layer that projects first adds to its own accumulator, in `out`."""
    if "lin_r" not in layer.weights:
        out[:] = 0
        return out
    np.matmul(x, layer.weights["lin_r"].T, out=out)
    return np.multiply(out, _at_least_one(degree), out=out)  # finish divides all by the degree


def facing(layer: Layer, x: Floats) -> Floats:
    """The attention that a target brings to each of its edges, a column a head."""
    return x @ _attending(layer, "att_dst")


def ends(layer: Layer, x: Floats) -> Floats:
    """The attention that a node brings to its edges as their source, a column a head, and then as their target."""
    both: Floats = np.concatenate([_attending(layer, "att_src"), _attending(layer, "att_dst")], axis=1)
    return x @ both


def _attending(layer: Layer, end: str) -> Floats:
    """What rows are multiplied by to get one end's attention: columns for heads."""
    heads, per = layer.weights[end].shape
    by_head = layer.weights["lin"].reshape(heads, per, -1)
    found: Floats = np.einsum("hci,hc->ih", by_head, layer.weights[end])
    return found


def finish(layer: Layer, total: Floats, degree: Int32s, room: Floats | None = None) -> Floats:
    """Turn complete accumulators into the layer's rows; they may be the same memory, or `room`, so nobody else's.

    Products are put into `room` where it is given and large enough: memory that is asked for and returned for every few
    hundred rows takes as long as to fill it.
    """
    w = layer.weights
    if layer.kind == "gcn":
        out: Floats = np.divide(total, _root(degree), out=total)
        out = _biased(out if layer.projects else _product(out, w["lin"], room), w.get("bias"))
    elif layer.kind == "sage":
        out = _biased(_sage(layer, total, degree, room), w.get("bias"))
    elif layer.kind == "gin":
        out = _inner(layer, total, room)
    else:
        heads = layer.heads
        parts: Floats = total[:, 2 * heads :].reshape(len(total), heads, -1) / total[:, heads : 2 * heads, None]
        return finish_weighed(layer, parts.reshape(len(total), -1))
    return np.maximum(out, 0, out=out) if layer.activate else out


def finish_weighed(layer: Layer, sums: Floats) -> Floats:
    """Turn sums over edges whose weights add up to one, the columns of all heads, into a GAT layer's rows."""
    by_head = sums.reshape(len(sums), layer.heads, -1)
    concat = layer.out_width == sums.shape[1]
    out = _biased(sums if concat else by_head.mean(axis=1, dtype=np.float32), layer.weights.get("bias"))
    return np.maximum(out, 0, out=out) if layer.activate else out


def _product(rows: Floats, weight: Floats, room: Floats | None) -> Floats:
    """Rows times a weight's rows."""
    size = len(rows) * len(weight)
    into = None if room is None or room.size < size else room.reshape(-1)[:size].reshape(len(rows), -1)
    found: Floats = np.matmul(rows, weight.T, out=into)
    return found


def _sage(layer: Layer, total: Floats, degree: Int32s, room: Floats | None) -> Floats:
    w, found = layer.weights, total[:, : layer.message_width]
    if layer.projects:
        return np.divide(total, _at_least_one(degree), out=total)
    if layer.reduce == MAX:
        np.copyto(found, np.float32(0), where=np.isneginf(found))
    else:
        np.divide(found, _at_least_one(degree), out=found)
    if "lin_r" not in w:
        return _product(found, w["lin_l"], room)
    return _product(total, np.concatenate([w["lin_l"], w["lin_r"]], axis=1), room)


def _inner(layer: Layer, total: Floats, room: Floats | None) -> Floats:
    out = total
    for step, (weight, bias, scale, shift) in enumerate(layer.steps):
        if step or not layer.projects:
            out, room = _product(out, weight, room), room if room is None else out  # each in the other's place
        out = _biased(out, bias)
        if scale is not None and shift is not None:
            out = np.add(np.multiply(out, scale, out=out), shift, out=out)
        if step < len(layer.steps) - 1:
            out = np.maximum(out, 0, out=out)
    return out


def _biased(rows: Floats, bias: Floats | None) -> Floats:
    """The bias added in place: `rows` are nobody else's."""
    return rows if bias is None else np.add(rows, bias, out=rows)


def _root(degree: Int32s) -> Floats:
    """The square root of a degree that counts the self-loop, a column."""
    return np.sqrt((degree + 1).astype(np.float32))[:, None]


def _at_least_one(degree: Int32s) -> Floats:
    return np.maximum(degree, 1).astype(np.float32)[:, None]


def _leaky(x: Floats) -> Floats:
    return np.where(x > 0, x, SLOPE * x)


# ------------------------------------------------------------------------------------------- models


def read_model(path: Path, aggregate: str = "mean") -> list[Layer]:
    """The layers of a saved model: `.safetensors`, `.npz`, or a `.pt` that holds a `state_dict` and nothing else.

    `aggregate` tells a SAGE layer's (mean or max), which its weights do not.
    """
    suffix = path.suffix.lower()
    if not path.is_file():
        raise ValueError(f"{path}: no such file; a model's state_dict as .safetensors, .npz or .pt expected")
    try:
        if suffix == ".npz":
            with np.load(path, allow_pickle=False) as held:
                return layers(dict(held.items()), aggregate)
        if suffix == ".safetensors":
            from safetensors.numpy import load_file

            return layers(load_file(path), aggregate)
        if suffix in (".pt", ".pth"):
            import torch

            state = torch.load(path, map_location="cpu", weights_only=True)
            return layers({name: tensor.numpy() for name, tensor in state.items()}, aggregate)
    except ModuleNotFoundError:
        raise
    except Exception as error:
        if isinstance(error, ValueError) and str(error).startswith("the model"):
            raise ValueError(f"{path}: {error}") from None
        raise ValueError(f"{path}: {reading.no_array(error)}; a state_dict of tensors, saved whole, expected") from None
    raise ValueError(f"{path}: a model's state_dict as .safetensors, .npz or .pt expected")


def layers(state: Mapping[str, Any], aggregate: str = "mean") -> list[Layer]:
    """Layers from a `state_dict` of PyG's GCN, GraphSAGE, GIN or GAT, or of a module whose layers are in `convs`.

    >>> [made] = layers({"convs.0.lin.weight": np.ones((2, 3)), "convs.0.bias": np.zeros(2)})
    >>> made.kind, made.in_width, made.out_width, made.projects
    ('gcn', 3, 2, True)
    """
    numbered: dict[int, dict[str, Floats]] = {}
    for name, value in state.items():
        found = re.fullmatch(r"(?:.*\.)?(?:convs|layers)\.(\d+)\.(.+)", name)
        if found is None:
            raise ValueError(f"the model has '{name}', which is no layer's; GCN, GraphSAGE, GIN or GAT of PyG expected")
        numbered.setdefault(int(found[1]), {})[found[2]] = np.asarray(value)
    if sorted(numbered) != list(range(len(numbered))) or not numbered:
        raise ValueError(f"the model has layers {sorted(numbered)}; convs.0, convs.1 and so on expected")
    made: list[Layer] = []
    for i in reversed(range(len(numbered))):
        made.insert(0, _layer(numbered[i], i < len(numbered) - 1, aggregate, made[0].in_width if made else None))
    for i in range(1, len(made)):
        if made[i].in_width != made[i - 1].out_width:
            gives, takes = made[i - 1].out_width, made[i].in_width
            raise ValueError(f"the model's layer {i} takes {takes} columns, and the one before gives {gives}")
    return made


def _layer(named: dict[str, Floats], activate: bool, aggregate: str, wanted: int | None) -> Layer:
    """One layer from its weights; `wanted` columns are what the next one takes."""
    if any(name.startswith("nn.") for name in named):
        steps = tuple(_steps({name[3:]: value for name, value in named.items() if name.startswith("nn.")}))
        eps = np.float32(np.asarray(named.get("eps", 0.0)).reshape(-1)[0])
        _only(named, {"eps", *(name for name in named if name.startswith("nn."))})
        return Layer("gin", {"eps": eps}, activate, steps)  # type: ignore[dict-item]
    weights = {name.removesuffix(".weight"): np.asarray(value, np.float32) for name, value in named.items()}
    if "att_src" in weights:
        for half in ("att_src", "att_dst"):
            weights[half] = weights[half].reshape(weights[half].shape[-2:])
        _only(weights, {"att_src", "att_dst", "lin", "bias"})
        if "bias" not in weights:
            weights["bias"] = _no_bias(weights["att_src"], wanted)
        return Layer("gat", weights, activate, reduce=SOFTMAX)
    if "lin_l" in weights:
        weights = {"bias" if name == "lin_l.bias" else name: value for name, value in weights.items()}
        _only(weights, {"lin_l", "lin_r", "bias"})
        if aggregate not in ("mean", "max"):
            raise ValueError(f"the model's layers aggregate by mean or max, not '{aggregate}'")
        return Layer("sage", weights, activate, reduce=MAX if aggregate == "max" else SUM)
    _only(weights, {"lin", "bias"})
    if "lin" not in weights:
        raise ValueError(f"the model has a layer of {', '.join(named)}; one of GCN, GraphSAGE, GIN or GAT expected")
    return Layer("gcn", weights, activate)


def _no_bias(attention: Floats, wanted: int | None) -> Floats:
    """A bias of nothing: its length says whether a GAT's heads stand side by side or are averaged."""
    heads, columns = attention.shape
    if wanted is None and heads > 1:
        raise ValueError(
            "the model's last GAT layer has no bias, so nothing tells if heads are averaged; save a zero bias"
        )
    return np.zeros(columns if wanted in (None, columns) else heads * columns, np.float32)


def _only(named: Mapping[str, Any], known: set[str]) -> None:
    if strange := sorted(set(named) - known):
        raise ValueError(f"the model has '{strange[0]}', which no GCN, GraphSAGE, GIN or GAT layer here understands")


def _steps(named: dict[str, Any]) -> list[tuple[Floats, Floats | None, Floats | None, Floats | None]]:
    """A GIN's inner network: linear maps with rectifiers between, each with a batch norm behind it or none."""
    modules: dict[tuple[int, str], dict[str, Floats]] = {}
    for name, value in named.items():
        found = re.fullmatch(r"(lins\.|norms\.|)(\d+)\.(?:module\.)?(\w+)", name)
        if found is None:
            raise ValueError(f"the model has 'nn.{name}', which is no linear map and no batch norm")
        modules.setdefault((int(found[2]), found[1]), {})[found[3]] = np.asarray(value)
    steps: list[tuple[Floats, Floats | None, Floats | None, Floats | None]] = []
    for place in sorted(modules):
        module = modules[place]
        if "running_mean" in module and steps:
            scale = module["weight"] / np.sqrt(module["running_var"] + 1e-5)
            shift = module["bias"] - module["running_mean"] * scale
            steps[-1] = (*steps[-1][:2], scale.astype(np.float32), shift.astype(np.float32))
        elif module["weight"].ndim == 2:
            bias = module.get("bias")
            weight = np.asarray(module["weight"], np.float32)
            steps.append((weight, None if bias is None else np.asarray(bias, np.float32), None, None))
        else:
            raise ValueError(f"the model has 'nn.{place[1]}{place[0]}', which is no linear map and no batch norm")
    return steps
