"""`assay examples`: the small inputs that every shown command runs on, for who has no checkout."""

from __future__ import annotations

from pathlib import Path

import click

import assay
from assay.cli.output import json_option, print_json
from assay.record.errors import BadInput
from assay.record.store import write_whole

SHIPPED = Path(assay.__file__).parent / "examples"


@click.command(epilog="Example:  assay examples examples    assay traces examples/chats.jsonl")
@click.argument("folder", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@json_option
def command(folder: Path, as_json: bool) -> None:
    """Write the example inputs into DIR: traces, graphs, histories, models, jobs; DIR/README.md says what each is.

    Help texts and documentation name them as examples/NAME. A file of yours that differs is not overwritten: then
    nothing is written, and the exit code is 2.
    """
    shipped = sorted(path for path in SHIPPED.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    names = [path.relative_to(SHIPPED) for path in shipped]
    for path, name in zip(shipped, names, strict=True):
        there = folder / name
        if there.exists() and not (there.is_file() and there.read_bytes() == path.read_bytes()):
            raise BadInput(f"{there} is there and differs from the example of this name; name another folder")
    for path, name in zip(shipped, names, strict=True):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        write_whole(folder / name, path.read_bytes())
    if as_json:
        print_json({"folder": str(folder), "files": [str(name) for name in names]})
    else:
        click.echo(f"{len(names)} files in {folder}; {folder / 'README.md'} says what they are")
