"""The process in which a study or a comparison of the workbench runs: requests and answers are lines of JSON.

It calls what the command line calls. Standard output belongs to the answers; whatever a study prints goes to the error
stream. Names of the user's own code are refused here, unless it was started for just that.
"""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Mapping
from functools import cache
from typing import Any, BinaryIO

import msgspec

from assay.record import machine
from assay.record.errors import AssayError, BadInput, Interrupted, StoreFailed, unreadable
from assay.record.pool import Crew, Task
from assay.sim import own_code

MEMORY = 8 << 30  # bytes for a process with code of one's own
OFTEN = 0.1  # seconds between two words on progress


class Teller:
    """Writes events."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._last = 0.0

    def say(self, event: str, **facts: Any) -> None:
        """One line."""
        self._stream.write(msgspec.json.encode({"event": event, **facts}) + b"\n")
        self._stream.flush()

    def progress(self, done: int, total: int) -> None:
        """How many cases of an experiment are done; not more often than anybody could see."""
        now = time.monotonic()
        if done in (0, total) or now - self._last >= OFTEN:
            self._last = now
            self.say("progress", done=done, total=total)

    def finished(self, case: Mapping[str, Any], seconds: float) -> None:
        """A case that has been measured just now."""
        told = ", ".join(f"{name} {value}" for name, value in case.items())
        self.say("case", case=told[:200], seconds=round(seconds, 3))


def main() -> None:
    """Answer requests until nobody asks any more."""
    if os.environ.get(own_code.REFUSE) != "no":
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, resource.RLIM_INFINITY))
    teller = Teller(os.fdopen(os.dup(1), "wb"))
    os.dup2(2, 1)
    for line in sys.stdin.buffer:
        request = msgspec.json.decode(line)
        try:
            answer = _ANSWERS[request["kind"]](request, teller)
        except (Interrupted, KeyboardInterrupt) as error:
            teller.say("stopped", message=str(error) or "cancelled")
        except StoreFailed as error:
            teller.say("failed", message=f"not stored: {error}")
        except AssayError as error:
            teller.say("failed", message=" ".join(str(error).split()))
        except Exception as error:  # a defect of ours: one line here, the rest in the log of who started it
            import traceback

            traceback.print_exc()
            at = traceback.extract_tb(error.__traceback__)[-1]
            teller.say("failed", message=f"{type(error).__name__}: {error} ({at.name}, line {at.lineno})"[:500])
        else:
            teller.say("done", answer=answer)
            if request["kind"] == "describe":
                ready(request["name"])


@cache
def crew() -> Crew:
    """Processes that run policies side by side, kept from question to question."""
    return Crew(machine.facts()["cores"])


def ready(name: str) -> None:
    """What the first question would have to wait for: imports, compiled code, processes."""
    if name == "serving":
        from assay.serving.engine.simulator import warm

        warm()
        tasks = [Task("assay.serving.engine.simulator:warm", {})] * crew().workers
        list(crew().run(tasks))


def run(request: Mapping[str, Any], teller: Teller) -> dict[str, Any]:
    """A paper's study, stored like any other."""
    from assay.observe.bench.children import interruptible
    from assay.record import runner

    with interruptible():
        result = runner.run(
            request["name"], size=request["size"], seeds=request["seeds"], on=request["on"], fresh=request["fresh"],
            progress=teller.progress, finished=teller.finished,
        )  # fmt: skip
    return {"headline": result.headline, "tally": result.tally, "seconds": result.seconds, "resumed": result.resumed}


def compare(request: Mapping[str, Any], teller: Teller) -> dict[str, Any]:
    """A comparison: the answer of `assay compare`, and its pictures."""
    import click

    from assay.web import commands, drawing

    command = _found(request["name"])
    if request["name"] in commands.LINES:
        answer = commands.answered(request["name"], command, list(request["words"]))
        teller.say("table", answer=drawing.plain(answer))
        return {"pictures": drawing.pictures(answer)}
    try:
        context = command.make_context(request["name"], list(request["words"]), obj=teller.progress)
    except click.ClickException as error:
        raise BadInput(error.format_message()) from error
    if os.environ.get(own_code.REFUSE) == "no":
        context.meta["assay.crew"] = crew()
    with context:
        try:
            answer = command.invoke(context)
        except (ValueError, EOFError) as error:
            raise BadInput(str(error)) from error
        except OSError as error:
            raise unreadable(error.filename, error) from error
    teller.say("table", answer=drawing.plain(answer))
    return {"pictures": drawing.pictures(answer, request.get("whole", False))}


def describe(request: Mapping[str, Any], teller: Teller) -> list[dict[str, Any]]:
    """The options of a comparison."""
    from assay.web import options

    return [msgspec.to_builtins(one) for one in options.described(request["name"], _found(request["name"]))]


def _found(name: str) -> Any:
    import click

    from assay.record import comparisons
    from assay.web import commands

    try:
        return commands.found(name) if name in commands.LINES else comparisons.found(name)
    except click.ClickException as error:
        raise BadInput(error.format_message()) from error


_ANSWERS = {"run": run, "compare": compare, "describe": describe}

if __name__ == "__main__":
    main()
