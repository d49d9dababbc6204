"""A job to watch: each rank sleeps through its stages, and rank 1 waits for its data. Needs no GPU and no model.

assay watch run -- torchrun --nproc-per-node 2 examples/train.py
"""

import os
import time

from assay.live import monitor

SLOW = int(os.environ.get("RANK", "0")) == 1

for _ in range(60):
    with monitor.stage("data"):
        time.sleep(0.02 if SLOW else 0.002)
    with monitor.stage("forward"):
        time.sleep(0.005)
    with monitor.stage("backward"):
        time.sleep(0.01 if SLOW else 0.028)  # the others wait for rank 1 here
    with monitor.stage("optimizer"):
        time.sleep(0.002)
    monitor.step()
