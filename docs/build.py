"""Write the pages of the documentation's site below `.cache/docs`: `make docs` then turns them into HTML.

Pages under `docs/` are taken as they are. Three kinds are made here: every command with its help and the real output of
its examples, run beside a copy of `examples/`; the plots of results in the store; and the public names of each room.

    python docs/build.py            # all
    python docs/build.py --no-runs  # commands without their output, in seconds
"""

from __future__ import annotations

import ast
import html
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import click

from assay.cli.main import assay
from assay.record import catalogue, store
from assay.record.site.drawing import plain_svg
from assay.record.types import ROOMS

ROOT = Path(__file__).parents[1]
PAGES = ROOT / ".cache" / "docs"
ELSEWHERE = ("web", "gateway", "engine", "top", "watch", "protocol maelstrom", "bench compare", "bench run",
             "bench watch", "data vault audit", "data vault get", "data vault grant", "data vault open",
             "data vault rm", "data plane consume", "data plane serve")  # fmt: skip
"""Their examples need what a page cannot have: they run until they are stopped, or need a repository or what another
command made."""
LONGEST = 60  # lines of output on a page
FAILED = "failed: "
DRAWN = ("lmetric", "nccl-model", "div", "safecloud", "radius-fps", "perf-decomp")  # quick, and with a plot


def main(runs: bool) -> None:
    """All pages."""
    shutil.rmtree(PAGES, ignore_errors=True)
    (PAGES / "api").mkdir(parents=True)
    for path in (ROOT / "docs").glob("*.md"):
        (PAGES / path.name).write_text(linked(path.read_text(), path.parent))
    for name, page in (("README", "index"), ("CONTRIBUTING", "contributing"), ("CHANGELOG", "changelog")):
        (PAGES / f"{page}.md").write_text(linked((ROOT / f"{name}.md").read_text(), ROOT))
    shutil.copy(ROOT / "docs" / "assay.css", PAGES)
    shutil.copytree(ROOT / "docs" / "workbench", PAGES / "workbench")
    (PAGES / "commands.md").write_text(commands(runs))
    if runs:
        measure()
    (PAGES / "gallery.md").write_text(gallery())
    for room in ROOMS:
        if (stub := ROOT / "src" / "assay" / room / "__init__.pyi").exists():
            (PAGES / "api" / f"{room}.md").write_text(names(room, stub))


def linked(text: str, folder: Path) -> str:
    """A page with its links to other pages as they are on the site; a link to any other file becomes plain code."""
    pages = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}

    def one(found: re.Match[str]) -> str:
        label, target = found[1], found[2]
        if re.match(r"https?:|#|mailto:", target):
            return found[0]
        name, _, anchor = target.partition("#")
        path = (folder / name).resolve()
        if path.parent == ROOT / "docs" and path.suffix == ".md":
            return f"[{label}]({path.name}{'#' + anchor if anchor else ''})"
        return f"[{label}]({pages[path.name]})" if path.name in pages and path.parent == ROOT else f"{label} (`{name}`)"

    return re.sub(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)", one, text)


def leaves(group: click.Group, path: str = "assay") -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, with what is typed to get there."""
    context = click.Context(group, info_name=path)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group) and name != "compare":
            yield from leaves(command, f"{path} {name}")
        elif isinstance(command, click.Group):
            yield from ((f"{path} compare {key}", part) for key in command.list_commands(context)
                        if (part := command.get_command(context, key)) is not None)  # fmt: skip
        elif command is not None:
            yield f"{path} {name}", command


def examples(command: click.Command) -> list[str]:
    """The command lines in a command's epilog: they stand apart by two spaces, or by a semicolon."""
    said = re.split(r"\s{2,}|;\s", command.epilog or "")
    return [part.strip() for part in said if part.strip().startswith(("assay ", "eval "))]


def commands(runs: bool) -> str:
    """Every command: its help, then its examples with what they really print."""
    found = list(leaves(assay))
    printed = all_outputs([(path, line) for path, command in found for line in run_here(path, command)]) if runs else {}
    told = (
        "The examples ran beside a copy of `examples/`, several at a time: seconds in them are those of a busy machine."
    )
    parts = [f"# Commands\n\n{told} Long outputs are cut.\n"]
    for path, command in found:
        text = command.get_help(click.Context(command, info_name=path))
        parts.append(f"## {path}\n\n{block(text)}")
        for line in run_here(path, command) if runs else []:
            said = printed[path, line]
            parts.append(f"```sh\n{line}\n```\n" + (f"\n{block(said)}" if said.strip() else ""))
    return "\n".join(parts)


def run_here(path: str, command: click.Command) -> list[str]:
    """The examples of a command that a page shows with their output."""
    return [] if path.removeprefix("assay ") in ELSEWHERE else examples(command)


def all_outputs(lines: list[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """What every line prints. Those of one family of commands (`assay data vec`) run in their order, families side by
    side; all that fail are told, since an example that fails teaches the wrong thing."""
    families: dict[str, list[tuple[str, str]]] = {}
    for path, line in lines:
        families.setdefault(" ".join(path.split()[:3]), []).append((path, line))
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
        shutil.copytree(ROOT / "examples", Path(folder) / "examples")
        environment = os.environ | {"ASSAY_HOME": f"{folder}/home", "COLUMNS": "110", "NO_COLOR": "1"}
        environment.setdefault("NUMBA_CACHE_DIR", str(ROOT / ".cache" / "numba"))  # the next build compiles nothing

        def family(members: list[tuple[str, str]]) -> dict[tuple[str, str], str]:
            return {(path, line): output(line, Path(folder), environment) for path, line in members}

        told = {key: said for part in pool.map(family, families.values()) for key, said in part.items()}
    if failed := [said for said in told.values() if said.startswith(FAILED)]:
        sys.exit("\n".join([*failed, f"{len(failed)} of {len(told)} examples failed"]))
    return told


def block(text: str) -> str:
    """Text as it is on a screen, cut to what a page can carry."""
    lines = text.rstrip().splitlines()
    shown = lines[:LONGEST] + ([f"… {len(lines) - LONGEST} more lines"] if len(lines) > LONGEST else [])
    return "<pre><code>" + html.escape("\n".join(shown)).replace("*", "&#42;").replace("_", "&#95;") + "</code></pre>\n"


def output(line: str, folder: Path, environment: dict[str, str]) -> str:
    """What a command line prints, or a text that begins with FAILED."""
    shell = f'assay() {{ "{sys.executable}" -m assay.cli.main "$@"; }}; {line}'
    began = time.monotonic()
    try:
        done = subprocess.run(
            ["bash", "-c", shell], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"{FAILED}'{line}' takes more than 10 minutes"
    print(f"{time.monotonic() - began:6.1f} s  {line}", file=sys.stderr, flush=True)
    if done.returncode not in (0, 1) or "Traceback" in done.stderr:  # 1: a check that failed is an answer
        return f"{FAILED}'{line}' ended with {done.returncode}: {done.stderr.strip()[-2000:]}"
    return done.stdout or done.stderr


def measure() -> None:
    """One study of each room of which none has run here, so that a fresh clone's gallery has something of each."""
    have = {paper.room for key, paper in catalogue.papers().items() if store.latest(key)}
    for key in DRAWN:
        if catalogue.paper(key).room not in have:
            said = output(f"assay run {key}", ROOT, dict(os.environ))
            if said.startswith(FAILED):
                sys.exit(said)


def gallery() -> str:
    """The plot of every result in the store, and what its study found."""
    parts = ["# Gallery\n\nWhat each study drew when it last ran here. `make report` runs all of them.\n"]
    for key, paper in catalogue.papers().items():
        newest = store.latest(key)
        if newest is None or not (drawing := newest[0].with_suffix(".svg")).exists():
            continue
        verdicts = ", ".join(f"{count} {verdict}" for verdict, count in newest[1].tally.items())
        # Inside the page and not beside it: only there its letters take the page's colour, light or dark.
        plot = plain_svg(drawing.read_text(), f"The plot of {key}", prefix=f"{key}-")
        parts.append(f"## {key}\n\n{paper.line} *{verdicts}.*\n\n<figure>{plot}</figure>\n" if plot else "")
    if len(parts) == 1:
        parts.append("No result is stored here yet: `make report` runs every study once.\n")
    return "\n".join(parts)


def names(room: str, stub: Path) -> str:
    """The public names of a room, each with its docstring."""
    parts = [f"# assay.{room}\n\n```python\nfrom assay.{room} import …\n```\n"]
    for node in ast.parse(stub.read_bytes()).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            parts += [_name(place(node.module, alias.name), alias.asname or alias.name) for alias in node.names]
    return "\n".join(parts)


def place(module: str, name: str) -> str:
    """Where a name is written down: the site is made from sources, and a paper may hand names on when asked only."""
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    written = set()
    for node in ast.parse(Path(spec.origin).read_bytes()).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            written |= {alias.asname or alias.name for alias in node.names}
        else:
            written |= {getattr(part, "id", None) for part in getattr(node, "targets", [getattr(node, "target", None)])}
            written.add(getattr(node, "name", None))
    if name in written:
        return f"{module}.{name}"
    return f"{getattr(importlib.import_module(module), name).__module__}.{name}"


def _name(path: str, public: str) -> str:
    """A docstring under the name by which it is imported."""
    return f"::: {path}\n    options:\n      heading: {public}\n      toc_label: {public}\n"


if __name__ == "__main__":
    main(runs="--no-runs" not in sys.argv)
