"""The house stays in order: where a paper's code lies, what a room's top level holds, who may import whom."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

import assay
from assay.record import catalogue
from assay.record.types import ROOMS

SOURCE = Path(assay.__file__).parent
PAPERS = {(paper.room, paper.key.replace("-", "_")) for paper in catalogue.papers().values()}
LOWER = {"sim": {"record"}, "workloads": {"record", "sim"}, "record": set()}  # and every room may lean on all three
LOWER |= {room: {"record", "sim", "workloads"} for room in ROOMS}
LOWER |= {"live": set(LOWER)}
LOWER |= {"web": set(LOWER)}  # the command line starts it and stands above it


@cache
def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name below `assay`."""
    found = {}
    for path in SOURCE.rglob("*.py"):
        if SOURCE / "examples" in path.parents:  # programs for users to change, of which nobody imports another
            continue
        parts = path.relative_to(SOURCE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports() -> dict[str, set[str]]:
    """Who imports whom, at any depth of the source."""
    found: dict[str, set[str]] = defaultdict(set)
    known = set(modules())
    for name, path in modules().items():
        for node in ast.walk(ast.parse(path.read_bytes())):
            named = []
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "assay":
                named = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                named = [alias.name for alias in node.names]
            if named:  # most nodes are no imports
                found[name] |= {n.removeprefix("assay.") for n in named} & known - {name}
    return found


def paper_of(module: str) -> tuple[str, str] | None:
    """The paper whose file or folder a module lies in."""
    parts = tuple(module.split(".")[:2])
    return parts if len(parts) == 2 and parts in PAPERS else None


def owners() -> dict[str, set[str]]:
    """For every module that is in no paper: who imports it, papers by name, other modules as themselves."""
    users: dict[str, set[str]] = defaultdict(set)
    for user, used in imports().items():
        for module in used:
            paper = paper_of(user)
            users[module].add(".".join(paper) if paper else user)
    return users


def test_a_room_holds_its_papers_its_interface_its_comparison_and_folders() -> None:
    strays = [
        f"{room}/{path.name}"
        for room in ROOMS
        for path in (SOURCE / room).glob("*.py")
        if (room, path.stem) not in PAPERS and path.stem not in ("__init__", "interface", "compare")
    ]
    assert strays == []


def test_what_only_one_paper_imports_lies_in_its_folder() -> None:
    users = owners()
    strays = {
        module: found
        for module, found in users.items()
        if "." in module and paper_of(module) is None and module.split(".")[0] in ROOMS and len(found) == 1
        for user in found
        if tuple(user.split(".")) in PAPERS and modules()[module].name != "__init__.py"
    }
    assert strays == {}


def test_nobody_outside_imports_a_papers_own_modules() -> None:
    crossed = [
        f"{user} imports {module}"
        for user, used in imports().items()
        for module in used
        if paper_of(module) and module.count(".") > 1 and paper_of(user) != paper_of(module)
    ]
    assert crossed == []


@pytest.mark.parametrize("room", ["serving"])
def test_benchmarks_of_a_room_import_its_public_names_and_papers(room: str) -> None:
    """A script that reaches into an engine stops working when the engine changes, and nobody notices."""
    crossed = []
    for path in (SOURCE.parents[1] / "benchmarks").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"assay.{room}."):
                module = (node.module or "").removeprefix("assay.")
                if paper_of(module) is None or module.count(".") > 1:
                    crossed.append(f"{path.name} imports {node.module}")
            elif isinstance(node, ast.ImportFrom) and node.module == f"assay.{room}":
                public = set(importlib.import_module(node.module).__all__)
                known = {name for place, name in PAPERS if place == room} | public
                crossed += [f"{path.name} imports {a.name}" for a in node.names if a.name not in known]
    assert crossed == []


def test_no_paper_imports_another_and_no_engine_imports_a_paper() -> None:
    crossed = [
        f"{user} imports {module}"
        for user, used in imports().items()
        for module in used
        if paper_of(module) and user.split(".")[0] in ROOMS and paper_of(user) != paper_of(module)
    ]
    assert crossed == []


def test_dependencies_point_one_way() -> None:
    crossed = [
        f"{user} imports {module}"
        for user, used in imports().items()
        for module in used
        if (room := user.split(".")[0]) in LOWER and module.split(".")[0] not in {room, *LOWER[room]}
    ]
    assert crossed == []


def test_a_papers_function_does_not_hide_one_of_its_modules() -> None:
    """`assay.room.key.steps` would be the function or the module, whichever was there last."""
    hidden = []
    for path in SOURCE.rglob("__init__.py"):
        beside = {other.stem for other in path.parent.glob("*.py")}
        nodes = (node for node in ast.parse(path.read_bytes()).body if isinstance(node, ast.FunctionDef | ast.ClassDef))
        hidden += [f"{path.relative_to(SOURCE)}: {node.name}" for node in nodes if node.name in beside]
    assert hidden == []


@pytest.mark.parametrize("room", ["serving", "protocols", "observe", "kernels", "data"])
def test_a_rooms_public_names_are_there_and_importing_the_room_imports_none_of_them(room: str) -> None:
    script = (
        f"import sys, assay.{room} as room; light = 'numba' not in sys.modules and 'polars' not in sys.modules; "
        f"assert light; assert len(room.__all__) >= 2; [getattr(room, name) for name in room.__all__]"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


OF_A_CHECKOUT = re.compile(
    r"(?<![\w/.])(benchmarks|docs|tests|deploy)/\w|`make \w|'make \w|constraints\.txt|the Makefile"
)


def messages(path: Path) -> dict[int, str]:
    """The strings of a module by line, but for docstrings, of which only those of commands are printed (as help)."""
    tree = ast.parse(path.read_bytes())
    owners = [node for node in ast.walk(tree) if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)]
    silent = {
        id(owner.body[0].value)
        for owner in owners
        if owner.body and isinstance(owner.body[0], ast.Expr)
        if not any(re.search("command|group", ast.dump(mark)) for mark in getattr(owner, "decorator_list", []))
    }
    strings = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return {node.lineno: node.value for node in strings if id(node) not in silent}


def test_messages_name_only_what_an_installed_user_has() -> None:
    """Who installed a wheel has no benchmarks, no docs, no Makefile; the doctor alone looks whether there are some."""
    odd = [
        f"{name}, line {line}: {message}"
        for name, path in modules().items()
        for line, message in messages(path).items()
        if OF_A_CHECKOUT.search(message) and not message.startswith("# Written by ") and name != "record.extras"
    ]
    assert odd == []
