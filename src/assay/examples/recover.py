"""A data-parallel loop that survives kill -9 of its replicas; the lines with `job` are all that is new in it.

assay recover run -n 3 examples/recover.py
"""

import os
import signal

import torch

from assay.training.recover import join

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
job = join(model, batch=6, optimizer=optimizer)  # microbatches a step, whoever is alive

for step in range(10):
    for one in job.step():  # which of them this replica computes; grows when another one dies
        x = torch.randn(16, 8, generator=torch.Generator().manual_seed(1000 * step + one))
        loss = (model(x)[:, 0] - x.sum(dim=1)).pow(2).mean()
        loss.backward()
        job.note(loss)
        if step == 4 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)  # as a failing machine would
    optimizer.step()  # the gradient is the mean over all six
    optimizer.zero_grad()

print(f"replica {os.environ['RANK']}: {len(job.members)} are left, loss {job.loss:.4f}")
job.leave()
