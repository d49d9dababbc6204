"""`assay completion`: the shell's completion script."""

from __future__ import annotations

import click

SHELLS = ("bash", "zsh", "fish")


@click.command(epilog='Example:  eval "$(assay completion bash)"')
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print the completion script of a shell; put it into the shell's start-up file."""
    from click.shell_completion import get_completion_class

    from assay.cli.main import assay

    completer = get_completion_class(shell)
    assert completer is not None
    click.echo(completer(assay, {}, "assay", "_ASSAY_COMPLETE").source())
