"""The study answers every claim; the commands work on files of one's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from assay.cli.data import command
from assay.data.safecloud import audits, compare, damage, dedup, earnings, reuse, trees
from assay.record.errors import BadInput
from assay.record.runner import run
from assay.record.types import Verdict


@pytest.mark.slow
def test_the_study_answers_every_claim() -> None:
    result = run("safecloud", seeds=(3, 17, 99))
    verdicts = {claim.id: claim.verdict for claim in result.claims}
    assert Verdict.NOT_MEASURED not in verdicts.values()
    reproduced = {"subtree", "granted", "verify", "audits", "owner-notices", "spot-catches", "honest", "reuse"}
    reproduced |= {"cheating-costs"}
    assert {name for name, verdict in verdicts.items() if verdict is Verdict.REPRODUCED} >= reproduced
    assert {verdicts[name] for name in ("dedup", "prefix-fooled", "cheating-pays")} == {Verdict.NOT_REPRODUCED}


def test_measurements_count_what_they_say() -> None:
    assert trees(12, 3, ranges=4, seed=5) == {"ranges": 4, "agreed": 4, "contained": 4}
    assert damage("flip", 5, seed=1) == {"tries": 5, "owner": 5, "keyless": 5}
    assert reuse(2, seed=1) == {"tries": 2, "paper": 2, "here": 0}
    stored = {(row["design"], row["repeat"]): round(row["stored"], 3) for row in dedup(4, seed=2).values()}
    assert stored["safecloud", "again, same places"] == 1.0
    assert stored["safecloud", "within the file"] == 2.0
    assert stored["safecloud, by content", "again, one chunk on"] == 1.0
    assert audits("honest", 0.0, challenges=3, seed=1)["spot"]["convicted"] == 0
    blind = earnings("keeps 32 bytes", 1.0, "prefix", days=1, seed=1)
    assert (blind["caught"], blind["lost"], blind["sum"]) == (0.0, False, 0)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_bytes(b"0123456789" * 30_000)
    (tmp_path / "empty").write_bytes(b"")
    return tmp_path


def assay(*words: str, code: int = 0) -> str:
    done = CliRunner().invoke(command, ["vault", *words])
    assert done.exit_code == code, done.output
    return done.output


def test_a_vault_from_the_command_line(here: Path) -> None:
    store = ("--store", f"file://{here}/store")
    mine = (*store, "--key", "my.key")
    assay("key", "--out", "my.key")
    assert (here / "my.key").stat().st_mode & 0o077 == 0
    assay("put", "notes.txt", "empty", *mine)
    rows = json.loads(assay("ls", *mine, "--json"))["table"]
    assert [(row["path"], row["bytes"]) for row in rows] == [("empty", 0), ("notes.txt", 300_000)]
    assay("get", "notes.txt", *mine, "--out", "back.txt")
    assert (here / "back.txt").read_bytes() == (here / "notes.txt").read_bytes()
    assay("grant", "notes.txt", *mine, "--span", "270000:270015", "--out", "grant.json")
    assay("open", "grant.json", *store, "--out", "part.txt")
    assert (here / "part.txt").read_bytes() == b"012345678901234"
    assert "every chunk is there" in assay("audit", *store)
    chunk = next(path for path in (here / "store" / "chunks").rglob("*") if path.is_file())
    chunk.write_bytes(b"x" + chunk.read_bytes()[1:])
    assert "its bytes have changed" in assay("audit", *store, code=1)
    assay("rm", "notes.txt", *mine)
    assert json.loads(assay("ls", *mine, "--json"))["vault"] == {"files": 1}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("put", "notes.txt", "--store", "mem://", "--key", "none.key"), "make one with"),
        (("get", "notes.txt", "--store", "mem://", "--key", "my.key", "--out", "x"), "has no 'notes.txt'"),
        (("get", "a", "--store", "mem://", "--key", "my.key", "--out", "x", "--span", "9:1"), "write START:END"),
        (("open", "notes.txt", "--store", "mem://", "--out", "x"), "no capability"),
        (("key", "--out", "my.key"), "never overwritten"),
        (("audit", "--store", "mem://"), "holds no vault"),
    ],
)
def test_bad_input_is_told_in_a_line(here: Path, words: tuple[str, ...], told: str) -> None:
    (here / "my.key").write_bytes(bytes(32))
    done = CliRunner().invoke(command, ["vault", *words])
    assert isinstance(done.exception, BadInput)
    assert told in str(done.exception)


def test_designs_side_by_side_on_a_file(here: Path) -> None:
    options = {"path": here / "notes.txt", "chunk": 4096, "rounds": 1}
    assert compare.command.callback is not None
    rows = {row["design"]: row for row in compare.command.callback(**options)["table"]}
    assert rows["safecloud"]["opened_beyond"] == 0 < rows["one key a file"]["opened_beyond"]
    assert rows["safecloud"]["handed"] < rows["a table of keys"]["handed"]
    with pytest.raises(BadInput, match="cannot read"):
        compare.command.callback(**options | {"path": here / "nowhere"})
