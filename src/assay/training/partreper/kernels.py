"""Small programs that communicate as the NAS benchmarks CG, EP, IS and FT do, and two applications.

Each is written for mpi4py and does not know of replicas: `start` makes a rank's state, a dictionary of arrays, `step`
takes it on by one iteration, `result` is what all ranks found, on every rank. A state can be saved between two steps.

- `cg`: conjugate gradients on a random symmetric sparse matrix: an all-gather and two sums of scalars a step.
- `ep`: pairs of normal deviates counted by ring: computes, and sums once at the end.
- `is`: integers are sent to the rank that owns their range (all-to-all, unequal) and sorted there.
- `ft`: a Fourier transform of a square grid whose rows are spread: transposed by an all-to-all, and evolved.
- `heat`: a plate that cools, in strips of rows: halos to both neighbours, a residual now and then.
- `farm`: rank 0 deals out intervals of an integral to whoever asks first, received from any source.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

State = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Kernel:
    """A program in steps."""

    start: Callable[[Any, Any, int, int], State]
    step: Callable[[Any, Any, State, int], None]
    result: Callable[[Any, Any, State], NDArray[Any]]


def _random(seed: int, rank: int) -> np.random.Generator:
    return np.random.default_rng([seed, rank])


# ------------------------------------------------------------------------------------------------------------------ CG


def _cg_start(mpi: Any, comm: Any, size: int, seed: int) -> State:
    """Rows of a symmetric matrix with a heavy diagonal; every rank draws all of it and keeps its own."""
    rows = size // comm.size * comm.size
    random, per = _random(seed, 0), 8
    there = random.integers(0, rows, (rows, per))
    weight = random.random((rows, per))
    own = slice(comm.rank * (rows // comm.size), (comm.rank + 1) * (rows // comm.size))
    ones = np.ones(rows // comm.size)
    return {
        "row": np.repeat(np.arange(rows), per), "col": there.ravel(), "weight": weight.ravel(),
        "own": np.array([own.start, own.stop]), "x": 0 * ones, "r": ones.copy(), "p": ones.copy(),
        "rho": np.array([float(rows)]),
    }  # fmt: skip


def _cg_step(mpi: Any, comm: Any, state: State, step: int) -> None:
    lo, hi = state["own"]
    rows = (hi - lo) * comm.size
    p = np.empty(rows)
    comm.Allgather(state["p"], p)
    row, col, weight = state["row"], state["col"], state["weight"]
    half = np.bincount(row, weight * p[col], rows) + np.bincount(col, weight * p[row], rows)
    q = (half + 20.0 * p)[lo:hi]
    dot = np.empty(1)
    comm.Allreduce(np.array([state["p"] @ q]), dot, mpi.SUM)
    alpha = state["rho"][0] / dot[0]
    state["x"] += alpha * state["p"]
    state["r"] -= alpha * q
    rho = np.empty(1)
    comm.Allreduce(np.array([state["r"] @ state["r"]]), rho, mpi.SUM)
    state["p"] = state["r"] + rho[0] / state["rho"][0] * state["p"]
    state["rho"] = rho


def _cg_result(mpi: Any, comm: Any, state: State) -> NDArray[Any]:
    found = np.empty(len(state["x"]) * comm.size)
    comm.Allgather(state["x"], found)
    return found


# ------------------------------------------------------------------------------------------------------------------ EP


def _ep_start(mpi: Any, comm: Any, size: int, seed: int) -> State:
    return {"counts": np.zeros(10), "of": np.array([seed, size])}


def _ep_step(mpi: Any, comm: Any, state: State, step: int) -> None:
    seed, size = state["of"]
    pairs = np.random.default_rng([seed, comm.rank, step]).uniform(-1, 1, (2, size))
    square = (pairs**2).sum(axis=0)
    inside = (square > 0) & (square <= 1)
    normal = np.abs(pairs[:, inside] * np.sqrt(-2 * np.log(square[inside]) / square[inside])).max(axis=0)
    state["counts"] += np.bincount(np.minimum(normal.astype(int), 9), minlength=10)


def _ep_result(mpi: Any, comm: Any, state: State) -> NDArray[Any]:
    return np.asarray(comm.allreduce(state["counts"], op=mpi.SUM))


# ------------------------------------------------------------------------------------------------------------------ IS


def _is_start(mpi: Any, comm: Any, size: int, seed: int) -> State:
    return {"keys": _random(seed, comm.rank).integers(0, 1 << 16, size), "sorted": np.empty(0, np.int64)}


def _is_step(mpi: Any, comm: Any, state: State, step: int) -> None:
    keys = state["keys"].copy()
    keys[step % len(keys)] = step  # as the benchmark does, so that no iteration is like the other
    owner = keys * comm.size >> 16
    order = np.argsort(owner, kind="stable")
    counts = np.bincount(owner, minlength=comm.size)
    coming = np.empty_like(counts)
    comm.Alltoall(counts, coming)
    got = np.empty(coming.sum(), np.int64)
    comm.Alltoallv([keys[order], counts], [got, coming])
    state["sorted"] = np.sort(got)


def _is_result(mpi: Any, comm: Any, state: State) -> NDArray[Any]:
    parts = comm.gather(state["sorted"], root=0)
    return np.asarray(comm.bcast(np.concatenate(parts) if comm.rank == 0 else None, root=0))


# ------------------------------------------------------------------------------------------------------------------ FT


def _ft_start(mpi: Any, comm: Any, size: int, seed: int) -> State:
    side = size // comm.size * comm.size
    random = _random(seed, comm.rank)
    grid = random.random((side // comm.size, side)) + 1j * random.random((side // comm.size, side))
    return {"grid": _transform(comm, grid), "sums": np.empty(0, complex)}


def _transform(comm: Any, grid: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(np.fft.fft(_transposed(comm, np.fft.fft(grid, axis=1)), axis=1))


def _transposed(comm: Any, grid: NDArray[Any]) -> NDArray[Any]:
    rows, side = grid.shape
    out = np.ascontiguousarray(grid.reshape(rows, comm.size, rows).transpose(1, 2, 0))
    back = np.empty_like(out)
    comm.Alltoall(out, back)
    return np.ascontiguousarray(back.transpose(1, 0, 2)).reshape(rows, side)


def _ft_step(mpi: Any, comm: Any, state: State, step: int) -> None:
    rows, side = state["grid"].shape
    at = np.minimum(np.arange(side), side - np.arange(side))
    near = at[comm.rank * rows : (comm.rank + 1) * rows]
    state["grid"] = state["grid"] * np.exp(-1e-4 * (near[:, None] ** 2 + at[None, :] ** 2))
    back = np.conj(_transform(comm, np.conj(state["grid"]))) / side**2
    total = np.empty(1, complex)
    comm.Allreduce(np.array([back[:, :: side // 8 or 1].sum()]), total, mpi.SUM)
    state["sums"] = np.append(state["sums"], total)


def _ft_result(mpi: Any, comm: Any, state: State) -> NDArray[Any]:
    return state["sums"]


# ---------------------------------------------------------------------------------------------------------------- heat


def _heat_start(mpi: Any, comm: Any, size: int, seed: int) -> State:
    return {"plate": np.pad(_random(seed, comm.rank).random((size // comm.size, size)), 1), "residual": np.zeros(1)}


def _heat_step(mpi: Any, comm: Any, state: State, step: int) -> None:
    plate = state["plate"]
    up = comm.rank - 1 if comm.rank else mpi.PROC_NULL
    down = comm.rank + 1 if comm.rank + 1 < comm.size else mpi.PROC_NULL
    into = [comm.Irecv(plate[0], up, 1), comm.Irecv(plate[-1], down, 2)]
    out = [comm.Isend(plate[-2], down, 1), comm.Isend(plate[1], up, 2)]
    mpi.Request.Waitall(into + out)
    new = plate.copy()
    new[1:-1, 1:-1] = 0.25 * (plate[:-2, 1:-1] + plate[2:, 1:-1] + plate[1:-1, :-2] + plate[1:-1, 2:])
    if step % 3 == 0:
        state["residual"] = np.array([comm.allreduce(float(np.abs(new - plate).max()), op=mpi.MAX)])
    state["plate"] = new


def _heat_result(mpi: Any, comm: Any, state: State) -> NDArray[Any]:
    parts = comm.allgather(state["plate"][1:-1].sum(axis=1))
    return np.concatenate([*parts, state["residual"]])


# ---------------------------------------------------------------------------------------------------------------- farm


def _farm_start(mpi: Any, comm: Any, size: int, seed: int) -> State:
    return {"area": np.zeros(1), "served": np.zeros(comm.size, np.int64), "of": np.array([seed, size])}


def _integral(low: float, high: float, points: int) -> float:
    x = np.linspace(low, high, points)
    y = np.sin(1 / (x + 0.01)) ** 2
    return float((y[1:] + y[:-1]).sum() * (high - low) / (points - 1) / 2)


def _farm_step(mpi: Any, comm: Any, state: State, step: int) -> None:
    """One round: intervals to whoever is free; the sum is taken in the order of the intervals, whoever had them."""
    points, asks, gets = int(state["of"][1]), 2 * step + 1, 2 * step + 2  # who is done early asks for the next round
    if comm.rank:
        comm.send(None, 0, tag=asks)
        while (task := comm.recv(source=0, tag=gets)) is not None:
            comm.send((task, _integral(task[0], task[1], points)), 0, tag=asks)
            state["served"][comm.rank] += 1
        return
    tasks = [((step + at / 8), (step + (at + 1) / 8)) for at in range(8)]
    found, idle, status = {}, 0, mpi.Status()
    while idle < comm.size - 1:
        answer = comm.recv(source=mpi.ANY_SOURCE, tag=asks, status=status)
        if answer is not None:
            found[answer[0]] = answer[1]
            state["served"][status.Get_source()] += 1
        task = tasks.pop() if tasks else None
        idle += task is None
        comm.send(task, status.Get_source(), tag=gets)
    if comm.size == 1:
        found = {task: _integral(*task, points) for task in tasks}
    state["area"] += sum(found[task] for task in sorted(found))


def _farm_result(mpi: Any, comm: Any, state: State) -> NDArray[Any]:
    """The integral, and whether rank 0 has counted of everybody what everybody has served."""
    served = comm.gather(int(state["served"][comm.rank]), root=0)
    agreed = comm.rank == 0 and served[1:] == state["served"][1:].tolist()
    return np.asarray(comm.bcast(np.array([state["area"][0], agreed]), root=0))


KERNELS = {
    "cg": Kernel(_cg_start, _cg_step, _cg_result),
    "ep": Kernel(_ep_start, _ep_step, _ep_result),
    "is": Kernel(_is_start, _is_step, _is_result),
    "ft": Kernel(_ft_start, _ft_step, _ft_result),
    "heat": Kernel(_heat_start, _heat_step, _heat_result),
    "farm": Kernel(_farm_start, _farm_step, _farm_result),
}
NAS, APPLICATIONS = ("cg", "ep", "is", "ft"), ("heat", "farm")


def run(mpi: Any, name: str, size: int, steps: int, seed: int) -> tuple[NDArray[Any], State]:
    """A whole program over any module that speaks as mpi4py's does: what it finds, and this rank's last state."""
    kernel, comm = KERNELS[name], mpi.COMM_WORLD
    state = kernel.start(mpi, comm, size, seed)
    for step in range(steps):
        kernel.step(mpi, comm, state, step)
    return kernel.result(mpi, comm, state), state
