"""Checkpoints of others, written by their own libraries: read as those read them, whole, cut, changed and hostile."""

from __future__ import annotations

import argparse
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from assay.cli.data import command
from assay.data.orbax import files, orbax_files
from assay.data.orbax.tree import as_kind
from assay.record.errors import BadInput

torch = pytest.importorskip("torch", reason="pip install torch")
EXAMPLE = Path(__file__).parents[3] / "examples" / "state.safetensors"


def answered(*words: Any, code: int = 0) -> dict[str, Any]:
    done = CliRunner().invoke(command, ["ckpt", *map(str, words), "--json"], catch_exceptions=False)
    assert done.exit_code == code, done.output
    found: dict[str, Any] = json.loads(done.output)
    return found


def tensors(state: files.State) -> dict[str, Any]:
    return {
        leaf.path: as_kind(np.array(np.frombuffer(leaf.views[0][1], np.uint8)), "torch", leaf.dtype, leaf.shape)
        for leaf in state
    }


def same(found: dict[str, Any], right: dict[str, Any]) -> bool:
    return found.keys() == right.keys() and all(
        found[name].dtype == right[name].dtype and torch.equal(found[name], right[name]) for name in right
    )


def dcp(folder: Path) -> dict[str, Any]:
    from torch.distributed import checkpoint

    library: Any = checkpoint
    whole = torch.arange(48.0).reshape(6, 8)
    right = {
        "model.w": whole[:, ::2], "model.b": torch.ones(3, dtype=torch.bfloat16), "none": torch.zeros(0, 4),
        "scalar": torch.tensor(7), "transposed": whole.T, "mask": torch.tensor([True, False]),
    }  # fmt: skip
    library.save({**right, "step": 7, "args": {"lr": 0.1, "betas": (0.9, 0.95)}}, checkpoint_id=folder)
    return right


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    path = tmp_path_factory.mktemp("dcp") / "run@7"
    return path, dcp(path)


def copied(of: Path, to: Path) -> Path:
    to.mkdir()
    for path in of.iterdir():
        (to / path.name).write_bytes(path.read_bytes())
    return to


def test_a_folder_of_torchs_distributed_checkpoint_is_read_without_torch_and_kept_with_what_is_no_tensor(
    folder: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    path, right = folder
    state = files.read(str(path))  # whose name has an @
    assert same(tensors(state), right)
    assert state.beside == {"step": 7, "args.lr": 0.1, "args.betas/0": 0.9, "args.betas/1": 0.95}
    answered("convert", path, tmp_path / "all.safetensors")
    library = pytest.importorskip("safetensors.torch", reason="pip install safetensors")
    assert same(library.load_file(tmp_path / "all.safetensors"), right)
    answered("save", path, "--store", tmp_path / "ckpts", "--step", 7)
    answered("restore", f"{tmp_path}/ckpts@7", "--out", tmp_path / "again.safetensors")
    assert answered("diff", tmp_path / "all.safetensors", tmp_path / "again.safetensors")["why"] == "They are the same."
    answered("restore", path, "--only", "model.w", "--only", "args.betas", "--out", tmp_path / "some.npz")
    assert files.read(str(tmp_path / "some.npz")).beside == {"args.betas/0": 0.9, "args.betas/1": 0.95}


def test_what_is_missing_cut_or_damaged_of_such_a_folder_is_told(
    folder: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    path = copied(folder[0], tmp_path / "copy")
    found = answered("verify", path)
    assert found["why"] == "Everything is there, and whole." and found[str(path)]["arrays"] == len(folder[1])
    (data,) = path.glob("*.distcp")
    whole = data.read_bytes()
    at = whole.index(torch.arange(48.0).reshape(6, 8).T.contiguous().numpy().tobytes()[4:8])
    data.write_bytes(whole[:-100])
    assert "was cut" in answered("verify", path, code=1)["table"][0]["is"]
    with pytest.raises(BadInput, match="was cut"):
        files.read(str(path))
    data.write_bytes(whole[:at] + b"?" + whole[at + 1 :])
    assert "checksum" in answered("verify", path, code=1)["table"][0]["is"]
    data.unlink()
    assert answered("verify", path, code=1)["table"][0]["is"] == "is missing"
    (path / ".metadata").write_bytes((path / ".metadata").read_bytes()[:-30])
    assert answered("verify", path, code=1)[str(path)]["wrong"] == 1


RANK = """
import sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}.meet", rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))
whole = torch.arange(35.0).reshape(7, 5)
state = {"rows": distribute_tensor(whole, mesh, [Shard(0)]), "columns": distribute_tensor(whole, mesh, [Shard(1)])}
dcp.save({**state, "step": 3}, checkpoint_id=folder)
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_shards_that_two_ranks_wrote_are_one_tensor(tmp_path: Path) -> None:
    path = tmp_path / "sharded"
    ranks = [subprocess.Popen([sys.executable, "-c", RANK, str(rank), str(path)]) for rank in (0, 1)]
    assert [rank.wait(120) for rank in ranks] == [0, 0]
    whole = torch.arange(35.0).reshape(7, 5)
    assert same(tensors(files.read(str(path))), {"rows": whole, "columns": whole})
    (path / "__1_0.distcp").unlink()
    (row,) = answered("verify", path, code=1)["table"]
    assert (row["file"], row["is"]) == ("__1_0.distcp", "is missing") and "columns, rows" in row["arrays"]


def test_what_is_no_tensor_in_a_pt_is_kept_or_refused_by_name(tmp_path: Path) -> None:
    weight = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(weight.parameters())
    weight(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    kept = {
        "model": weight.state_dict(), "opt": optimizer.state_dict(), "epoch": 3, "best": np.float64(0.5),
        "args": argparse.Namespace(lr=0.1, data=Path("a/b")), "rng": {"state": np.arange(4, dtype=np.uint32)},
        "type": torch.float16, "tied": weight.weight, "name": "été",
    }  # fmt: skip
    torch.save(kept, tmp_path / "a.pt")
    state = files.read(str(tmp_path / "a.pt"))
    found = tensors(state)
    assert torch.equal(found["model/weight"], weight.weight) and torch.equal(found["tied"], weight.weight)
    assert torch.equal(found["opt/state/0/exp_avg"], optimizer.state_dict()["state"][0]["exp_avg"])
    assert found["rng/state"].tolist() == [0, 1, 2, 3]
    beside = state.beside
    assert (beside["epoch"], beside["best"], beside["args/lr"], beside["args/data"]) == (3, 0.5, 0.1, "a/b")
    assert (beside["type"], beside["name"], beside["opt/param_groups/0/amsgrad"]) == ("torch.float16", "été", False)
    answered("convert", tmp_path / "a.pt", tmp_path / "a.safetensors")
    assert files.read(str(tmp_path / "a.safetensors")).beside["epoch"] == "3"
    torch.save({"w": torch.ones(2), "when": argparse.ArgumentParser}, tmp_path / "b.pt")
    with pytest.raises(BadInput, match=r"'when' is a argparse.ArgumentParser; arrays, numbers, text"):
        files.read(str(tmp_path / "b.pt"))
    torch.save({"w": torch.ones(2), "sparse": torch.eye(2).to_sparse()}, tmp_path / "c.pt")
    with pytest.raises(BadInput, match=r"'sparse' is a torch._utils._rebuild_sparse_tensor"):
        files.read(str(tmp_path / "c.pt"))


class Runs:
    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path(self.path),)


def test_nothing_that_a_file_asks_for_is_called(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2), "x": Runs(str(tmp_path / "made"))}, tmp_path / "a.pt")
    (tmp_path / "dcp").mkdir()
    (tmp_path / "dcp" / ".metadata").write_bytes(pickle.dumps(Runs(str(tmp_path / "made"))))
    for name in ("a.pt", "dcp"):
        with pytest.raises(BadInput):
            files.read(str(tmp_path / name))
    assert not (tmp_path / "made").exists()


def test_a_tensor_that_would_lie_outside_of_its_storage_is_refused(tmp_path: Path) -> None:
    import zipfile

    torch.save({"w": torch.arange(4.0)}, tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "a.pt") as packed:
        content = {info.filename: packed.read(info) for info in packed.infolist()}
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as packed:
        for name, data in content.items():
            packed.writestr(name, data[:8] if name.endswith("data/0") else data)
    with pytest.raises(BadInput, match=r"'w' is a damaged torch._utils._rebuild_tensor_v2: its storage has 8 bytes"):
        files.read(str(tmp_path / "a.pt"))


def test_a_folder_of_hugging_face_has_one_or_many_files_and_keeps_their_metadata(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.torch", reason="pip install safetensors")
    one, many = tmp_path / "one@main", tmp_path / "many"
    one.mkdir()
    many.mkdir()
    scales = torch.tensor([1, 127, 254], dtype=torch.uint8).view(torch.float8_e8m0fnu)
    library.save_file({"scales": scales}, one / "model.safetensors", metadata={"format": "pt", "by": "us"})
    state = files.read(str(one))
    assert state.beside == {"format": "pt", "by": "us"}
    assert torch.equal(tensors(state)["scales"].view(torch.uint8), scales.view(torch.uint8))
    answered("convert", one, tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes()[8:].count(b"F8_E8M0") == 1
    with library.safe_open(tmp_path / "again.safetensors", "pt") as again:
        assert again.metadata() == {"format": "pt", "by": "us"}
    index: dict[str, dict[str, str]] = {"weight_map": {}}
    for i in range(3):
        library.save_file({f"w{i}": torch.full((4,), float(i))}, many / f"model-{i}.safetensors")
        index["weight_map"][f"w{i}"] = f"model-{i}.safetensors"
    assert len(files.read(str(many))) == 3, "the files alone will do"
    (many / "diffusion.safetensors.index.json").write_text(json.dumps(index))
    assert len(files.read(str(many))) == 3
    answered("verify", many, "--write", tmp_path / "manifest.json")
    answered("verify", many, "--manifest", tmp_path / "manifest.json")
    data = (many / "model-0.safetensors").read_bytes()
    (many / "model-0.safetensors").write_bytes(data[:-1] + b"?")
    answered("verify", many)  # Hugging Face's files have no checksums
    (many / "model-1.safetensors").write_bytes(data[:-5])
    (many / "model-2.safetensors").unlink()
    (many / "more.txt").write_text("")
    wrong = {
        row["file"]: row for row in answered("verify", many, "--manifest", tmp_path / "manifest.json", code=1)["table"]
    }
    assert wrong["model-0.safetensors"]["is"] == "has changed since the manifest"
    assert "was cut" in wrong["model-1.safetensors"]["is"] and wrong["model-2.safetensors"]["is"] == "is missing"
    assert wrong["model-2.safetensors"]["arrays"] == "w2" and wrong["more.txt"]["is"] == "is new since the manifest"


def test_a_store_of_ours_is_verified_too(tmp_path: Path) -> None:
    store = tmp_path / "ckpts"
    answered("save", EXAMPLE, "--store", store, "--step", 1)
    assert answered("verify", store)[str(store)] == {"kind": "assay", "files": 1, "arrays": 4, "wrong": 0}
    (data,) = [path for path in (store / "data").rglob("*") if path.is_file()]
    whole = data.read_bytes()
    for cut in (whole[:5000], whole[:-9], whole[:-1], whole[:-20] + bytes(20)):  # behind the arrays, too
        data.write_bytes(cut)
        assert "step 1" in answered("verify", store, code=1)["table"][0]["is"]
    data.write_bytes(whole)
    assert answered("verify", store)[str(store)]["wrong"] == 0


def test_orbaxs_own_folders_are_read_where_tensorstore_is(tmp_path: Path) -> None:
    store = pytest.importorskip("tensorstore", reason="pip install tensorstore")
    right: dict[str, Any] = {"model/w": np.arange(12, dtype=np.float32).reshape(3, 4), "opt/0": np.ones(2)}
    named: dict[str, Any] = {
        str(tuple(path.split("/"))): {
            "key_metadata": [{"key": key, "key_type": 2} for key in path.split("/")],
            "value_metadata": {"value_type": "np.ndarray", "skip_deserialize": False},
        }
        for path in right
    }
    for ocdbt, zarr3 in ((True, False), (False, False), (True, True)):
        path = tmp_path / f"{ocdbt}-{zarr3}"
        path.mkdir()
        (path / "_METADATA").write_text(json.dumps({"tree_metadata": named, "use_ocdbt": ocdbt, "use_zarr3": zarr3}))
        for name, how in orbax_files.names(path).items():
            store.open(how, create=True, dtype=str(right[name].dtype), shape=right[name].shape).result()[...] = right[
                name
            ]
        found = tensors(files.read(str(path)))
        assert all(np.array_equal(found[name].numpy(), right[name]) for name in right)
        answered("verify", path)
        for file in path.rglob("*"):
            if file.is_file() and file.name != "_METADATA":
                file.unlink()
        assert answered("verify", path, code=1)[str(path)]["wrong"] == 2


def test_without_tensorstore_a_folder_of_orbax_is_refused_with_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "_METADATA").write_text(json.dumps({"tree_metadata": {}, "use_ocdbt": True}))
    monkeypatch.setitem(sys.modules, "tensorstore", None)
    with pytest.raises(BadInput, match="needs 'tensorstore', which is not installed"):
        files.read(str(tmp_path))
