"""A compound job as a graph of sections: models that feed one another, one of them critical, and where edges are cut.

    batch = 256                      # samples a step
    samples = "samples.jsonl"        # image_tokens and text_tokens, a line each

    [[section]]
    name = "student"
    model = "qwen3-8b"
    ranks = 64
    critical = true

    [[section]]
    name = "teacher"
    model = "qwen3-32b"
    mode = "forward"                 # or train, which is what is meant where nothing is said
    feeds = ["student"]

    [[section]]
    name = "eyes"
    vision = "qwen2.5-vl"            # sees the images of samples that have any
    feeds = ["student"]

An edge is cut where it carries least: of a teacher either logits or, where its output layer moves to the section it
feeds, hidden states.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from assay.record import reading
from assay.record.errors import BadInput
from assay.sim.dag import Cyclic, Dag
from assay.sim.encoders import vision
from assay.sim.models import Model, model

FIELDS = ("name", "model", "vision", "mode", "ranks", "critical", "feeds")
TOP = ("batch", "samples", "section")


@dataclass(frozen=True)
class Node:
    """A section: a model, whether it is trained, what it feeds; `merge`: patches of a token, 0 where it reads all."""

    name: str
    shape: Model
    trained: bool = True
    critical: bool = False
    ranks: int = 0
    feeds: tuple[str, ...] = ()
    merge: int = 0


@dataclass(frozen=True)
class Graph:
    """Sections in an order in which what feeds one comes before it; the critical one is the last."""

    nodes: tuple[Node, ...]
    batch: int = 256
    samples: Path | None = None

    @property
    def critical(self) -> Node:
        """The section that must not wait."""
        return self.nodes[-1]

    @property
    def auxiliary(self) -> tuple[Node, ...]:
        """The others."""
        return self.nodes[:-1]


@dataclass(frozen=True)
class Edge:
    """What an edge carries, in bytes a token, if it is cut after the output layer or before it."""

    logits: float
    hidden: float

    @property
    def moved(self) -> bool:
        """Whether the output layer moves to where the edge goes."""
        return 0 < self.hidden < self.logits

    @property
    def nbytes(self) -> float:
        """Of the better cut."""
        return self.hidden if self.moved or not self.logits else self.logits


def edge(source: Node, target: Node, item: float = 2.0) -> Edge:
    """The cuts of an edge; an encoder has no logits, and its rows have the width of what it feeds.

    >>> cut = edge(Node("t", model("qwen3-32b"), trained=False), Node("s", model("qwen3-8b")))
    >>> cut.moved, round(cut.logits / cut.nbytes, 1)  # vocabulary over width
    (True, 29.7)
    """
    if source.merge:
        return Edge(0.0, item * target.shape.hidden)
    return Edge(item * source.shape.vocab, item * source.shape.hidden)


def connected(nodes: list[Node], where: str = "sections", **more: Any) -> Graph:
    """The graph of some sections.

    Raises:
        BadInput: no critical section or several, a name that is there twice or not at all, sections that wait for each
            other, or one that feeds nobody.
    """
    names = [node.name for node in nodes]
    if twice := [name for name in names if names.count(name) > 1]:
        raise BadInput(f"{where}: section '{twice[0]}' is there twice")
    critical = [node for node in nodes if node.critical]
    if len(critical) != 1:
        raise BadInput(f"{where}: {len(critical)} sections are critical; mark one with critical = true")
    pairs = []
    for at, node in enumerate(nodes):
        for name in node.feeds:
            if name not in names:
                raise BadInput(f"{where}: section '{node.name}' feeds '{name}', which is not there")
            pairs.append((at, names.index(name)))
        if not node.feeds and not node.critical:
            raise BadInput(f"{where}: section '{node.name}' feeds nobody; add feeds = [\"{critical[0].name}\"]")
    if critical[0].feeds:
        raise BadInput(f"{where}: the critical section '{critical[0].name}' feeds others; it should be the last")
    try:
        order = Dag.of(len(nodes), pairs).order.tolist()
    except Cyclic as error:
        raise BadInput(f"{where}: sections {_listed(names, error)} feed one another in a circle") from error
    order.sort(key=lambda at: nodes[at].critical)
    return Graph(tuple(nodes[at] for at in order), **more)


def _listed(names: list[str], error: Cyclic) -> str:
    return " and ".join(repr(names[at]) for at in error.nodes.tolist()[:3])


def read(path: Path) -> Graph:
    """From a TOML file.

    Raises:
        BadInput: what is wrong, where, and what would be right.
    """
    fields = reading.toml(path, "a TOML file of sections is expected")
    if odd := sorted(set(fields) - set(TOP)):
        raise BadInput(f"{path}: unknown field '{odd[0]}'; there are {', '.join(TOP)}")
    tables = fields.get("section")
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise BadInput(f"{path}: no sections; add [[section]] tables with name, model and feeds")
    nodes = [_node(table, f"{path}: section {number}") for number, table in enumerate(tables, 1)]
    samples = fields.get("samples")
    if samples is not None and not isinstance(samples, str):
        raise BadInput(f"{path}: samples should be the path of a JSONL file")
    batch = _whole(fields.get("batch", 256), "batch", str(path))
    found = connected(nodes, str(path), batch=batch)
    return replace(found, samples=path.parent / samples if samples else None)


def _node(table: dict[str, Any], where: str) -> Node:
    if odd := sorted(set(table) - set(FIELDS)):
        raise BadInput(f"{where}: unknown field '{odd[0]}'; there are {', '.join(FIELDS)}")
    name, feeds, mode = table.get("name"), table.get("feeds", []), table.get("mode", "train")
    if not isinstance(name, str) or not name:
        raise BadInput(f"{where}: 'name' is missing")
    where = f"{where} ({name})"
    if mode not in ("train", "forward"):
        raise BadInput(f"{where}: mode {mode!r}; train or forward expected")
    if not isinstance(feeds, list) or not all(isinstance(one, str) for one in feeds):
        raise BadInput(f"{where}: feeds should be a list of names")
    if ("model" in table) == ("vision" in table):
        raise BadInput(f"{where}: give either model or vision")
    if not all(isinstance(table.get(field, ""), str) for field in ("model", "vision")):
        raise BadInput(f"{where}: model or vision should be a name")
    critical = table.get("critical", False)
    if not isinstance(critical, bool) or (critical and (mode == "forward" or "vision" in table)):
        raise BadInput(
            f"{where}: critical is true or false, and the critical section is a language model that is trained"
        )
    ranks = _whole(table.get("ranks", 8 if critical else 0), "ranks", where, 0)
    if critical and not ranks:
        raise BadInput(f"{where}: the critical section needs ranks")
    eye = vision(table["vision"]) if "vision" in table else None
    shape = eye.shape if eye else model(table["model"])
    return Node(name, shape, mode == "train", critical, ranks, tuple(feeds), eye.merge if eye else 0)


def _whole(value: Any, name: str, where: str, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 1 << 20:
        raise BadInput(f"{where}: {name} is {value!r}; a whole number from {least} to {1 << 20} expected")
    return value
