"""The command line: what it prints, and what it leaves unimported."""

from __future__ import annotations

import json
import subprocess
import sys

import click
import pytest

from assay.cli.compare import printing
from assay.record import catalogue
from assay.record.errors import BadInput
from tests.conftest import Package

HEAVY = ("torch", "numba", "polars", "scipy", "altair", "ray")


def test_list_has_134_rows(package: Package) -> None:
    rows = package.json("list")
    assert len(rows) == 134
    assert len({row["key"] for row in rows}) == 134
    assert len({row["room"] for row in rows}) == 8
    assert {"key", "room", "title", "arxiv", "built"} <= set(rows[0])


def test_list_filters(package: Package) -> None:
    assert {row["room"] for row in package.json("list", "--room", "kernels")} == {"kernels"}
    assert {row["built"] for row in package.json("list", "--built")} == {True}
    assert "134 papers" in package.assay("list").stdout


def test_list_leaves_out_columns_that_would_be_empty_or_the_same_everywhere(package: Package) -> None:
    heads = [package.assay("list", *more).stdout.splitlines()[0].split() for more in ((), ("--built",))]
    assert heads == [["key", "room", "title", "built"], ["key", "room", "title"]]
    assert "none was measured here yet: 'assay run KEY' does" in package.assay("list").stdout


@pytest.mark.parametrize("key", ["edgeserving", "div"])
def test_show_says_behind_each_sentence_what_the_papers_number_is(package: Package, key: str) -> None:
    paper, shown = catalogue.paper(key), package.assay("show", key).stdout
    assert shown.count("•  ") == len(paper.claims)
    assert shown.count("Paper: ") == sum(claim.value is not None for claim in paper.claims)
    assert "At full size, " in shown or key == "edgeserving"


@pytest.mark.parametrize(
    "arguments", [["--help"], ["list"], ["list", "--json"], ["show", "edgeserving"], ["feed", "--help"]]
)
def test_light_commands_import_nothing_heavy(package: Package, arguments: list[str]) -> None:
    code = (
        "import sys; sys.argv = ['assay', *sys.argv[1:]]\n"
        "from assay.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        f"print([name for name in {HEAVY} if name in sys.modules], file=sys.stderr)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, *arguments], env=package.environment(), capture_output=True, text=True, check=True
    )
    assert ran.stderr.strip() == "[]"


def test_every_command_has_help_with_an_example(package: Package) -> None:
    from assay.cli.main import COMMANDS

    for name in COMMANDS:
        assert "Example:" in package.assay(name, "--help").stdout, name


def test_a_bare_group_shows_its_help_in_lines(package: Package) -> None:
    for arguments in ((), ("compare",)):
        shown = package.assay(*arguments, code=2).stderr
        assert shown.startswith("Usage: assay")
        assert len(shown.splitlines()) > 5


def test_show_a_paper_that_is_not_built(package: Package) -> None:
    shown = package.assay("show", "edgeserving").stdout
    assert "Not built yet" in shown
    assert "arXiv:2605.05527" in shown
    assert package.json("show", "edgeserving")["built"] is False


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(package: Package, shell: str) -> None:
    assert "_ASSAY_COMPLETE" in package.assay("completion", shell).stdout


def test_keys_complete(package: Package) -> None:
    completed = package.assay(_ASSAY_COMPLETE="bash_complete", COMP_WORDS="assay run rad", COMP_CWORD="2")
    assert completed.stdout.strip() == "plain,radius-fps"


def test_doctor_names_a_cure_for_all_that_is_missing(package: Package) -> None:
    findings = package.json("doctor")
    names = {finding["name"] for finding in findings}
    assert {"python", "cores", "memory", "gpu", "extra torch", "extra ray", "traces", "store"} <= names
    for finding in findings:
        assert finding["ok"] or (finding["cure"] and finding["enables"]), finding
    assert "python" in package.assay("doctor").stdout


def test_a_reader_that_leaves_early_is_no_error(package: Package) -> None:
    process = package.start("list", "--json")
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(timeout=30) in (0, 1)
    assert process.stderr is not None
    assert "Traceback" not in process.stderr.read()


def test_json_is_all_of_standard_output(with_third: Package) -> None:
    json.loads(with_third.assay("run", "third-paper", "--json").stdout)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["runn"], "No such command 'runn'; did you mean run?; see 'assay --help'"),
        (["bench", "compar"], "Did you mean 'compare'"),
        (["run", "--sed", "3"], "Did you mean '--seeds'"),
        (["compare", "servin"], "no room or paper has the name 'servin'; did you mean serving?"),
        (["traces", "get", "tacoo"], "did you mean taco"),
        (["show", "lmetrik"], "did you mean lmetric"),
    ],
)
def test_a_slip_of_the_hand_gets_a_suggestion(package: Package, words: list[str], meant: str) -> None:
    done = package.assay(*words, code=2)
    assert meant in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_doctor_says_each_cure_once(package: Package) -> None:
    shown = package.assay("doctor").stdout
    assert shown.count("pip install") <= 1


def test_a_terminal_without_unicode_gets_ascii(package: Package) -> None:
    said = package.assay("show", "lmetric", PYTHONIOENCODING="ascii").stdout
    assert said.isascii()
    assert "lmetric . serving . arXiv:2603.15202" in said


def test_a_file_that_ends_too_soon_is_bad_input_and_not_ctrl_d() -> None:
    def ends() -> dict[str, object]:
        raise EOFError("No data left in file")

    command = printing(click.Command("x", callback=ends))
    with pytest.raises(BadInput, match="No data left in file"), command.make_context("x", []) as context:
        command.invoke(context)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("compare", "data"), "data has several comparisons, each with an input of its own; name one: assay compare "),
        (("compare", "data", "--input", "x"), "several comparisons of data take --input; name one: assay compare "),
        (("compare", "serving", "--trace"), "see 'assay compare serving --help'"),
    ],
)
def test_what_is_missing_is_told_with_what_to_type(package: Package, words: tuple[str, ...], said: str) -> None:
    done = package.assay(*words, code=2)
    assert said in done.stderr and len(done.stderr.splitlines()) == 1
