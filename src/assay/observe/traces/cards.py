"""Workload cards: what ran, on what, cut how; the YAML file that lies beside the traces of a benchmark row.

The keys are those of CCL-Bench. A card is somebody else's file, so reading it is strict where a mistake would pass
unseen (a key given twice, a word where a number belongs) and patient where cards differ in fact: keys that are left
out, left empty or unknown. Nothing in it is ever executed, aliases are refused. Needs PyYAML (the extra `observe`).

>>> card = parse('''
... workload:
...   model: {phase: training, model_arch: {num_params: 8.0e9, num_layers: 32}}
...   data: {batch_size: 4, seq_len: 512}
...   hardware: {xpu_spec: {type: GPU, model: nvidia_a100, total_count: 4}}
... Model-executor:
...   model_plan_parallelization: {dp_shard: 2, tp: 2}
... ''')
>>> card.workload.hardware.xpu_spec.total_count, card.executor.plan.tp, card.workload.data.input_len
(4, 2, None)
>>> parse(text(card)) == card
True
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from assay.record import reading
from assay.record.errors import BadInput

if TYPE_CHECKING:
    from yaml.nodes import Node

NAMES = ("card.yaml", "workload_card.yaml")  # beside traces; else the only .yaml file of the folder
LARGEST, DEEPEST = 1 << 20, 20  # bytes of a card, and levels in it
PHASES = ("training", "inference", "serving")
_ABSENT = ("", "~", "null", "N/A", "n/a", "None")


class _Part(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A mapping of the card; what is not said is None or empty."""


class Arch(_Part, frozen=True):
    """The model's sizes, as its FLOPs need them."""

    num_params: float | None = None
    num_params_embedding: float | None = None
    num_params_active: float | None = None  # of a mixture of experts: what a token passes through
    num_active_params: float | None = None  # some cards call it so
    num_layers: float | None = None
    num_heads: float | None = None
    head_dim: float | None = None


class Model(_Part, frozen=True):
    """What was run."""

    phase: str = "training"
    moe: bool = False
    granularity: str = ""
    model_family: str = ""
    precision: str = ""
    epochs: float | None = None
    iteration: float | None = None
    model_arch: Arch = Arch()


class Data(_Part, frozen=True):
    """On what input; `batch_size` is the whole job's."""

    batch_size: float | None = None
    seq_len: float | None = None
    input_len: float | None = None
    output_len: float | None = None
    dataset: str = ""


class Topology(_Part, frozen=True):
    """The network: between nodes, then within one, in Gbit/s."""

    topology: str = ""
    bandwidth_gbps: tuple[float | None, ...] = ()


class Xpu(_Part, frozen=True):
    """The accelerators."""

    type: str = ""
    model: str = ""
    total_count: int | None = None
    count_per_node: int | None = None


class Hardware(_Part, frozen=True):
    """On what it ran."""

    network_topo: Topology = Topology()
    xpu_spec: Xpu = Xpu()
    driver_version: str = ""


class Workload(_Part, frozen=True):
    """Model, data and hardware."""

    model: Model = Model()
    data: Data = Data()
    hardware: Hardware = Hardware()


class Framework(_Part, frozen=True):
    """What ran the model."""

    name: str = ""
    compiler_tool_selection: str = ""


class Plan(_Part, frozen=True):
    """How the model was cut."""

    dp_replicate: int | None = None
    dp_shard: int | None = None
    tp: int | None = None
    pp: int | None = None
    cp: int | None = None
    ep: int | None = None
    pp_mb: int | None = None


class Library(_Part, frozen=True):
    """What carried the collectives."""

    name: str = ""
    version: str = ""
    env: dict[str, Any] = {}


class Executor(_Part, frozen=True):
    """Framework, cut and communication."""

    framework: Framework = Framework()
    plan: Plan = msgspec.field(default=Plan(), name="model_plan_parallelization")
    library: Library = msgspec.field(default=Library(), name="communication_library")
    protocol_selection: tuple[str, ...] = ()


class Source(_Part, frozen=True):
    """Which kinds of trace lie beside the card."""

    traces: tuple[str, ...] = ()
    metrics_specific_trace: tuple[str, ...] = ()


class Card(_Part, frozen=True):
    """One benchmark row's description."""

    version: str = "1"
    description: str = ""
    hf_url: str = ""
    trace_url: str = ""
    contributor: str = ""
    workload: Workload = Workload()
    executor: Executor = msgspec.field(default=Executor(), name="Model-executor")
    metric_source: Source = Source()


def read(path: Path) -> Card:
    """Read a card's file."""
    return parse(reading.text(path, "a workload card is a page of YAML in UTF-8", LARGEST), str(path))


def parse(words: str, source: str = "card") -> Card:
    """A card from its text.

    Raises:
        BadInput: no YAML, a key given twice, an alias, or a value of the wrong kind; it says where.
    """
    plain = _yaml(words, source)
    if not isinstance(plain, dict) or "workload" not in plain:
        raise BadInput(f"{source}: no workload card: it would have the key 'workload'")
    try:
        card = msgspec.convert(plain, Card, strict=False)
    except msgspec.ValidationError as error:
        raise BadInput(f"{source}: {error}") from None
    if card.workload.model.phase not in PHASES:
        raise BadInput(f"{source}: workload.model.phase is '{card.workload.model.phase}'; {', '.join(PHASES)} would be")
    return card


def text(card: Card) -> str:
    """The card as YAML, what it does not say left out."""
    import yaml

    said = {"workload": {}} | msgspec.to_builtins(card)  # the key that makes it a card
    return str(yaml.safe_dump(said, sort_keys=False, allow_unicode=True))


def find(folder: Path) -> Path | None:
    """The card of a folder of traces, if there is one."""
    for name in NAMES:
        if (folder / name).is_file():
            return folder / name
    some = [path for path in sorted(folder.iterdir()) if path.suffix in (".yaml", ".yml")]
    return some[0] if len(some) == 1 else None


# ------------------------------------------------------------------------------------------------------- YAML


def _yaml(words: str, source: str) -> Any:
    """The document as mappings, lists and words; numbers stay words, for the card knows what should be one."""
    try:
        import yaml
    except ModuleNotFoundError:
        raise BadInput("reading a workload card needs PyYAML: pip install 'assay[observe]'") from None
    try:
        _bounded(yaml.parse(words, Loader=yaml.SafeLoader), source)
        node = yaml.compose(words, Loader=yaml.SafeLoader)
        return None if node is None else _plain(node, source)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{source}:{mark.line + 1}" if mark is not None else source
        said = getattr(error, "problem", None) or "not YAML"
        raise BadInput(f"{where}: {' '.join(str(said).split())}; a workload card is YAML") from None
    except (ValueError, OverflowError) as error:  # an escape beyond Unicode
        raise BadInput(f"{source}: not YAML: {error}") from None


def _bounded(events: Any, source: str) -> None:
    """Refuse, before anything is built, what no card has: aliases (a few lines can stand for gigabytes), deep nests."""
    depth = 0
    for event in events:
        kind = type(event).__name__
        if kind == "AliasEvent":
            raise BadInput(f"{source}:{event.start_mark.line + 1}: an alias; write the value out")
        depth += kind.endswith(("MappingStartEvent", "SequenceStartEvent"))
        depth -= kind.endswith(("MappingEndEvent", "SequenceEndEvent"))
        if depth > DEEPEST:
            raise BadInput(f"{source}:{event.start_mark.line + 1}: nested deeper than {DEEPEST} levels")


def _plain(node: Node, source: str) -> Any:
    """Mappings without what is empty, lists with None for it, words."""
    if node.id == "scalar":
        return None if node.value.strip() in _ABSENT else node.value.strip()
    if node.id == "sequence":
        every = [_plain(item, source) for item in node.value]
        return [] if all(item is None for item in every) else every
    held: dict[str, Any] = {}
    for key, value in node.value:
        word = str(key.value)
        if word in held:
            raise BadInput(f"{source}:{key.start_mark.line + 1}: '{word}' is given twice")
        held[word] = _plain(value, source)
    return {word: value for word, value in held.items() if value is not None}
