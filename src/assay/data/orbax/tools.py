"""Checkpointers side by side: ours, torch's two, safetensors, NumPy's, and Orbax itself, each as its users call it.

All of them end durable: what a tool does not sync itself is synced after it, within its time.
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from assay.data.orbax.checkpointer import Checkpointer
from assay.sim.streams import stream

State = dict[str, Any]  # torch tensors by name


@dataclass(frozen=True)
class Tool:
    """How a tool saves, and loads into memory of its own.

    `start` begins a save in the background and returns how to wait for its end. `resume` loads into the arrays that a
    job has already; a tool that cannot has them copied from a load of its own.
    """

    name: str
    save: Callable[[Path, State], None]
    load: Callable[[Path, State], Mapping[str, Any]]
    start: Callable[[Path, State], Callable[[], object]] | None = None
    resume: Callable[[Path, State], None] | None = None
    needs: str = ""

    @property
    def here(self) -> bool:
        """Whether it is installed."""
        return not self.needs or find_spec(self.needs) is not None

    def refill(self, path: Path, state: State) -> None:
        """Load into arrays that are there."""
        if self.resume is not None:
            self.resume(path, state)
        else:
            _copied(self.load(path, state), state)


def _copied(found: Mapping[str, Any], state: State) -> None:
    import torch

    for name, tensor in state.items():
        tensor.copy_(torch.as_tensor(np.asarray(found[name])))


def tensors(nbytes: int, count: int, seed: int) -> State:
    """A state of so many float32 matrices of about equal size, with random contents.

    >>> sum(t.numel() * 4 for t in tensors(1 << 20, 4, 0).values())
    1048576
    """
    import torch

    each = max(1, nbytes // count // 4)
    rows = 2 ** (each.bit_length() // 2)
    random = stream(seed, "state")
    shape = (rows, max(1, each // rows))
    return {f"layers.{i}.weight": torch.from_numpy(random.random(shape, np.float32)) for i in range(count)}


def sync(folder: Path) -> None:
    """Make all below a folder durable."""
    for path in (*folder.rglob("*"), folder, folder.parent):
        opened = os.open(path, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)


def give_back() -> None:
    """Return freed memory to the system, so that nobody loads into what somebody else's load has left warm."""
    gc.collect()
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # only glibc has it


@contextmanager
def settled() -> Iterator[None]:
    """Take what is alive now for granted, so that looking for garbage before each measurement takes no time."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def forget(folder: Path) -> None:
    """Let the page cache forget the files of a folder, so that a load comes from the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            opened = os.open(path, os.O_RDONLY)
            try:
                os.fsync(opened)  # dirty pages would stay
                with suppress(AttributeError):
                    os.posix_fadvise(opened, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(opened)


def recall(folder: Path) -> None:
    """Let the page cache hold the files of a folder, so that a load need not wait for the disk."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                held = bytearray(1 << 20)
                while file.readinto(held):
                    pass


_ours: dict[Path, Checkpointer] = {}  # a job makes one and keeps it, and with it the memory that it stages in


def _checkpointer(path: Path) -> Checkpointer:
    if path.parent not in _ours:
        _ours[path.parent] = Checkpointer(str(path.parent / "assay"), incremental=False)
    return _ours[path.parent]


_stagers: dict[Path, Any] = {}  # what torch stages in, kept from save to save as well


def _stager(path: Path) -> Any:
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    if path.parent not in _stagers:
        options = StagingOptions(False, False, False, False)  # the rest helps an accelerator, or another process
        _stagers[path.parent] = DefaultStager(options)
    return _stagers[path.parent]


def leave(folder: Path) -> None:
    """Forget the checkpointers of a folder, and the memory that they staged in."""
    _ours.pop(folder, None)
    if stager := _stagers.pop(folder, None):
        stager.close()


def _step(path: Path) -> int:
    return int(path.name.rpartition("-")[2])


def _assay_start(path: Path, state: State) -> Callable[[], object]:
    return _checkpointer(path).save_async(_step(path), state).wait


def _assay_load(path: Path, state: State) -> Mapping[str, Any]:
    found: Mapping[str, Any] = Checkpointer(str(path.parent / "assay")).restore(_step(path))
    return found


def _assay_resume(path: Path, state: State) -> None:
    Checkpointer(str(path.parent / "assay")).restore(_step(path), like=state)


def _dcp_save(path: Path, state: State) -> None:
    from torch.distributed.checkpoint.state_dict_saver import save

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save(state, checkpoint_id=path, no_dist=True)
    sync(path)


def _dcp_load(path: Path, state: State) -> Mapping[str, Any]:
    import torch

    found = {name: torch.empty_like(tensor) for name, tensor in state.items()}
    _dcp_resume(path, found)
    return found


def _dcp_resume(path: Path, state: State) -> None:
    from torch.distributed.checkpoint.state_dict_loader import load

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        load(state, checkpoint_id=path, no_dist=True)


def _dcp_start(path: Path, state: State) -> Callable[[], object]:
    from torch.distributed.checkpoint.state_dict_saver import async_save

    warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # said later, in a thread of its own
    begun: Any = async_save(state, checkpoint_id=path, async_stager=_stager(path), no_dist=True)

    def wait() -> None:
        begun.result()
        sync(path)

    return wait


def _torch_save(path: Path, state: State) -> None:
    import torch

    path.mkdir(parents=True)
    torch.save(state, path / "state.pt")
    sync(path)


def _torch_load(path: Path, state: State) -> Mapping[str, Any]:
    import torch

    found: Mapping[str, Any] = torch.load(path / "state.pt", weights_only=True)
    return found


def _torch_resume(path: Path, state: State) -> None:
    import torch

    _copied(torch.load(path / "state.pt", weights_only=True, mmap=True), state)


def _safetensors_save(path: Path, state: State) -> None:
    from safetensors.torch import save_file

    path.mkdir(parents=True)
    save_file(state, path / "state.safetensors")
    sync(path)


def _safetensors_load(path: Path, state: State) -> Mapping[str, Any]:
    from safetensors.torch import load_file

    found = load_file(path / "state.safetensors")
    return {name: tensor.clone() for name, tensor in found.items()}  # it maps the file: only a copy has been read


def _safetensors_resume(path: Path, state: State) -> None:
    from safetensors.torch import load_file

    _copied(load_file(path / "state.safetensors"), state)


def _numpy_save(path: Path, state: State) -> None:
    path.mkdir(parents=True)
    np.savez(path / "state.npz", **{name: tensor.numpy() for name, tensor in state.items()})
    sync(path)


def _numpy_load(path: Path, state: State) -> Mapping[str, Any]:
    with np.load(path / "state.npz", allow_pickle=False) as found:
        return {name: found[name] for name in state}


def _orbax() -> Any:
    import orbax.checkpoint as ocp

    logging.getLogger("absl").setLevel(logging.ERROR)
    return ocp


def _arrays(state: State) -> dict[str, Any]:
    return {name: tensor.numpy() for name, tensor in state.items()}


def _orbax_save(path: Path, state: State) -> None:
    _orbax().PyTreeCheckpointer().save(path, _arrays(state))
    sync(path)


def _orbax_load(path: Path, state: State) -> Mapping[str, Any]:
    found: Mapping[str, Any] = _orbax().PyTreeCheckpointer().restore(path)
    return found


def _orbax_start(path: Path, state: State) -> Callable[[], object]:
    ocp = _orbax()
    saver = ocp.AsyncCheckpointer(ocp.PyTreeCheckpointHandler())
    saver.save(path, ocp.args.PyTreeSave(_arrays(state)))

    def wait() -> None:
        saver.wait_until_finished()
        saver.close()
        sync(path)

    return wait


def _assay_save(path: Path, state: State) -> None:
    _checkpointer(path).save(_step(path), state)


TOOLS = (
    Tool("assay", _assay_save, _assay_load, _assay_start, _assay_resume),
    Tool("dcp", _dcp_save, _dcp_load, _dcp_start, _dcp_resume),
    Tool("torch-save", _torch_save, _torch_load, resume=_torch_resume),
    Tool("safetensors", _safetensors_save, _safetensors_load, resume=_safetensors_resume, needs="safetensors"),
    Tool("npz", _numpy_save, _numpy_load),
    Tool("orbax", _orbax_save, _orbax_load, _orbax_start, needs="orbax"),
)
