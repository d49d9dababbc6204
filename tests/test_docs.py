"""The documentation: pages that link to what is there, and examples that can be told from their surroundings."""

from __future__ import annotations

import re
import runpy
import shlex
from collections import Counter
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.fixture(scope="module")
def build() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "docs" / "build.py"), run_name="build")


def anchors(text: str) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_link_of_a_page_leads_to_a_file_and_a_heading(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"https?:|mailto:", target):
            continue
        name, _, anchor = target.partition("#")
        path = page.parent / name if name else page
        assert path.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(path.read_text()), f"{page.name} links to {target}"


def test_links_between_pages_are_those_of_the_site(build: dict[str, Any]) -> None:
    text = "[a](docs/serving.md#x) [b](CONTRIBUTING.md) [c](LICENSE) [d](https://x.org) ![e](p.svg)"
    found = build["linked"](text, ROOT)
    assert found == "[a](serving.md#x) [b](contributing.md) c (`LICENSE`) [d](https://x.org) ![e](p.svg)"


def test_every_command_has_an_example_and_its_examples_are_found(build: dict[str, Any]) -> None:
    command = click.Command("x", epilog="Examples:  assay run div    or    assay run --json;  assay list  (all)")
    assert build["examples"](command) == ["assay run div", "assay run --json", "assay list"]
    lines = {path: build["examples"](leaf) for path, leaf in build["leaves"](build["assay"])}
    without = [path for path, found in lines.items() if not found and path.count(" ") == 1]
    assert without == []
    assert len(lines) > 25


def shown_examples(build: dict[str, Any]) -> list[str]:
    found = build["leaves"](build["assay"])
    return [line for path, leaf in found for line in build["run_here"](path, leaf) if line.startswith("assay ")]


def test_examples_name_files_as_they_are_found_from_the_top_of_a_clone(build: dict[str, Any]) -> None:
    kinds = {path.suffix for path in (ROOT / "examples").iterdir()} - {""}
    written, odd = ("--out", "--plot", "--html", "examples/state.safetensors"), []
    for line in shown_examples(build):
        for before, word in pairwise(shlex.split(line)):
            if word.startswith("examples/"):
                odd += [] if list(ROOT.glob(word.split(":")[0])) else [f"{line}: no {word}"]
            elif Path(word).suffix in kinds and before not in written and "fitted:" not in word:
                odd.append(f"{line}: is {word} in examples/?")
    assert odd == []


def test_examples_are_understood_by_their_commands(build: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """All but running them: an option that was renamed, a choice that went, a file that is not there."""
    monkeypatch.chdir(ROOT)
    for line in shown_examples(build):
        words, command, name = shlex.split(line)[1:], build["assay"], "assay"
        context = click.Context(command, info_name=name)
        try:
            while isinstance(command, click.Group):
                name, command, words = command.resolve_command(context, words)
            command.make_context(name, list(words), parent=context)
        except click.ClickException as error:
            pytest.fail(f"{line}: {error.format_message()}")


def test_every_example_that_fails_is_told(build: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    lines = [("assay a", "echo one"), ("assay b", "exit 3"), ("assay a", "cat nosuch; exit 2"), ("assay c", "exit 1")]
    with pytest.raises(SystemExit) as end:
        build["all_outputs"](lines)
    assert "'exit 3' ended with 3" in str(end.value) and "nosuch" in str(end.value)
    assert str(end.value).endswith("2 of 4 examples failed")
    assert "s  echo one" in capsys.readouterr().err
    assert build["all_outputs"](lines[:1]) == {("assay a", "echo one"): "one\n"}


def test_output_on_a_page_is_escaped_and_cut(build: dict[str, Any]) -> None:
    assert build["block"]("<b> *x*") == "<pre><code>&lt;b&gt; &#42;x&#42;</code></pre>\n"
    assert build["block"]("\n".join("x" * 100)).endswith("… 40 more lines</code></pre>\n")


def test_the_public_names_of_a_room_are_listed(build: dict[str, Any]) -> None:
    page = build["names"]("serving", ROOT / "src" / "assay" / "serving" / "__init__.pyi")
    assert "::: assay.serving.engine.simulator.simulate" in page
    hang = build["names"]("observe", ROOT / "src" / "assay" / "observe" / "__init__.pyi")
    assert "::: assay.observe.ccl.dumps.diagnose\n    options:\n      heading: diagnose_hang\n" in hang


def test_a_public_name_that_a_paper_hands_on_when_asked_is_found_where_it_is_written(build: dict[str, Any]) -> None:
    pytest.importorskip("torch")
    assert build["place"]("assay.training.shardtensor", "check") == "assay.training.shardtensor.check"
    for stub in sorted((ROOT / "src" / "assay").glob("*/__init__.pyi")):
        for path in re.findall(r"^::: (\S+)$", build["names"](stub.parent.name, stub), re.MULTILINE):
            module, _, name = path.rpartition(".")
            assert build["place"](module, name) == path


def test_plots_stand_in_the_page_where_they_take_its_colour(
    build: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawing = tmp_path / "div.json"
    drawing.with_suffix(".svg").write_text('<svg xmlns="http://www.w3.org/2000/svg"><g id="a"/></svg>')
    newest = SimpleNamespace(tally={"reproduced": 2})
    monkeypatch.setattr(build["store"], "latest", lambda key: (drawing, newest) if key == "div" else None)
    page = build["gallery"]()
    assert page.count("<svg") == 1 and 'id="div-a"' in page and "*2 reproduced.*" in page


def test_the_readme_counts_what_is_built(build: dict[str, Any]) -> None:
    papers = build["catalogue"].papers()
    rooms = Counter(paper.room for paper in papers.values() if build["catalogue"].is_built(paper))
    words = {"kernels": "kernels", "serving": "of LLM serving", "observe": "of observability"}
    text = " ".join((ROOT / "README.md").read_text().split())
    assert f"{len(papers)} papers are in the record" in text and f"{rooms.total()} are built so far" in text
    for room, count in rooms.items():
        assert f"{count} {words.get(room, f'of {room}')}" in text


def test_the_gallery_of_a_fresh_clone_has_a_study_of_each_room(build: dict[str, Any]) -> None:
    built = {paper.room for paper in build["catalogue"].papers().values() if build["catalogue"].is_built(paper)}
    assert {build["catalogue"].paper(key).room for key in build["DRAWN"]} == built
    assert all(build["catalogue"].study(key).plot for key in build["DRAWN"])


def test_examples_of_docstrings_are_code_on_the_site_and_nothing_else_is_changed() -> None:
    pytest.importorskip("griffe")
    shown = runpy.run_path(str(ROOT / "docs" / "docstrings.py"))["shown"]
    text = "Sums.\n\nArgs:\n    x: a number.\n\n>>> f(1)\n[0.0, 1.0]\n>>> g()\n2"
    found = "Sums.\n\nArgs:\n    x: a number.\n\n```pycon\n>>> f(1)\n[0.0, 1.0]\n>>> g()\n2\n```\n"
    assert shown(text) == found
    assert shown("No example, `code` and 2 * 3 * 4.") == "No example, `code` and 2 * 3 * 4."
