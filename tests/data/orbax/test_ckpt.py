"""`assay data ckpt` on files of others and of our own, whole and damaged."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from assay.cli.data import command
from assay.data import Checkpointer
from assay.data.orbax import files
from assay.record.errors import BadInput

EXAMPLE = str(Path(__file__).parents[3] / "examples" / "state.safetensors")


def told(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(command, ["ckpt", *arguments, "--json"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.output)
    return found


def test_a_state_goes_into_a_store_and_out_again_unchanged(tmp_path: Path) -> None:
    store, out = str(tmp_path / "ckpts"), str(tmp_path / "again.safetensors")
    for step in (100, 200, 300):
        saved = told("save", EXAMPLE, "--store", store, "--step", str(step), "--keep", "2")
    assert saved["steps"]["there"] == "200, 300"
    seen = told("inspect", f"{store}@200")
    assert seen[f"{store}@200"]["arrays"] == 4 and seen["checkpoints"]["steps"] == "200, 300"
    told("restore", f"{store}@200", "--out", out)
    assert Path(out).read_bytes() == Path(EXAMPLE).read_bytes()
    assert told("diff", EXAMPLE, store)["why"] == "They are the same."


def test_a_difference_is_named_and_measured(tmp_path: Path) -> None:
    one, other = tmp_path / "one.npz", tmp_path / "other.npz"
    np.savez(one, a=np.zeros(3), b=np.ones(2, np.int32), c=np.ones(1), d=np.ones(4))
    np.savez(other, a=np.array([0, 0, -2.5]), b=np.ones(2, np.int32), c=np.ones(2), e=np.ones(4))
    answer = told("diff", str(one), str(other))
    assert {row["array"]: row["is"] for row in answer["table"]} == {
        "a": "changed", "c": "float64[1] and float64[2]", "d": "only in the first", "e": "only in the second",
    }  # fmt: skip
    assert answer["arrays"] == {"the_same": 1, "different": 4}
    assert next(row for row in answer["table"] if row["array"] == "a")["largest_difference"] == 2.5


def test_parts_are_restored_and_converted(tmp_path: Path) -> None:
    told("restore", EXAMPLE, "--only", "head.weight", "--only", "layers.0.bias", "--out", str(tmp_path / "part.npz"))
    with np.load(tmp_path / "part.npz") as found:
        assert {name: found[name].shape for name in found.files} == {"layers.0.bias": (16,), "head.weight": (64, 16)}
    told("convert", str(tmp_path / "part.npz"), str(tmp_path / "back.safetensors"))
    assert told("diff", str(tmp_path / "part.npz"), str(tmp_path / "back.safetensors"))["why"] == "They are the same."


def test_a_part_of_a_store_is_read_by_itself_and_keeps_the_names_it_had(tmp_path: Path) -> None:
    store = str(tmp_path / "ckpts")
    arrays: dict[str, Any] = {"model/w": np.ones((512, 512)), "opt/m~": np.ones(4)}
    np.savez(tmp_path / "mine.npz", **arrays)
    told("save", str(tmp_path / "mine.npz"), "--store", store, "--step", "1")
    seen: list[tuple[int, int]] = []
    [leaf] = files.read(store, ("opt",), lambda *now: seen.append(now))
    assert leaf.path == "opt/m~" and seen[-1] == (32, 32)  # of the part's own bytes
    told("restore", store, "--out", str(tmp_path / "back.npz"))
    assert told("diff", str(tmp_path / "mine.npz"), str(tmp_path / "back.npz"))["why"] == "They are the same."


def test_writing_tells_how_far_it_is(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    files.write(tmp_path / "out.safetensors", files.read(EXAMPLE), lambda *now: seen.append(now))
    size = (tmp_path / "out.safetensors").stat().st_size
    assert seen[-1] == (size, size) and [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_torchs_and_safetensors_own_files_are_read_as_they_read_them(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="pip install torch")
    library = pytest.importorskip("safetensors.torch", reason="pip install safetensors")
    state = {"w": torch.arange(6).reshape(2, 3).to(torch.bfloat16), "i": torch.tensor([1, 2])}
    torch.save({"state": state, "lr": 0.1}, tmp_path / "a.pt")
    library.save_file(state, tmp_path / "a.safetensors")
    assert {leaf.path: leaf.shape for leaf in files.read(str(tmp_path / "a.pt"))} == {
        "state/w": (2, 3),
        "state/i": (2,),
    }
    ours = {leaf.path: bytes(leaf.views[0][1]) for leaf in files.read(str(tmp_path / "a.safetensors"))}
    assert ours["w"] == state["w"].view(torch.uint8).numpy().tobytes()
    files.write(tmp_path / "b.safetensors", files.read(str(tmp_path / "a.safetensors")))
    again = library.load_file(tmp_path / "b.safetensors")
    assert all(torch.equal(again[name], state[name]) for name in state)


def test_shards_of_hugging_face_are_one_state(tmp_path: Path) -> None:
    (tmp_path / "x-1.safetensors").write_bytes(Path(EXAMPLE).read_bytes())
    index = {"weight_map": {"embed.weight": "x-1.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert len(files.read(str(tmp_path))) == 4
    (tmp_path / "x-1.safetensors").unlink()
    with pytest.raises(BadInput, match="the index names it"):
        files.read(str(tmp_path))


def cut(n: int) -> bytes:
    return Path(EXAMPLE).read_bytes()[:n]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.safetensors", b"abc", "no safetensors file: it has 3 bytes"),
        ("a.safetensors", struct.pack("<Q", 2**60) + b"{}", "or was cut"),
        ("a.safetensors", struct.pack("<Q", 2) + b"[]", "its header is not safetensors'"),
        ("a.safetensors", cut(2000), "was cut or is damaged: 'embed.weight'"),
        ("a.npz", b"PK\x03\x04 not really", "no npz of plain arrays"),
        ("a.pt", b"\x80\x04N.", "no state of tensors alone"),
        ("a.txt", b"hello", "no state that is known here"),
    ],
)
def test_a_damaged_or_strange_file_is_one_line(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput, match=message):
        files.read(str(tmp_path / name))


def test_what_could_run_code_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / ".metadata").write_bytes(b"cos\nsystem\n(X\x05\x00\x00\x00falsetR.")
    with pytest.raises(BadInput, match=r"is no metadata of torch.distributed.checkpoint: it is a os.system"):
        files.read(str(tmp_path))
    np.savez(tmp_path / "o.npz", a=np.array([print], dtype=object))
    with pytest.raises(BadInput, match="no npz of plain arrays"):
        files.read(str(tmp_path / "o.npz"))


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"cannot read .*nothing.*; a .safetensors"):
        files.read(str(tmp_path / "nothing"))
    ck = Checkpointer(str(tmp_path / "c"))
    ck.save(1, {"w": np.zeros(2)})
    with pytest.raises(BadInput, match="is no step"):
        files.read(f"{tmp_path / 'c'}@new")
    with pytest.raises(BadInput, match="nothing lies at modell"):
        files.chosen(files.read(EXAMPLE), ("modell",))
    with pytest.raises(BadInput, match=r"ends in .safetensors or .npz"):
        files.write(tmp_path / "x.csv", files.read(EXAMPLE))
