"""The catalogue: every paper of `papers.toml`, and which of them are built.

Reading it imports no paper and none of the heavy libraries, so that `assay list` answers at once.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import re
import tomllib
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from assay.record.errors import BadInput
from assay.record.extras import missing_module
from assay.record.types import ROOMS, Evidence, Paper, Stated, Study

PAPERS = Path(__file__).with_name("papers.toml")
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
    claims = []
    for claim in entry.get("claims", []):
        text, value = claim.get("text"), claim.get("value")
        if not isinstance(text, str) or not isinstance(value, int | float | None):
            raise BadInput(f'{where}: a claim is {{ text = "…", value = 1.5 }}, the value may be left out')
        claims.append(Stated(text, None if value is None else float(value)))
    return Paper(entry["key"], entry["room"], entry["title"], entry.get("arxiv"), entry["line"], tuple(claims))


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
    return (_PACKAGE / paper.room / f"{paper.key.replace('-', '_')}.py").is_file()


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
    texts = [claim.text for claim in claims]
    for stated in entry.claims:
        if stated.text not in texts:
            close = difflib.get_close_matches(stated.text, texts, n=1, cutoff=0.3)
            hint = f" (closest: '{close[0]}')" if close else ""
            raise BadInput(f"{entry.module} does not answer the claim '{stated.text}' of papers.toml{hint}")
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
    )
