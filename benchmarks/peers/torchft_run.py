"""One replica of the same job under torchft: its lighthouse finds the quorum, each replica computes its own share.

Started by `benchmarks/training_recover.py --torchft`, with a TCP store and a lighthouse of its own.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from assay.training.recover.job import Kill, Training, loss_of, network, tokens, windows


def main(folder: Path, rank: int, lighthouse: str, mode: str) -> None:
    from torchft import Manager, ProcessGroupGloo  # type: ignore[import-not-found]
    from torchft.manager import WorldSizeMode  # type: ignore[import-not-found]

    logging.disable(logging.CRITICAL)
    asked = json.loads((folder / "job.json").read_text())
    training, kills = Training(**asked["training"]), [Kill(**kill) for kill in asked["kills"]]
    active = training.replicas - training.spares
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
    params, optimizer = network(training)
    limit = timedelta(seconds=training.timeout)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=limit), min_replica_size=1 if mode == "DYNAMIC" else active, timeout=limit,
        load_state_dict=lambda state: None, state_dict=dict, use_async_quorum=False, init_sync=False,
        quorum_timeout=timedelta(seconds=60), lighthouse_addr=lighthouse, replica_id=f"replica_{rank}", rank=0,
        world_size=1, store_addr="127.0.0.1", store_port=store.port, world_size_mode=WorldSizeMode[mode],
        hostname="127.0.0.1",
    )  # fmt: skip
    ids, each = tokens(training), training.batch // active
    (folder / f"{rank}.here").write_text("")
    while len(list(folder.glob("*.here"))) < training.replicas:
        time.sleep(0.02)
    log: dict[str, Any] = {"losses": [], "counted": [], "ended": [], "computed": 0}
    began = time.monotonic()
    while manager.current_step() < training.steps:
        step = manager.current_step()
        manager.start_quorum()
        optimizer.zero_grad()
        place = manager.participating_rank()
        mine = range(0) if place is None else range(place * each, (place + 1) * each)
        total = 0.0
        for one in mine:
            loss = loss_of(params, windows(training, step, one, ids))
            loss.backward()
            total += float(loss.detach())
            log["computed"] += 1
        if any(kill.rank == rank and kill.step == step for kill in kills):
            os.kill(os.getpid(), signal.SIGKILL)
        some = list(params.tensors.values())
        flat = torch.cat([torch.zeros_like(t).flatten() if t.grad is None else t.grad.flatten() for t in some])
        flat = torch.cat([flat, torch.tensor([total])]) / each
        manager.allreduce(flat).wait()  # the mean over participants
        if manager.should_commit():
            at = 0
            for t in some:
                t.grad = flat[at : at + t.numel()].view_as(t).clone()
                at += t.numel()
            optimizer.step()
            log["losses"].append(float(flat[-1]))
            log["counted"].append(each * manager.num_participants())
            log["ended"].append(time.monotonic() - began)
    weights = np.concatenate([t.detach().numpy().ravel() for t in params.tensors.values()])
    np.savez(folder / f"{rank}.part.npz", weights=weights, **log)
    (folder / f"{rank}.part.npz").rename(folder / f"{rank}.npz")
    os._exit(0)  # its threads would wait for peers that are gone


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], sys.argv[4])
