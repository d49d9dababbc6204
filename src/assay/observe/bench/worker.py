"""The process that runs a benchmark's function: started in a checkout, asked line by line, answers in JSON lines.

It needs nothing but the standard library, for it runs with the interpreter of the code under test, as a copy in a
folder of its own, so that no file beside it can be imported by mistake. What that code prints goes to the error
stream, so that it cannot be taken for an answer.

The first line is the job: `{"root", "path", "call", "setup", "args"}`. The answer to it is `{"ready": file}` or
`{"error": line}`. Then each line is a number of calls to make, answered with `{"wall", "cpu"}` seconds; an empty line
ends it. With `--calls N` it makes N calls and ends: what an instruction counter runs. Before them it leaves a child
behind that ends at once, and names it (`before`): its count is that of the start.
"""

from __future__ import annotations

# ruff: noqa: PTH110, PTH118 - `pathlib` and `typing` would be half of what a counted process does
import gc
import importlib
import json
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def load(job: dict[str, Any]) -> tuple[Callable[..., Any], list[Any], str]:
    """The function of the checkout, its arguments, and the file it came from."""
    root = os.path.realpath(job["root"])
    os.chdir(root)
    sys.path[0:1] = [os.path.join(root, part) for part in job["path"]]
    function, file = _find(job["call"], root)
    arguments = list(job["args"])
    if job["setup"]:
        arguments.insert(0, _find(job["setup"], root)[0]())
    _nothing_installed(root, job["path"])
    return function, arguments, file


def _find(reference: str, root: str) -> tuple[Callable[..., Any], str]:
    module_name, _, name = reference.partition(":")
    module = importlib.import_module(module_name)
    file = os.path.realpath(getattr(module, "__file__", None) or "")
    if not file.startswith(root + os.sep):
        raise ImportError(f"{module_name} came from {file or 'the interpreter'}, not from the checkout")
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part)
    if not callable(found):
        raise TypeError(f"{reference} cannot be called")
    return found, file


def _nothing_installed(root: str, path: list[str]) -> None:
    """Refuse a package that the checkout holds but an installed copy answered for: both sides would be the same."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if "." in name or not file or os.path.realpath(file).startswith(root + os.sep):
            continue
        for part in path:
            if os.path.exists(os.path.join(root, part, name, "__init__.py")):
                raise ImportError(f"{name} came from {file}, though the checkout has it in {os.path.join(part, name)}")


def timed(function: Callable[..., Any], arguments: list[Any], calls: int) -> dict[str, float]:
    """Seconds of so many calls."""
    turns = range(calls)
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in turns:
        function(*arguments)
    return {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}


def left_behind() -> int:
    """A child that ended at once: a counter that follows forks gives it all that was counted so far."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    return child


def _line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:400]


def main() -> int:
    """Serve one benchmark."""
    orders, answers = os.fdopen(os.dup(0), "r"), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)

    def answer(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    try:
        function, arguments, file = load(json.loads(orders.readline()))
        gc.collect()
        gc.freeze()  # what importing left behind is not walked again and again while the clock runs
        if sys.argv[1:2] == ["--calls"]:
            before = left_behind()
            timed(function, arguments, int(sys.argv[2]))
            answer({"ready": file, "before": before})
            os._exit(0)  # what an interpreter does to end would be counted with the calls
        answer({"ready": file})
        while calls := orders.readline().strip():
            answer(timed(function, arguments, int(calls)))
    except BaseException as error:  # whatever the user's code raises, `SystemExit` too, is the answer
        answer({"error": _line(error)})
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
