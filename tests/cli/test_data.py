"""`assay data`: verbs found by where they lie, answers as tables or JSON, one line where something is wrong."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from assay.cli.compare import command as comparing
from assay.cli.data import command
from assay.data.store.delayed import profile
from assay.record import catalogue
from assay.record.errors import BadInput

VERB = '''"""`assay data shout`: say it louder."""
import click

@click.group(epilog="Example:  assay data shout word hello")
def command():
    """Shout."""

@command.command(epilog="Example:  assay data shout word hello")
@click.argument("what")
def word(what):
    """Say WHAT louder."""
    return {"said": {"word": what.upper()}, "table": [{"letter": a} for a in what], "fails": what == "quiet"}
'''


def told(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(command, list(arguments))
    assert result.exit_code == code, result.output
    return result.output


def test_a_file_in_commands_is_a_verb_of_the_room_or_of_a_paper(package) -> None:  # type: ignore[no-untyped-def]
    folder = package.root / "assay" / "data" / "fold" / "commands"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "shout.py").write_text(VERB)
    assert "say it louder" in package.assay("data", "--help").stdout
    assert package.json("data", "shout", "word", "hi") == {
        "said": {"word": "HI"},
        "table": [{"letter": "h"}, {"letter": "i"}],
    }
    assert "word QUIET" in package.assay("data", "shout", "word", "quiet", code=1).stdout


def test_a_verb_that_several_papers_bring_has_all_their_subcommands(package) -> None:  # type: ignore[no-untyped-def]
    for paper, words in (("fold", "word"), ("navis", "whole")):
        folder = package.root / "assay" / "data" / paper / "commands"
        folder.mkdir(parents=True, exist_ok=True)
        for place in (folder.parent, folder):
            (place / "__init__.py").touch()
        (folder / "shout.py").write_text(VERB.replace("def word(", f"def {words}("))
        (folder.parent / "compare.py").write_text("import click\n\n@click.command()\ndef command():\n    return {}\n")
    assert package.json("data", "shout", "whole", "hi")["said"] == package.json("data", "shout", "word", "hi")["said"]
    told = package.assay("compare", "data", "--job", "shout", code=2)
    assert "several comparisons of data do the job 'shout'; name one: --job fold|navis" in told.stdout + told.stderr


def test_every_verb_has_a_line_and_help_with_an_example() -> None:
    overview = told("--help")
    for verb in catalogue.verbs("data"):
        assert verb in overview
        assert "Example:" in told(verb, "--help")


def test_listing_the_verbs_imports_none_of_them() -> None:
    script = (
        "import sys; from click.testing import CliRunner; from assay.cli.data import command; "
        "CliRunner().invoke(command, ['--help']); assert not [m for m in sys.modules if m.startswith('assay.data.')]"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_a_component_that_keeps_its_rules() -> None:
    answer = json.loads(told("crash", "append-log", "--ops", "6", "--mixes", "3", "--processes", "2", "--json"))
    assert answer["append-log"]["cases_that_broke_a_rule"] == 0
    assert answer["append-log"]["real_processes"] == 2


def test_a_class_of_ones_own_that_breaks_them_and_its_reproducer() -> None:
    name = "tests.data.crash.broken:Plain"
    answer = json.loads(told("crash", name, "--ops", "6", "--mixes", "0", "--json", code=1))
    again = answer["reproducer"]["command"].removeprefix("assay data ").split()
    assert "what was promised is there" in told(*again, code=1)
    assert "Every rule held" in told("crash", name, "--ops", "6", "--at", "0:before")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nonsense"], "no component 'nonsense' can be crashed; "),
        (["math:floor"], "math:floor cannot be made without arguments"),
        (["builtins:list"], "builtins:list cannot be crashed; it needs key, roles, open, work and check"),
        (["append-log", "--at", "x:late"], "'x:late' is no fault"),
    ],
)
def test_what_cannot_be_crashed_is_one_line(arguments: list[str], message: str) -> None:
    result = CliRunner().invoke(command, ["crash", *arguments])
    assert isinstance(result.exception, BadInput)
    assert message in str(result.exception)


def test_probe_keeps_a_profile_that_can_be_used(tmp_path: Path) -> None:
    out = tmp_path / "mine.toml"
    answer = json.loads(told("probe", str(tmp_path / "store"), "--requests", "5", "--out", str(out), "--json"))
    assert answer[str(tmp_path / "store")]["create_only"] == "yes"
    found = profile(str(out))
    assert found.get.median * 1e3 == pytest.approx(answer["table"][0]["median_ms"])
    assert not list((tmp_path / "store").glob("probe/*/*"))


def test_a_damaged_profile_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("get = 3\n")
    with pytest.raises(BadInput, match="is no latency profile"):
        profile(str(tmp_path / "bad.toml"))
    with pytest.raises(BadInput, match="cannot read"):
        profile(str(tmp_path / "none.toml"))


def test_a_job_names_the_paper_that_brings_the_verb() -> None:
    compared = CliRunner().invoke(
        comparing, ["data", "--job", "vault", "--input", "examples/chats.jsonl", "--rounds", "1", "--json"]
    )
    assert compared.exit_code == 0, compared.output
    assert {"safecloud", "one key a file"} <= {row["design"] for row in json.loads(compared.output)["table"]}
    with pytest.raises(BadInput, match=r"does the job 'nothing'; choose from .*ckpt"):
        CliRunner().invoke(comparing, ["data", "--job=nothing"], catch_exceptions=False)
