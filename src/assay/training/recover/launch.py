"""Start the replicas of a user's own script, with a keeper beside them, and go on while one of them lives."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from assay.record.errors import BadInput
from assay.sim.ranks import ENVIRONMENT
from assay.training.recover.backends import Backend, Gloo
from assay.training.recover.keeper import TIMEOUT, Keeper
from assay.training.recover.replicas import BUCKET, Replicas
from assay.training.recover.ulfm import PATIENCE as ULFM_PATIENCE
from assay.training.recover.ulfm import Ulfm

if TYPE_CHECKING:
    import torch

KEEPER, STORE, PATIENCE = "ASSAY_KEEPER", "ASSAY_STORE", "ASSAY_TIMEOUT"
TICK = 0.05


def join(model: torch.nn.Module | Sequence[torch.nn.Parameter], batch: int, *, bucket: int = BUCKET) -> Replicas:
    """Take this process's place among the replicas that `assay recover run`, or `mpirun --with-ft ulfm`, started.

    Args:
        model: a module, alike on all replicas, or its parameters.
        batch: microbatches of a step, all replicas together.
        bucket: bytes of gradients that are summed in one go.

    Raises:
        BadInput: nobody started it so.
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
    return Replicas(model, batch, backend, bucket=bucket)


def _address(name: str) -> tuple[str, int]:
    host, _, port = os.environ[name].rpartition(":")
    return host, int(port)


def launch(
    script: Sequence[str], replicas: int, timeout: float = TIMEOUT, told: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Run a script in so many processes; who died, and the exit codes.

    Raises:
        BadInput: no replica lived to the end.
    """
    import torch.distributed as dist

    if replicas < 1:
        raise BadInput(f"-n {replicas}: at least one replica is needed")
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    with Keeper(replicas, timeout) as keeper:
        around = {
            **os.environ, **ENVIRONMENT, "GLOO_SOCKET_IFNAME": "lo", KEEPER: "{}:{}".format(*keeper.address),
            STORE: f"127.0.0.1:{store.port}", PATIENCE: str(timeout), "WORLD_SIZE": str(replicas),
        }  # fmt: skip
        running = {
            rank: subprocess.Popen([sys.executable, *script], env={**around, "RANK": str(rank)})
            for rank in range(replicas)
        }
        told("replicas: " + ", ".join(f"{rank} is process {one.pid}" for rank, one in running.items()))
        codes: dict[int, int] = {}
        try:
            while len(codes) < replicas:
                for rank, one in running.items():
                    if rank not in codes and (code := one.poll()) is not None:
                        codes[rank] = code
                        keeper.never_came(rank)  # heeded if it had not joined
                        if code:
                            told(f"replica {rank} ended with code {code}; the others go on")
                time.sleep(TICK)
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
        "codes": codes,
    }
