"""Layered configuration: later wins, nobody's home in it, and one line for whatever is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.observe.bench import config as bench_config
from assay.record.errors import BadInput

BENCHMARK = '[benchmark.b]\ncall = "m:f"\n'


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        (folder / f"{name}.toml").write_text(text)
    return folder / f"{list(files)[-1]}.toml"


def test_a_benchmark_takes_two_lines(tmp_path: Path) -> None:
    config = bench_config.load(write(tmp_path, bench=BENCHMARK))
    assert config.benchmark["b"].call == "m:f"


def test_layers_merge_from_base_to_user(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        base='path = ["a"]\nrounds = 3\n[env]\nX = "base"\nY = "base"\n' + BENCHMARK,
        model='extends = "base.toml"\n[benchmark.b]\nargs = [1]\n',
        machine='extends = "model.toml"\npath = ["b"]\n[env]\nX = "machine"\n',
        user='extends = "machine.toml"\nrounds = 7\n[benchmark.b]\nargs = [2]\n',
    )
    config = bench_config.load(path)
    assert (config.path, config.rounds, config.env) == (["a", "b"], 7, {"X": "machine", "Y": "base"})
    assert config.benchmark["b"].args == [1, 2]


def test_a_list_is_replaced_only_when_asked_for(tmp_path: Path) -> None:
    path = write(
        tmp_path, base='path = ["a"]\n' + BENCHMARK, user='extends = "base.toml"\npath = { replace = ["z"] }\n'
    )
    assert bench_config.load(path).path == ["z"]
    alone = write(tmp_path, alone="path = { replace = ['q'] }\n" + BENCHMARK)
    assert bench_config.load(alone).path == ["q"]


def test_several_files_may_be_extended_and_the_last_wins(tmp_path: Path) -> None:
    path = write(tmp_path, a="rounds = 2\n" + BENCHMARK, b="rounds = 4\n", user='extends = ["a.toml", "b.toml"]\n')
    assert bench_config.load(path).rounds == 4


def test_two_users_in_two_places_resolve_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = set()
    for person in ("ada", "bob"):
        folder = tmp_path / person / "checkout"
        folder.mkdir(parents=True)
        monkeypatch.setenv("HOME", str(tmp_path / person))
        digests.add(bench_config.load(write(folder, base=BENCHMARK, user='extends = "base.toml"\nrounds = 4\n')).digest)
    assert len(digests) == 1


def test_the_digest_follows_the_meaning_not_the_writing(tmp_path: Path) -> None:
    one = bench_config.load(write(tmp_path, one="rounds = 4\nsample = 0.01\n" + BENCHMARK))
    two = bench_config.load(write(tmp_path, two="sample = 0.01 # a comment\nrounds = 4\n" + BENCHMARK))
    other = bench_config.load(write(tmp_path, other="sample = 0.02\nrounds = 4\n" + BENCHMARK))
    assert one.digest == two.digest != other.digest


@pytest.mark.parametrize(
    "line",
    ['path = ["/home/ada/lib"]', 'python = "~/venv/bin/python"', 'env = { P = "$HOME/x" }', 'store = "/Users/ada/b"',
     'prepare = [["cp", "/root/x", "."]]', 'env = { LD = "/opt:/home/ada/lib" }'],
)  # fmt: skip
def test_a_path_into_a_home_is_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(BadInput, match="somebody's home"):
        bench_config.load(write(tmp_path, bench=f"{line}\n{BENCHMARK}"))


@pytest.mark.parametrize("line", ['path = ["homework/lib"]', 'env = { A = "a~b" }', 'store = "results/home"'])
def test_other_paths_are_not(tmp_path: Path, line: str) -> None:
    assert bench_config.load(write(tmp_path, bench=f"{line}\n{BENCHMARK}")).benchmark


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no benchmark"),
        ("[benchmark.b]\n", "one of 'call' and 'command'"),
        ('[benchmark.b]\ncall = "m:f"\ncommand = ["x"]\n', "one of 'call' and 'command'"),
        ('[benchmark.b]\ncall = "m"\n', "not 'package.module:function'"),
        ('[benchmark.b]\ncal = "m:f"\n', "unknown field `cal`"),
        ('[benchmark."a b"]\ncall = "m:f"\n', "a name is made of"),
        ("[benchmark.b]\ncommand = []\n", "a command is a list of words"),
        ("rounds = 'x'\n" + BENCHMARK, "rounds"),
        ("false_alarms = 0.7\n" + BENCHMARK, "between 0 and 0.5"),
        ("sample = -1.0\n" + BENCHMARK, "sample must be a positive number"),
        ("metric = 'moon'\n" + BENCHMARK, "wall, cpu"),
        ("pairs = 3\n" + BENCHMARK, "pairs 5 to 400"),
        ("extends = 3\n" + BENCHMARK, "'extends' must be a file name"),
        ('extends = "nowhere.toml"\n' + BENCHMARK, "cannot read"),
        ("rounds = \n", "line 1"),
        ('[benchmark.b]\ncall = "m:f"\n[benchmark.c]\ncall = 5\n', "benchmark.c: Expected `str | null`, got `int`"),
        ('[benchmark.b]\ncal = "m:f"\n', "there are call, command, setup"),
        ('[benchmark.b]\ncall = "m:f"\nargs = [2024-01-01]\n', "no dates"),
        ('[benchmark.b]\ncall = "m:f"\ntimeout = 0\n', "timeout must be a positive number"),
        ('[benchmark.b]\ncommand = ["a\\u0000b"]\n', "NUL"),
        ('env = { "A=B" = "x" }\n' + BENCHMARK, "'A=B' is no name of a variable"),
        ("prepare = [[]]\n" + BENCHMARK, "each a list of words"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(BadInput) as caught:
        bench_config.load(write(tmp_path, bench=text))
    line = str(caught.value)
    assert says in line and ".toml" in line and "\n" not in line


def test_files_that_extend_one_another_in_a_circle_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, a='extends = "b.toml"\n', b='extends = "a.toml"\n')
    with pytest.raises(BadInput, match="circle"):
        bench_config.load(path)


@given(st.binary(max_size=200))
@settings(max_examples=150, deadline=None)
def test_no_bytes_bring_a_traceback(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "bench.toml"
    path.write_bytes(content + b"\n" + BENCHMARK.encode())
    try:
        assert bench_config.load(path).benchmark
    except BadInput as error:
        assert str(error)
