"""The catalogue: every paper of `papers.toml`, and which of them are built.

Reading it imports no paper and none of the heavy libraries, so that `assay list` answers at once.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import inspect
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from assay.record.errors import BadInput
from assay.record.extras import missing_module
from assay.record.types import EFFECTS, PRINTED, ROOMS, UNITS, Claim, Evidence, Kind, Paper, Stated, Study

PAPERS = Path(__file__).with_name("papers.toml")
RENAMED = Path(__file__).with_name("renamed.toml")
_PACKAGE = Path(__file__).parents[1]


@cache
def papers() -> dict[str, Paper]:
    """Every paper of the record by key, in the record's order.

    >>> papers()["div"].room
    'protocols'
    """
    try:
        entries = tomllib.loads(PAPERS.read_text(encoding="utf-8")).get("paper", [])
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise BadInput(f"{PAPERS}: {error}") from error
    found: dict[str, Paper] = {}
    for position, entry in enumerate(entries, 1):
        paper = _paper(entry, f"{PAPERS.name}, entry {position}")
        if paper.key in found:
            raise BadInput(f"{PAPERS.name}, entry {position}: the key '{paper.key}' is taken; keys are unique")
        found[paper.key] = paper
    return found


def _paper(entry: dict[str, Any], where: str) -> Paper:
    for name in ("key", "room", "title", "line"):
        if not isinstance(entry.get(name), str) or not entry[name].strip():
            raise BadInput(f"{where}: '{name}' must be a non-empty string")
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", entry["key"]):
        raise BadInput(f"{where}: the key '{entry['key']}' must be lower-case words joined by dashes")
    if entry["room"] not in ROOMS:
        raise BadInput(f"{where}: '{entry['room']}' is no room; the rooms are {', '.join(ROOMS)}")
    claims = tuple(_stated(claim, f"{where} ({entry['key']})") for claim in entry.get("claims", []))
    if len({claim.id for claim in claims}) < len(claims):
        raise BadInput(f"{where} ({entry['key']}): two claims have the same id")
    return Paper(entry["key"], entry["room"], entry["title"], entry.get("arxiv"), entry["line"], claims)


def _stated(claim: Any, where: str) -> Stated:
    shape = f'{where}: a claim is {{ id = "…", kind = "…", value = 1.5, text = "A sentence." }}'
    if not isinstance(claim, dict) or not all(isinstance(claim.get(name), str) for name in ("id", "kind", "text")):
        raise BadInput(f"{shape}; the value may be left out")
    value = claim.get("value")
    if not isinstance(value, int | float | None):
        raise BadInput(f"{shape}; the value is a number")
    where = f"{where}: claim '{claim['id']}'"
    if unknown := set(claim) - {"id", "kind", "value", "unit", "toward", "over", "text", "exceeds"}:
        raise BadInput(f"{where}: unknown {', '.join(sorted(unknown))}")
    if claim["kind"] not in list(Kind):
        raise BadInput(f"{where}: '{claim['kind']}' is no kind; the kinds are {', '.join(Kind)}")
    sentence = Stated(
        claim["id"], claim["text"], Kind(claim["kind"]), None if value is None else float(value),
        claim.get("unit", ""), claim.get("toward", ""), claim.get("over", ""), claim.get("exceeds", ""),
    )  # fmt: skip
    if wrong := malformed(sentence):
        raise BadInput(f"{where}: {wrong}")
    return sentence


def malformed(sentence: Stated) -> str:
    """What keeps a sentence from being judged; empty if nothing does.

    >>> malformed(Stated("ttft", "TTFT falls.", Kind.CHANGE))
    'it has no value, so toward must say up or down'
    """
    if sentence.toward not in ("", "up", "down") or sentence.over not in ("", "best", "worst"):
        return "toward is up or down, over is best or worst"
    if not sentence.text.endswith("."):
        return "its text must be a whole sentence, with a full stop"
    if sentence.exceeds and (sentence.kind not in PRINTED or sentence.value is None):
        return f"exceeds goes with a printed number of kind {', '.join(PRINTED)}"
    if sentence.exceeds and not str(sentence.exceeds).endswith("."):
        return "exceeds must be a whole sentence, with a full stop"
    if not sentence.measured_in and sentence.value is not None:
        return f"say its unit; only {', '.join(UNITS)} bring one"
    if sentence.kind in EFFECTS and sentence.value is None and not sentence.toward:
        return "it has no value, so toward must say up or down"
    needs = sentence.kind not in (*EFFECTS, Kind.EVERY, Kind.UNCHANGED)
    return f"a claim of kind '{sentence.kind}' needs a value" if needs and sentence.value is None else ""


@cache
def renamed() -> dict[str, dict[str, str]]:
    """By paper, the ids of sentences that older results hold in other words."""
    return tomllib.loads(RENAMED.read_text(encoding="utf-8"))


def paper(key: str) -> Paper:
    """The paper with this key, or an error that names the closest ones."""
    known = papers()
    if key in known:
        return known[key]
    close = difflib.get_close_matches(key.lower().replace("_", "-"), known, n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(close)}?" if close else "'assay list' shows every key"
    raise BadInput(f"no paper has the key '{key}'; {hint}")


def is_built(paper: Paper) -> bool:
    """Whether the paper's module exists; nothing is imported to find out.

    >>> is_built(papers()["div"])
    True
    """
    return _file(paper) is not None


def _file(paper: Paper) -> Path | None:
    """The paper's module: a file of its own, or a folder's `__init__.py`."""
    base = _PACKAGE / paper.room / paper.key.replace("-", "_")
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


def comparisons(room: str) -> dict[str, str]:
    """The papers of a room that bring a comparison on the user's own input, and the module of its command.

    >>> comparisons("kernels")["radius-fps"]
    'assay.kernels.radius_fps.compare'
    """
    folders = {key: _PACKAGE / paper.room / key.replace("-", "_") for key, paper in papers().items()}
    return {
        key: f"{paper.module}.compare"
        for key, paper in papers().items()
        if paper.room == room and (folders[key] / "compare.py").is_file()
    }


def verbs(room: str) -> dict[str, tuple[str, ...]]:
    """The commands `assay ROOM VERB` and their modules, found by the files that hold them; nothing is imported.

    A file of the room's folder `commands/` is a verb of the room, one of a paper's is a verb that the paper brings. One
    that several bring is a group, and has all their subcommands.

    >>> verbs("data")["crash"]
    ('assay.data.commands.crash',)
    """
    homes = [room, *(f"{room}/{p.key.replace('-', '_')}" for p in papers().values() if p.room == room)]
    found: dict[str, tuple[str, ...]] = {}
    for home in homes:
        for path in sorted((_PACKAGE / home / "commands").glob("*.py")):
            if path.stem != "__init__":
                name, module = path.stem.replace("_", "-"), f"assay.{home.replace('/', '.')}.commands.{path.stem}"
                found[name] = (*found.get(name, ()), module)
    return found


@cache
def offers(key: str) -> frozenset[str]:
    """The kinds of component that a paper's module declares, read off its source: nothing is imported.

    >>> sorted(offers("lmetric")), sorted(offers("div"))
    (['router'], [])
    """
    value = _assigned(key, "offers")
    keys = value.keys if isinstance(value, ast.Dict) else []
    return frozenset(str(k.value) for k in keys if isinstance(k, ast.Constant))


@cache
def declared(key: str, name: str) -> tuple[str, ...]:
    """The words of a tuple that a paper's module declares, read off its source; empty where it declares none.

    >>> declared("lmetric", "replays"), declared("div", "needs")
    (('mooncake-conversation',), ())
    """
    value = _assigned(key, name)
    return () if value is None else tuple(ast.literal_eval(value))


def _assigned(key: str, name: str) -> ast.expr | None:
    """What a paper's module assigns to a name at its top level."""
    path = _file(paper(key))
    for node in ast.parse(path.read_bytes()).body if path else ():
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return node.value
    return None


@dataclass(frozen=True, slots=True)
class About:
    """What a paper's module says of itself in plain words."""

    idea: str = ""
    example: str = ""
    own_input: str = ""
    use_when: str = ""
    avoid_when: str = ""
    references: tuple[str, ...] = ()


@cache
def about(key: str) -> About:
    """What a paper's module says of itself, read off its source: a page that only shows it imports nothing.

    >>> about("div").idea == study("div").idea, about("div").use_when == study("div").use_when
    (True, True)
    """
    path = _file(paper(key))
    if path is None:
        return About()
    idea, prompt, example = (ast.get_docstring(ast.parse(path.read_bytes())) or "").partition(">>> ")
    said = {name: _assigned(key, name) for name in ("own_input", "use_when", "avoid_when", "references")}
    told = {name: ast.literal_eval(value) for name, value in said.items() if value is not None}
    told["references"] = tuple(told.get("references", ()))
    return About(idea.strip(), prompt + example, **told)


def offering(kind: str, room: str) -> list[str]:
    """The keys of a room's papers whose component is of a kind.

    >>> offering("order", "serving")
    ['driftsched']
    """
    return [key for key, paper in papers().items() if paper.room == room and kind in offers(key)]


def component(kind: str, key: str) -> Any:
    """A fresh component of a paper.

    >>> component("router", "lmetric").key
    'lmetric'
    """
    entry = paper(key)
    try:
        return importlib.import_module(entry.module).offers[kind]()
    except ModuleNotFoundError as error:
        raise BadInput(missing_module(key, error)) from error


def study(key: str) -> Study:
    """Import a built paper's module and read its study.

    >>> study("div").evidence
    <Evidence.REAL: 'real'>
    """
    entry = paper(key)
    if not is_built(entry):
        built = [p.key for p in papers().values() if is_built(p)]
        raise BadInput(f"'{key}' is in the record but not built yet; built: {', '.join(built)}")
    try:
        return _read_study(entry, importlib.import_module(entry.module))
    except ModuleNotFoundError as error:
        raise BadInput(missing_module(key, error)) from error


def _read_study(entry: Paper, module: ModuleType) -> Study:
    for name in ("study", "claims", "evidence"):
        if not hasattr(module, name):
            raise BadInput(f"{entry.module} has no '{name}'; a paper's module declares study, claims and evidence")
    claims = tuple(module.claims)
    _check_claims(entry, claims)
    idea, prompt, example = inspect.cleandoc(module.__doc__ or "").partition(">>> ")
    return Study(
        paper=entry,
        run=module.study,
        claims=claims,
        evidence=Evidence(module.evidence),
        plot=getattr(module, "plot", None),
        idea=idea.strip(),
        example=prompt + example,
        own_input=getattr(module, "own_input", ""),
        use_when=getattr(module, "use_when", ""),
        avoid_when=getattr(module, "avoid_when", ""),
        references=tuple(getattr(module, "references", ())),
        trust=getattr(module, "trust", ""),
    )


def _check_claims(entry: Paper, claims: tuple[Claim, ...]) -> None:
    """Every sentence of the entry is answered, once, and every other claim is a question that can be judged."""
    ids = [claim.id for claim in claims]
    stated = {sentence.id: sentence for sentence in entry.claims}
    for sentence in stated.values():
        if sentence.id not in ids:
            close = difflib.get_close_matches(sentence.id, ids, n=1, cutoff=0.3)
            hint = f" (closest: '{close[0]}')" if close else ""
            raise BadInput(f"{entry.module} does not answer the claim '{sentence.id}' of papers.toml{hint}")
    for claim in claims:
        where = f"{entry.module}: claim '{claim.id}'"
        if ids.count(claim.id) > 1:
            raise BadInput(f"{where} stands there twice")
        if claim.id in stated and claim.asks:
            raise BadInput(f"{where} is the paper's; only a question of our own asks anything")
        if claim.id not in stated and claim.question is None:
            raise BadInput(f"{where} is not in papers.toml; a question of our own needs 'asks' and 'kind'")
        if claim.question and (wrong := malformed(claim.question)):
            raise BadInput(f"{where}: {wrong}")
