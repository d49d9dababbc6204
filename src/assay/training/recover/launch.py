"""Start the replicas of a user's own script, with a keeper beside them, and go on while one of them lives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from assay.record.errors import BadInput
from assay.sim.ranks import ENVIRONMENT
from assay.training.recover.backends import Backend, Gloo
from assay.training.recover.keeper import TIMEOUT
from assay.training.recover.keeper_process import KeeperProcess
from assay.training.recover.replicas import BUCKET, EVERY, Replicas
from assay.training.recover.ulfm import PATIENCE as ULFM_PATIENCE
from assay.training.recover.ulfm import Ulfm

if TYPE_CHECKING:
    import torch

KEEPER, STORE, PATIENCE = "ASSAY_KEEPER", "ASSAY_STORE", "ASSAY_TIMEOUT"
TICK = 0.05
HANG_AFTER, START = 600.0, 120.0  # the second for imports, on a busy machine
SCRIPT = "assay.training.recover.script"  # runs a replica's
OUT = "hung", "silent", "never came", "spoke nonsense", "put out"  # why a process that may run has no place any more


def join(
    model: torch.nn.Module | Sequence[torch.nn.Parameter], batch: int, *, bucket: int = BUCKET,
    optimizer: torch.optim.Optimizer | None = None, every: int = EVERY,
) -> Replicas:  # fmt: skip
    """Take this process's place among the replicas that `assay recover run`, or `mpirun --with-ft ulfm`, started.

    Args:
        model: a module, or its parameters; all replicas get the weights and buffers of the first, as DDP does it.
        batch: microbatches of a step, all replicas together.
        bucket: bytes of gradients that are summed in one go.
        optimizer: whose settings and state are held against the others', with the weights, in the first two steps and
            then every so many; replicas that have come apart all stop.
        every: how many.

    Raises:
        BadInput: nobody started it so.
        Unequal: replicas have different models or batches.
    """
    around = os.environ
    backend: Backend
    if KEEPER in around:
        backend = Gloo(_address(KEEPER), _address(STORE), int(around["RANK"]), float(around.get(PATIENCE, TIMEOUT)))
    elif "OMPI_COMM_WORLD_RANK" in around:
        around.setdefault("RANK", around["OMPI_COMM_WORLD_RANK"])  # as the other way to start it sets it
        backend = Ulfm(float(around.get(PATIENCE, ULFM_PATIENCE)))
    else:
        raise BadInput("no replicas to join; start the script with 'assay recover run -n 4 train.py'")
    return Replicas(model, batch, backend, bucket=bucket, optimizer=optimizer, every=every)


def _address(name: str) -> tuple[str, int]:
    host, _, port = os.environ[name].rpartition(":")
    return host, int(port)


def _ended(
    running: dict[int, subprocess.Popen[bytes]], keeper: KeeperProcess, log: Callable[[str], None], hang_after: float
) -> dict[int, int]:
    """The exit codes of all processes, once they have ended; who is put out is killed, and who finished and stopped."""
    codes: dict[int, int] = {}
    killed: set[int] = set()
    ran: dict[int, float] = {}  # when each that finished was seen not to be stopped
    while len(codes) < len(running):
        ended = {rank: code for rank, one in running.items() if rank not in codes and (code := one.poll()) is not None}
        for rank, code in ended.items():
            codes[rank] = code
            keeper.exited(rank)
        keeper.poll(running.keys() - codes.keys())
        for rank, code in ended.items():
            if code:
                done = "had finished; its script" if rank in keeper.left else "died: it"
                log(f"replica {rank} {done} ended with code {code}; the others go on")
        for rank, why in keeper.lost:
            if why in OUT and rank not in killed and rank not in codes:
                killed.add(rank)
                log(f"replica {rank} is put out ({why}) and killed; the others go on")
                running[rank].kill()
        for rank in keeper.left - codes.keys() - killed:
            if rank not in ran or not _is_stopped(running[rank].pid):
                ran[rank] = time.monotonic()
            elif time.monotonic() - ran[rank] > hang_after:
                killed.add(rank)
                log(f"replica {rank} had finished; it was stopped before it ended and is killed")
                running[rank].kill()
        time.sleep(TICK)
    return codes


def _is_stopped(pid: int) -> bool:
    """Whether a signal holds a process, where the system shows it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:
        return False


def launch(
    script: Sequence[str], replicas: int, timeout: float = TIMEOUT, log: Callable[[str], None] = lambda _: None,
    hang_after: float = HANG_AFTER,
) -> dict[str, Any]:  # fmt: skip
    """Run a script in so many processes; who finished, who died, and the exit codes.

    A replica for which the others have waited for `hang_after` seconds without progress of its own is killed. One that
    finished its steps and failed afterwards is told from one that died before. The keeper is a process of its own; one
    that is killed, or does not answer, is replaced. If this process is killed, all replicas end with it.

    Raises:
        BadInput: no replica lived to the end.
    """
    import torch.distributed as dist

    if replicas < 1:
        raise BadInput(f"-n {replicas}: at least one replica is needed")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    running: dict[int, subprocess.Popen[bytes]] = {}

    def restarted(pid: int, why: str) -> None:
        log(f"the keeper {why}; process {pid} keeps on")

    with KeeperProcess(
        replicas, restarted, timeout=timeout, hang_after=hang_after, start=max(hang_after, START)
    ) as keeper:
        around = {
            **os.environ, **ENVIRONMENT, "GLOO_SOCKET_IFNAME": "lo", KEEPER: "{}:{}".format(*keeper.address),
            STORE: f"127.0.0.1:{store.port}", PATIENCE: str(timeout), "WORLD_SIZE": str(replicas),
        }  # fmt: skip
        try:
            for rank in range(replicas):
                line = [sys.executable, "-m", SCRIPT, str(os.getpid()), *script]
                running[rank] = subprocess.Popen(line, env={**around, "RANK": str(rank)})
            processes = ", ".join(f"{rank} is process {one.pid}" for rank, one in running.items())
            log(f"replicas: {processes}; the keeper is process {keeper.pid}")
            codes = _ended(running, keeper, log, hang_after)
        finally:
            for one in running.values():
                if one.poll() is None:
                    one.send_signal(signal.SIGKILL)
                one.wait()
    if all(codes.values()):
        raise BadInput(f"no replica of {script[0]} lived to the end; exit codes {sorted(set(codes.values()))}")
    return {
        "replicas": replicas,
        "survivors": sorted(rank for rank, code in codes.items() if code == 0),
        "finished": sorted(keeper.left),
        "codes": codes,
        "keepers": 1 + keeper.restarts,
    }
