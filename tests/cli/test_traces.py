"""`assay traces`: what is published, and what a file holds; whatever is wrong is one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import SOURCE, Package
from tests.workloads import request_fixtures as fx


class Here(Package):
    """The sources where they lie, so that what is compiled once stays compiled; nothing is written beside them."""

    def environment(self, **more: str) -> dict[str, str]:
        return super().environment(**more) | {"ASSAY_HOME": os.environ["ASSAY_HOME"]}


@pytest.fixture
def package() -> Package:
    return Here(SOURCE.parent)


def test_the_list_says_what_is_at_hand(package: Package, tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    fx.put(folder, fx.FILES["vidur"], "vidur_splitwise_conv.csv")
    rows = package.json("traces", ASSAY_TRACES=str(folder))
    assert {"name", "file", "format", "what", "published", "licence", "path"} <= set(rows[0])
    assert [row["name"] for row in rows if row["path"]] == ["vidur-splitwise-conv"]
    shown = package.assay("traces", ASSAY_TRACES=str(folder)).stdout
    assert f"1 of {len(rows)} at hand" in shown
    assert package.json("traces", "vidur-splitwise-conv", ASSAY_TRACES=str(folder))["requests"] == 2


@pytest.mark.parametrize("arguments", [["traces", "--help"], ["traces"], ["traces", "--json"]])
def test_the_list_imports_nothing_heavy(package: Package, arguments: list[str]) -> None:
    code = (
        "import sys; sys.argv = ['assay', *sys.argv[1:]]\n"
        "from assay.cli.main import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "print([n for n in ('numba', 'polars', 'numpy', 'scipy', 'altair') if n in sys.modules], file=sys.stderr)"
    )
    command = [sys.executable, "-c", code, *arguments]
    ran = subprocess.run(command, env=package.environment(), capture_output=True, text=True, check=True)
    assert ran.stderr.strip() == "[]"


def test_a_file_is_described(package: Package, tmp_path: Path) -> None:
    file = fx.put(tmp_path, fx.FILES["mooncake"])
    about = package.json("traces", str(file))
    assert (about["source"]["format"], about["source"]["read"], about["requests"]) == ("mooncake", 4, 4)
    assert about["infinite_cache_hit"] == pytest.approx(0.4)
    assert about["prompt"]["max"] == 1600
    shown = package.assay("traces", str(file), "--dejitter", "--plot", str(tmp_path / "p.svg")).stdout
    for words in (
        "4 read, 4 used, 0 refused",
        "blocks of 512 tokens",
        "40.0% of prompt blocks",
        "inferred from prefixes",
    ):
        assert words in shown
    assert (tmp_path / "p.svg").read_text().startswith("<svg")


def test_labels_and_refusals_are_shown(package: Package, tmp_path: Path) -> None:
    shown = package.assay("traces", str(fx.put(tmp_path, fx.FILES["burstgpt"]))).stdout
    for words in ("3 read, 2 used, 1 refused", "no output tokens (failures)", "ChatGPT 1", "API log 1"):
        assert words in shown


@pytest.mark.parametrize(
    ("content", "options", "says"),
    [
        (b"", [], "is empty"),
        (
            fx.FILES["mooncake"].replace(b"1500", b'"x"'),
            [],
            "trace.txt line 2: input_length is 'x'; expected a whole number",
        ),
        (fx.FILES["vidur"], ["--format", "xml"], "unknown format 'xml'"),
        (fx.FILES["vidur"], ["--plot", "x.gif"], "cannot draw to 'x.gif'"),
        (fx.FILES["vidur"], ["--limit", "0"], "--limit"),
    ],
)
def test_what_is_wrong_is_one_line(
    package: Package, tmp_path: Path, content: bytes, options: list[str], says: str
) -> None:
    ran = package.assay("traces", str(fx.put(tmp_path, content)), *options, code=2)
    assert ran.stderr.startswith("assay: ")
    assert len(ran.stderr.splitlines()) == 1
    assert says in ran.stderr


def test_bad_rows_can_be_skipped(package: Package, tmp_path: Path) -> None:
    file = fx.put(tmp_path, fx.FILES["mooncake"].replace(b"1500", b'"x"'))
    assert package.json("traces", str(file), "--skip-bad")["source"]["refused"] == 1


def test_a_name_nobody_knows(package: Package) -> None:
    assert "traces by name: mooncake-conversation" in package.assay("traces", "nothing", code=2).stderr
