"""What to measure: `bench.toml`, in layers.

A file may extend others (`extends = "machine.toml"`, or a list): base → model → machine → user. What comes later
wins; tables merge key by key; lists append, unless the later one says `{ replace = [...] }`. A new benchmark takes two
lines:

    [benchmark.simulate]
    call = "network.simulation:run"

The resolved configuration is plain data, the same for everybody: a path into somebody's home is refused, and its
digest is stored with every run, so that two results are known to have been asked for in the same way.

>>> merge({"path": ["src"], "env": {"A": "1"}}, {"path": ["lib"], "env": {"B": "2"}})
{'path': ['src', 'lib'], 'env': {'A': '1', 'B': '2'}}
>>> merge({"path": ["src"]}, {"path": {"replace": ["lib"]}})
{'path': ['lib']}
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from assay.record import reading
from assay.record.errors import BadInput

T = TypeVar("T", bound=msgspec.Struct)
DEEPEST = 16  # files in a chain
LARGEST = 1_000_000  # bytes of one file
_HOME = re.compile(r"(^|[\s=:\"'(])(~[\w.-]*(/|$)|/root(/|$)|/home/[^/\s]|/Users/[^/\s])|\$\{?HOME\b|%USERPROFILE%")


class Benchmark(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One thing to measure: a Python function of the checkout, or a command run in it."""

    call: str | None = None
    """`package.module:function`; called with what `setup` returned, then `args`."""
    command: list[str] | None = None
    """A program with its arguments; its whole run is the measurement."""
    setup: str | None = None
    """`package.module:function`, called once before the clock runs."""
    args: list[Any] = []
    metric: str | None = None
    """`wall` or `cpu` seconds; the configuration's own unless given."""
    timeout: float | None = None


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A resolved configuration: the benchmarks, and how they are run and judged."""

    benchmark: dict[str, Benchmark] = {}
    path: list[str] = []
    """Folders of the checkout that Python imports from; `.` and `src` always are."""
    prepare: list[list[str]] = []
    """Commands run once in each checkout beforehand: what a build needs."""
    env: dict[str, str] = {}
    python: str = ""
    """The interpreter; the one that runs assay unless given."""
    metric: str = "wall"
    min_change: float = 0.01
    """The smallest change worth an alarm."""
    false_alarms: float = 0.01
    """The probability that a comparison of equal code ends in an alarm, over all its benchmarks together."""
    sample: float = 0.001
    """Seconds of one timed piece of work of a `call`."""
    rounds: int = 30
    """How often base and head take turns within one pair of processes."""
    pairs: int = 60
    """How many pairs of processes at most."""
    seconds: float = 120.0
    """Time for one benchmark of a comparison."""
    timeout: float = 60.0
    """Seconds after which a process that does not answer has failed."""
    instructions: str = "auto"
    """Count instructions: `always`, `never`, or `auto`, where time alone cannot decide."""
    store: str = "bench-history"
    """The folder of the history, from where the configuration lies."""

    @property
    def digest(self) -> str:
        """What identifies it."""
        return hashlib.blake2b(canonical(self), digest_size=10).hexdigest()


def canonical(config: Config) -> bytes:
    """The configuration as bytes that do not depend on the order in which it was written."""
    return msgspec.json.encode(config, order="deterministic")


def load(path: Path) -> Config:
    """Read a configuration and all it extends; `BadInput` names the file and the field that is wrong."""
    tables = resolve(path)
    named = tables.get("benchmark")
    for name, table in named.items() if isinstance(named, dict) else ():
        _converted(f"{path}: benchmark.{name}", table, Benchmark)  # msgspec's own words do not say which of them
    config = _converted(str(path), tables, Config)
    _check(path, config)
    return config


def _converted(where: str, tables: Any, kind: type[T]) -> T:
    try:
        return msgspec.convert(tables, kind)
    except msgspec.ValidationError as error:
        said = str(error).replace("`$.", "`").removesuffix(" - at `$`")
        known = f"; there are {', '.join(kind.__struct_fields__)}" if "unknown field" in said else ""
        raise BadInput(f"{where}: {said}{known}") from None


def resolve(path: Path) -> dict[str, Any]:
    """The tables of a file on top of those it extends, `extends` itself and `{ replace = … }` gone."""
    settled: dict[str, Any] = _settled(_layers(Path(path), ()))
    return settled


def _layers(path: Path, above: tuple[Path, ...]) -> dict[str, Any]:
    here = path.resolve()
    if here in above:
        chain = " → ".join(file.name for file in (*above[above.index(here) :], here))
        raise BadInput(f"{path}: the files extend one another in a circle: {chain}")
    if len(above) >= DEEPEST:
        raise BadInput(f"{path}: more than {DEEPEST} files extend one another")
    own = _read(path)
    extends = own.pop("extends", [])
    names = [extends] if isinstance(extends, str) else extends
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadInput(f"{path}: 'extends' must be a file name or a list of them")
    tables: dict[str, Any] = {}
    for name in names:
        tables = merge(tables, _layers(path.parent / name, (*above, here)))
    return merge(tables, own)


def _read(path: Path) -> dict[str, Any]:
    return reading.toml(path, "'assay bench --help' shows what to write", LARGEST)


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """`above` laid over `below`: it wins, tables merge, lists append unless it says `{ replace = [...] }`."""
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        if _replaces(value):
            merged[key] = value["replace"]
        elif isinstance(old, Mapping) and isinstance(value, Mapping):
            merged[key] = merge(old, value)
        elif isinstance(old, list) and isinstance(value, list):
            merged[key] = [*old, *value]
        else:
            merged[key] = value
    return merged


def _replaces(value: Any) -> bool:
    return isinstance(value, Mapping) and list(value) == ["replace"] and isinstance(value["replace"], list)


def _settled(value: Any) -> Any:
    """Without the `replace` of lists that had nothing below them to replace."""
    if _replaces(value):
        return value["replace"]
    if isinstance(value, Mapping):
        return {key: _settled(inner) for key, inner in value.items()}
    return value


def _check(path: Path, config: Config) -> None:
    for field, text in _strings(msgspec.to_builtins(config), ""):
        if _HOME.search(text):
            raise BadInput(f"{path}: {field} = '{text}' leads into somebody's home: give a path within the repository")
        if "\0" in text or "\0" in field:
            raise BadInput(f"{path}: {field!r} holds a NUL character, which no program can be given")
    if not config.benchmark:
        raise BadInput(f'{path}: no benchmark; a new one is: [benchmark.NAME] and call = "package.module:function"')
    for name, benchmark in config.benchmark.items():
        where = f"{path}: benchmark.{name}"
        if not re.fullmatch(r"[\w.+\[\]=,-]{1,100}", name):
            raise BadInput(f"{where}: a name is made of letters, digits and ._+-=,[]")
        if (benchmark.call is None) == (benchmark.command is None):
            raise BadInput(f"{where}: give one of 'call' and 'command'")
        for reference in (benchmark.call, benchmark.setup):
            if reference is not None and not re.fullmatch(r"[\w.]+:[\w.]+", reference):
                raise BadInput(f"{where}: '{reference}' is not 'package.module:function'")
        if benchmark.command is not None and (not benchmark.command or benchmark.setup or benchmark.args):
            raise BadInput(f"{where}: a command is a list of words, and has neither 'setup' nor 'args'")
        if not _is_json(benchmark.args):
            raise BadInput(f"{where}: args must be texts, numbers, booleans, lists and tables of them; no dates")
        _among(where, "metric", config.metric if benchmark.metric is None else benchmark.metric, ("wall", "cpu"))
        _positive(where, timeout=config.timeout if benchmark.timeout is None else benchmark.timeout)
    if not all(config.prepare):
        raise BadInput(f'{path}: prepare is a list of commands, each a list of words: [["make", "-s"]]')
    if bad := [name for name in config.env if not name or "=" in name]:
        raise BadInput(f"{path}: env: '{bad[0]}' is no name of a variable")
    _among(str(path), "instructions", config.instructions, ("always", "never", "auto"))
    _positive(str(path), sample=config.sample, seconds=config.seconds, min_change=config.min_change)
    if not 0 < config.false_alarms < 0.5:
        raise BadInput(f"{path}: false_alarms must be between 0 and 0.5, not {config.false_alarms:g}")
    if config.rounds < 1 or not 5 <= config.pairs <= 400:
        raise BadInput(f"{path}: rounds must be 1 or more and pairs 5 to 400, not {config.rounds} and {config.pairs}")


def _among(where: str, field: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise BadInput(f"{where}: {field} must be one of {', '.join(allowed)}, not '{value}'")


def _positive(where: str, **fields: float) -> None:
    for field, value in fields.items():
        if not 0 < value < 1e6:
            raise BadInput(f"{where}: {field} must be a positive number, not {value:g}")


def _is_json(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_json, value.values()))
    return all(map(_is_json, value)) if isinstance(value, list) else isinstance(value, str | int | float)


def _strings(value: Any, field: str) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield field, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _strings(inner, f"{field}.{key}".lstrip("."))
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner, field)
