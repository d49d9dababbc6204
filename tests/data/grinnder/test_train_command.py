"""`assay data gnn train` on one's own files: a model others read, one line where something is wrong, resumed."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("torch")

from assay.cli.main import assay
from assay.data.grinnder import compare
from assay.data.grinnder.files import read_labels, read_split
from assay.record.errors import BadInput


def files(folder: Path) -> list[str]:
    rng = np.random.default_rng(1)
    (folder / "e.txt").write_text("".join(f"{u} {v}\n" for u, v in rng.integers(0, 90, (400, 2))))
    np.save(folder / "x.npy", rng.normal(size=(100, 6)))  # ten nodes have no edge; double precision
    np.save(folder / "y.npy", rng.integers(-1, 3, 100))
    return ["data", "gnn", "train", f"{folder}/e.txt", "--features", f"{folder}/x.npy", "--labels", f"{folder}/y.npy",
            "--out", f"{folder}/m.npz", "--hidden", "8", "--epochs", "3", "--memory", "4GB"]  # fmt: skip


def told(arguments: list[str]) -> Any:
    done = CliRunner().invoke(assay, [*arguments, "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_a_trained_model_goes_into_inference(tmp_path: Path) -> None:
    answer = told([*files(tmp_path), "--kind", "sage", "--parts", "3", "--undirected"])
    assert answer["graph"]["parts"] == 3 and len(answer["table"]) == 3
    assert answer["table"][-1]["loss"] < answer["table"][0]["loss"]
    assert answer["memory"]["peak_bytes"] is None or answer["memory"]["peak_bytes"] < 4e9
    infer = ["data", "gnn", "infer", f"{tmp_path}/e.txt", "--features", f"{tmp_path}/x.npy", "--memory", "4GB"]
    told([*infer, "--model", f"{tmp_path}/m.npz", "--out", f"{tmp_path}/rows.npy", "--undirected"])
    assert np.load(tmp_path / "rows.npy").shape == (100, 3)
    assert {path.name for path in tmp_path.iterdir()} == {"e.txt", "x.npy", "y.npy", "m.npz", "rows.npy"}


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda f: np.save(f / "x.npy", np.zeros((80, 6))), "one for each of 80 rows"),
        (lambda f: np.save(f / "x.npy", np.zeros((100, 6), int)), "floats of shape"),
        (lambda f: np.save(f / "y.npy", np.full(100, 0.5)), "holds fractions"),
        (lambda f: np.save(f / "y.npy", np.full(100, -1)), "0 training nodes"),
        (lambda f: (f / "y.npy").write_bytes(b"\x93NUMPY"), "y.npy: "),
        (lambda f: (f / "y.npy").unlink(), "no such file"),
        (lambda f: (f / "e.txt").write_text("0 1\n2 x\n"), "line 2: '2 x'"),
        (lambda f: (f / "e.txt").write_text("0 100\n"), "0 to below 100"),
        (lambda f: os.truncate(f / "x.npy", 1000), "header promises"),
    ],
)
def test_bad_input_is_one_line_with_the_cure(tmp_path: Path, spoil: Any, says: str) -> None:
    arguments = files(tmp_path)
    spoil(tmp_path)
    with pytest.raises(BadInput, match=says) as error:
        CliRunner().invoke(assay, arguments, catch_exceptions=False, standalone_mode=False)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "m.npz").exists()


def test_too_little_memory_and_a_place_that_is_not_there_are_told_before_training(tmp_path: Path) -> None:
    for change, says in (
        (["--memory", "1MB"], "the program alone takes"),
        (["--out", f"{tmp_path}/none/m.npz"], "there is no folder"),
        (["--out", f"{tmp_path}/m.onnx"], "written as"),
        (["--kind", "gat", "--hidden", "6"], "6 columns do not divide among 4 heads"),
    ):
        with pytest.raises(BadInput, match=says):
            CliRunner().invoke(assay, [*files(tmp_path), *change], catch_exceptions=False, standalone_mode=False)


def test_a_full_disk_is_one_line_and_the_next_run_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = [*files(tmp_path), "--store", f"{tmp_path}/ckpt"]
    told([*arguments, "--epochs", "2"])
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with monkeypatch.context() as broken:
        broken.setattr("assay.data.grinnder.host.PartRows.write", lambda *_: (_ for _ in ()).throw(full))
        with pytest.raises(BadInput, match=r"no space is left in .*; free some, or let TMPDIR be a larger disk"):
            CliRunner().invoke(assay, arguments, catch_exceptions=False, standalone_mode=False)
    answer = told(arguments)
    assert answer["graph"]["resumed_epochs"] == 2 and len(answer["table"]) == 1


def test_labels_and_splits_as_people_have_them(tmp_path: Path) -> None:
    (tmp_path / "y.csv").write_text("0\n2\nnan\n")
    assert read_labels(tmp_path / "y.csv", 3).tolist() == [0, 2, -1]
    np.save(tmp_path / "y.npy", np.array([[1.0], [np.nan], [0.0]]))
    assert read_labels(tmp_path / "y.npy", 3).tolist() == [1, -1, 0]
    np.save(tmp_path / "s.npy", np.array([2, 0]))
    assert read_split(tmp_path / "s.npy", 3).tolist() == [True, False, True]
    np.save(tmp_path / "b.npy", np.array([True, False, False]))
    assert read_split(tmp_path / "b.npy", 3).tolist() == [True, False, False]
    np.save(tmp_path / "s.npy", np.array([3]))
    with pytest.raises(ValueError, match="numbers from 0 to 2 expected"):
        read_split(tmp_path / "s.npy", 3)


CRASHING = """
import os, sys
import numpy as np
from pathlib import Path
from assay.data import Checkpointer
from assay.data.grinnder import Network, fit

folder, point, store, out = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4]
network = Network("gcn", (6, 8, 3))
saved = Checkpointer(str(folder / store), keep=2)
calls = [0]

def dying(original):
    def call(*given, **named):
        calls[0] += 1
        if calls[0] == abs(point) and point < 0:
            os._exit(137)
        original(*given, **named)
        if calls[0] == point:
            os._exit(137)
    return call

if point:
    saved.save = dying(saved.save)
edges = np.load(folder / "e.npy")
fit(network, lambda: iter([edges]), folder / "x.npy", np.load(folder / "y.npy"), memory=1 << 27, epochs=4, parts=2,
    checkpoints=saved)
np.savez(folder / out, **{name: value.numpy() for name, value in network.state_dict().items()})
"""


@pytest.mark.slow  # a process for each point; resuming in one process is the quick twin
def test_a_killed_training_ends_with_the_same_parameters(tmp_path: Path) -> None:
    """Killed just before and just after each epoch is saved: what was spilled is gone, and nothing else is."""
    import assay as package

    rng = np.random.default_rng(4)
    np.save(tmp_path / "e.npy", rng.integers(0, 50, (300, 2)))
    np.save(tmp_path / "x.npy", rng.normal(size=(50, 6)).astype(np.float32))
    np.save(tmp_path / "y.npy", rng.integers(0, 3, 50))
    place = os.environ | {"PYTHONPATH": str(Path(package.__file__).parents[1])}

    def run(point: int, store: str, out: str) -> int:
        command = [sys.executable, "-c", CRASHING, str(tmp_path), str(point), store, out]
        return subprocess.run(command, env=place, capture_output=True).returncode

    assert run(0, "whole", "right.npz") == 0
    right = np.load(tmp_path / "right.npz")
    for turn, point in enumerate((-1, 1, -3, 3)):
        assert run(point, f"killed{turn}", "never.npz") == 137
        assert run(0, f"killed{turn}", "again.npz") == 0
        again = np.load(tmp_path / "again.npz")
        assert all(np.array_equal(again[name], right[name]) for name in right), point


def test_ways_to_train_side_by_side_on_ones_own_graph(tmp_path: Path) -> None:
    files(tmp_path)
    given = {
        "edges": tmp_path / "e.txt", "features": None, "labels": None, "kind": "gcn", "hidden": 8, "layers": 3,
        "memory": "64MB", "parts": 3, "rounds": 1, "undirected": False,
    }  # fmt: skip
    done = CliRunner().invoke(
        assay, ["compare", "data", "--job", "grinnder", "--input", f"{tmp_path}/e.txt", "--parts", "3", "--rounds", "1",
                "--memory", "64MB", "--hidden", "8", "--json"], catch_exceptions=False,
    )  # fmt: skip
    answer = json.loads(done.stdout)
    assert {row["method"] for row in answer["table"]} == {"grinnder", "snapshot", "mmap", "in-memory"}
    assert all(row["difference"] < 1e-4 for row in answer["table"])
    assert "bytes moved" in answer["why"]
    assert compare.command.callback is not None
    with pytest.raises(ValueError, match="columns"):
        np.save(tmp_path / "x.npy", np.zeros((3, 4, 5), np.float32))
        compare.command.callback(**given | {"features": tmp_path / "x.npy"})


def test_within_a_tenth_is_a_tie() -> None:
    rows = [{"method": "grinnder", "seconds": 1.0, "read_bytes": 5, "written_bytes": 5},
            {"method": "snapshot", "seconds": 1.05, "read_bytes": 50, "written_bytes": 5}]  # fmt: skip
    assert compare._why(rows).startswith("grinnder and snapshot tie, with 10 bytes")
    assert "3.0 times as fast as snapshot" in compare._why([rows[0], rows[1] | {"seconds": 3.0}])
