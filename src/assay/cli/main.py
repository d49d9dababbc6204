"""`assay`: the entry point. Commands are imported when they are named, so that the rest costs nothing."""

from __future__ import annotations

import codecs
import difflib
import importlib
import io
import itertools
import os
import re
import sys
import warnings
from pathlib import Path
from typing import Any

import click

from assay import __version__
from assay.record.errors import AssayError

COMMANDS = (
    "demo", "web", "list", "show", "run", "record", "compare", "plan", "recover", "partreper", "gateway", "engine",
    "top", "calibrate", "protocol", "check", "verify", "dedup", "data", "watch", "hang", "trace", "traces", "decompose",
    "bench", "machine", "feed", "examples", "doctor", "completion",
)  # fmt: skip


class Lazy(click.Group):
    """A group whose commands live in modules of their own: `<package>.<name>` holds `command`."""

    def __init__(self, *, package: str, names: tuple[str, ...], **settings: Any) -> None:
        super().__init__(**settings)
        self.package, self.names = package, names

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order a newcomer needs them."""
        return list(self.names)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import the command's module."""
        if name not in self.names:
            return None
        found: click.Command = importlib.import_module(f"{self.package}.{name}").command
        return found


@click.group(
    cls=Lazy,
    package="assay.cli",
    names=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Start with:  assay list --built    assay run div    assay record --html report",
)
@click.version_option(__version__, prog_name="assay")
def assay() -> None:
    """Run the distributed-computing literature on your own workload, and use what wins."""


def main() -> None:
    """Run the command line. Exit codes: 0 fine, 1 the check failed, 2 bad input, 130 interrupted."""
    warnings.showwarning = _warn
    _spell_out_signs()
    try:
        code = assay.main(prog_name="assay", standalone_mode=False)
        sys.stdout.flush()
    except click.exceptions.Exit as end:
        code = end.exit_code
    except click.exceptions.NoArgsIsHelpError as error:  # a bare `assay` or `assay compare`: show what there is
        click.echo(error.format_message(), err=True)
        code = 2
    except click.UsageError as error:
        words = itertools.takewhile(lambda word: not word.startswith("-"), sys.argv[1:])  # click forgets at times
        where = error.ctx.command_path if error.ctx else " ".join(["assay", *words])
        code = _say(f"{error.format_message().rstrip('.?')}{_meant(error)}; see '{where} --help'", 2)
    except click.ClickException as error:
        code = _say(error.format_message(), 2)
    except AssayError as error:
        code = _say(str(error), error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        code = _say("interrupted", 130)
    except BrokenPipeError:  # the reader (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except OSError as error:
        name = f" {error.filename}" if error.filename else ""
        code = _say(f"{error.strerror or error}{name}", 1)
    sys.exit(code if isinstance(code, int) else 0)


def _meant(error: click.UsageError) -> str:
    """The commands that a word which is none comes closest to; click itself does so for all that it has loaded."""
    found = re.fullmatch(r"No such command '(.+?)'\.?", error.format_message())
    if found is None or error.ctx is None or not isinstance(error.ctx.command, click.Group):
        return ""
    close = difflib.get_close_matches(found[1], error.ctx.command.list_commands(error.ctx), n=3, cutoff=0.6)
    return f"; did you mean {' or '.join(close)}?" if close else ""


_SPELLED = {
    "…": "...", "–": "-", "—": "-", "−": "-", "×": "x", "·": ".", "✓": "+", "✗": "x", "’": "'", "→": "->", "←": "<-",
    "≤": "<=", "≥": ">=", "²": "^2", "µ": "u", "█": "#",
}  # fmt: skip


def _spell_out_signs() -> None:
    """On a terminal that knows only ASCII or Latin-1, write signs as letters instead of dying at the first one."""

    def spelled(error: UnicodeError) -> tuple[str, int]:
        if not isinstance(error, UnicodeEncodeError):
            raise error
        return "".join(_SPELLED.get(sign, "?") for sign in error.object[error.start : error.end]), error.end

    codecs.register_error("spelled", spelled)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and not stream.encoding.lower().startswith("utf"):
            stream.reconfigure(errors="spelled")


def _say(line: str, code: int) -> int:
    cure = ""
    if code == 2 and "examples/" in line and not Path("examples").exists():
        cure = "; 'assay examples examples' writes the files that shown commands name"
    print(f"assay: {' '.join(line.split())}{cure}", file=sys.stderr)
    return code


def _warn(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    if category.__module__.startswith("assay"):  # the libraries' own warnings are not for the user
        _say(f"warning: {message}", 0)


if __name__ == "__main__":
    main()
