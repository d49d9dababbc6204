"""Files, addresses and options that are wrong in every way we could think of: one line each, and no traceback."""

from __future__ import annotations

import os
from pathlib import Path

import click
import numpy as np
import pytest
from click.testing import CliRunner

from assay.cli.data import command
from assay.record.errors import AssayError

EXAMPLES = Path(__file__).parents[2] / "examples"
JUNK = b"\xff\xfe\x00junk\x80" * 40
SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet", ".fbin", ".fvecs", ".npy", ".npz", ".safetensors", ".txt", ".mtx", ".pt",
            ".hdf5", ".key")  # fmt: skip


def header(text: bytes) -> bytes:
    return len(text).to_bytes(8, "little") + text + bytes(8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of bad files."""
    at = tmp_path_factory.mktemp("bad")
    for suffix in SUFFIXES:
        (at / f"junk{suffix}").write_bytes(JUNK)
        (at / f"empty{suffix}").write_bytes(b"")
    (at / "folder").mkdir()
    (at / "loop").symlink_to(at / "loop")
    (at / "plain").write_bytes(b"x")
    for name in ("news.jsonl", "state.safetensors", "points.fbin"):
        whole = (EXAMPLES / name).read_bytes()
        (at / f"cut-{name}").write_bytes(whole[: 3 * len(whole) // 5])
    deep = b"[" * 100_000
    (at / "deep.jsonl").write_bytes(b'{"text": ' + deep + b"]" * 100_000 + b', "user": 1}\n')
    (at / "list.jsonl").write_bytes(b"[1, 2]\n")
    (at / "null.jsonl").write_bytes(b'{"text": null}\n')
    (at / "deep.safetensors").write_bytes(header(deep))
    (at / "long.safetensors").write_bytes((2**62).to_bytes(8, "little") + b"{}")
    row = b'{"a": {"dtype": "F32", "shape": [%d], "data_offsets": [0, 8]}}'
    (at / "negative.safetensors").write_bytes(header(row % -2))
    (at / "wide.safetensors").write_bytes(header(row % 10**15))
    np.save(at / "object.npy", np.array([{}], dtype=object), allow_pickle=True)
    np.savez(at / "object.npz", a=np.array([None], dtype=object))
    np.savez(at / "strange.npz", a=np.ones(3))
    for name, array in {
        "one": np.zeros(5, np.float32), "three": np.zeros((2, 3, 4), np.float32), "text": np.array(["a", "b"]),
        "none": np.zeros((0, 8), np.float32), "nan": np.full((30, 9), np.nan, np.float32),
        "edges": np.array([[0, 10**15], [1, 2]]), "negative": np.array([[-1, 2], [3, 4]]),
    }.items():  # fmt: skip
        np.save(at / f"{name}.npy", array)
    (at / "huge.fbin").write_bytes(np.array([2**31 - 1, 2**31 - 1], np.uint32).tobytes() + bytes(40))
    (at / "negative.fvecs").write_bytes(np.array([-4], np.int32).tobytes() * 9)
    rows = np.array([2, 0, 0, 3, 0, 0, 0], np.int32)
    (at / "uneven.fvecs").write_bytes(rows.tobytes())
    (at / "no-index").mkdir()
    (at / "no-index" / "settings").write_bytes(b"xx")
    (at / "no-plane").mkdir()
    (at / "no-plane" / "shape").write_bytes(b"{}")
    return at


def refused(folder: Path, *words: str) -> None:
    """The words end in one line; they are said in the folder of bad files, and EX is that of the examples."""
    given = [word.replace("EX/", f"{EXAMPLES}/") for word in words]
    before = Path.cwd()
    os.chdir(folder)
    try:
        error = CliRunner().invoke(command, given, standalone_mode=False).exception
    finally:
        os.chdir(before)
    assert isinstance(error, AssayError | click.UsageError), f"{given}: {error!r}"
    assert str(error).strip() and "\n" not in str(error), str(error)


@pytest.mark.parametrize(
    "file",
    ["junk.jsonl", "junk.jsonl.gz", "junk.parquet", "empty.parquet", "cut-news.jsonl", "deep.jsonl",
     "list.jsonl", "null.jsonl", "loop", "nowhere", "folder"],
)  # fmt: skip
def test_a_corpus_that_is_none(folder: Path, file: str) -> None:
    refused(folder, "dedup", file, "--out", "out", "--index", f"index-{file}")


@pytest.mark.parametrize(
    "words",
    ["--out plain --index a", "--out o --index plain", "--out o --index no-index", "--out /proc/x --index b",
     "--out o --index s3://", "--out o --index gs://", "--out o --index nonsense://x", "--out o --index c --tau nan",
     "--out o --index d --field nope"],
)  # fmt: skip
def test_dedup_with_options_that_make_no_sense(folder: Path, words: str) -> None:
    refused(folder, "dedup", "EX/news.jsonl", *words.split())


@pytest.mark.parametrize(
    "words",
    ["produce a junk.jsonl.gz", "produce a junk.parquet", "produce a loop", "produce plain EX/chats.jsonl",
     "produce no-plane EX/chats.jsonl", "consume no-plane", "consume plain", "serve nowhere --once",
     "produce b EX/chats.jsonl --name a/b", "produce b EX/chats.jsonl --pace nan",
     "produce b EX/chats.jsonl --part ¹/²",
     "produce c EX/chats.jsonl --map os:getcwd", "produce d EX/chats.jsonl --map json:loads",
     "produce e EX/chats.jsonl --map plain:f", "produce s3:// EX/chats.jsonl"],
)  # fmt: skip
def test_planes(folder: Path, words: str) -> None:
    refused(folder, "plane", *words.split())


@pytest.mark.parametrize(
    "words",
    ["consume p --rank 3 --world 2", "consume p --world 3", "consume p --out folder", "consume p --out /proc/x/y",
     "consume p --turns nobody", "serve p --once --retain ²"],
)  # fmt: skip
def test_a_plane_that_is_there(folder: Path, words: str) -> None:
    done = CliRunner().invoke(command, ["plane", "produce", str(folder / "p"), str(EXAMPLES / "chats.jsonl")])
    assert done.exception is None
    refused(folder, "plane", *words.split())


@pytest.mark.parametrize(
    "words",
    ["--from junk.jsonl", "--from junk.jsonl.gz", "--from junk.parquet", "--from deep.jsonl", "--from list.jsonl",
     "--from loop", "--from folder", "--from EX/visits.jsonl --out plain", "--from EX/visits.jsonl --blob -1",
     "--from EX/visits.jsonl --store plain", "--from EX/visits.jsonl --broker redis://127.0.0.1:1",
     "--from EX/visits.jsonl --broker redis://a:b", "--from EX/visits.jsonl --broker redis://[::1",
     "--from EX/visits.jsonl --broker x", "--from EX/visits.jsonl --key nope"],
)  # fmt: skip
def test_shuffles(folder: Path, words: str) -> None:
    refused(folder, "shuffle", "--key", "user", "--out", f"shuffled-{abs(hash(words))}", *words.split())


@pytest.mark.parametrize(
    "file",
    ["huge.fbin", "empty.fbin", "junk.fbin", "negative.fvecs", "uneven.fvecs", "empty.fvecs", "junk.npy", "empty.npy",
     "object.npy", "one.npy", "three.npy", "text.npy", "none.npy", "nan.npy", "junk.hdf5", "cut-points.fbin", "loop",
     "folder", "nowhere", "plain"],
)  # fmt: skip
def test_vectors_that_are_none(folder: Path, file: str) -> None:
    refused(folder, "knn", file, "-k", "3", "--ranks", "1", "--out", f"knn-{file}")
    refused(folder, "vec", "build", f"index-{file}", file)


@pytest.mark.parametrize("words", ["--out plain", "-k 1000 --out o", "--ranks 200 --out o", "--out s3://"])
def test_neighbours_with_options_that_make_no_sense(folder: Path, words: str) -> None:
    refused(folder, "knn", "EX/points.fbin", *words.split())


@pytest.mark.parametrize(
    "file",
    ["junk.txt", "empty.npy", "object.npy", "negative.npy", "one.npy", "text.npy", "junk.npz", "strange.npz",
     "junk.mtx", "empty.mtx", "junk.parquet", "folder", "loop", "nowhere"],
)  # fmt: skip
def test_edges_that_are_none(folder: Path, file: str) -> None:
    refused(folder, "graph", "components", file, "--workers", "1")


@pytest.mark.parametrize(
    "words",
    ["bfs EX/web.txt --root -5", "sssp EX/web.txt --root 99999999999999999999999", "pagerank EX/web.txt --store plain",
     "pagerank EX/web.txt --memory nan", "pagerank EX/web.txt --store s3://"],
)  # fmt: skip
def test_graphs_with_options_that_make_no_sense(folder: Path, words: str) -> None:
    refused(folder, "graph", *words.split())


@pytest.mark.parametrize(
    "file",
    ["empty.safetensors", "junk.safetensors", "deep.safetensors", "long.safetensors", "negative.safetensors",
     "wide.safetensors", "cut-state.safetensors", "junk.npz", "empty.npz", "object.npz", "empty.pt", "junk.pt",
     "folder", "loop", "nowhere", "nowhere@3", "plain"],
)  # fmt: skip
def test_states_that_are_none(folder: Path, file: str) -> None:
    if file.endswith(".pt"):
        pytest.importorskip("torch", reason="pip install torch")
    refused(folder, "ckpt", "inspect", file)
    refused(folder, "ckpt", "save", file, "--store", "states", "--step", "1")


@pytest.mark.parametrize(
    "words",
    ["save EX/state.safetensors --store plain --step 1", "restore nowhere@9 --out o.npz",
     "restore EX/state.safetensors --out o.xyz", "restore EX/state.safetensors --out o.npz --only nope",
     "diff EX/state.safetensors nowhere", "save EX/state.safetensors --store s3:// --step 1"],
)  # fmt: skip
def test_checkpoints(folder: Path, words: str) -> None:
    refused(folder, "ckpt", *words.split())


@pytest.mark.parametrize(
    "words",
    ["key --out folder", "key --out /proc/x/y", "put nowhere --store v --key my.key", "put loop --store v --key my.key",
     "put EX/chats.jsonl --store plain --key my.key", "put EX/chats.jsonl --store v --key plain",
     "put EX/chats.jsonl --store v --key empty.key", "get nope --store v --key my.key --out o",
     "grant nope --store v --key my.key", "grant chats.jsonl --store v --key my.key --span 9:1",
     "grant chats.jsonl --store v --key my.key --span ²:³", "open junk.key --store v --out o",
     "open empty.key --store v --out o", "audit --store plain"],
)  # fmt: skip
def test_vaults(folder: Path, words: str) -> None:
    pytest.importorskip("cryptography", reason="pip install cryptography")
    (folder / "my.key").unlink(missing_ok=True)
    assert CliRunner().invoke(command, ["vault", "key", "--out", str(folder / "my.key")]).exception is None
    refused(folder, "vault", *words.split())


@pytest.mark.parametrize(
    "words",
    ["probe plain", "probe s3://", "probe nonsense://x", "probe mem:// --requests 3 --out folder", "probe /proc/x",
     "crash nope", "crash os:getcwd", "crash plain:X", "crash append-log --ops 3 --at 9:x",
     "crash append-log --ops 3 --at ²:before", "crash"],
)  # fmt: skip
def test_probes_and_crashes(folder: Path, words: str) -> None:
    refused(folder, *words.split())


GNN = {
    "infer": {"--features": "EX/web.npy", "--model": "EX/gcn.npz", "--out": "o.npy", "--memory": "8GB"},
    "train": {"--features": "EX/web.npy", "--labels": "EX/topics.npy", "--out": "o.npz", "--epochs": "1"},
}


@pytest.mark.parametrize(
    ("verb", "option", "file"),
    [
        *(("infer", "--features", name) for name in ("object.npy", "one.npy", "three.npy", "text.npy", "junk.npy")),
        *(("infer", "--model", name) for name in ("strange.npz", "object.npz", "junk.npz", "folder", "nowhere")),
        *(("infer", "EDGES", name) for name in ("junk.txt", "empty.txt", "negative.npy", "edges.npy", "folder")),
        ("infer", "--out", "folder"), ("infer", "--memory", "1KB"), ("infer", "--memory", "x"),
        *(("train", "--features", name) for name in ("object.npy", "one.npy", "text.npy", "junk.npy", "nowhere")),
        *(("train", "--labels", name) for name in ("object.npy", "three.npy", "text.npy", "none.npy", "junk.npy")),
        ("train", "--split", "text.npy"), ("train", "--out", "o.xyz"), ("train", "--memory", "1KB"),
    ],
)  # fmt: skip
def test_networks(folder: Path, verb: str, option: str, file: str) -> None:
    pytest.importorskip("torch", reason="pip install torch")
    options = GNN[verb] | ({option: file} if option != "EDGES" else {})
    edges = file if option == "EDGES" else "EX/web.txt"
    refused(folder, "gnn", verb, edges, *(word for pair in options.items() for word in pair))
