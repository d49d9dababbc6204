"""A plate that cools, in strips of rows: a script of mpi4py in which only the import of MPI was changed.

assay partreper run -n 4 --replicas 2 --kill 0:25 examples/heat_mpi.py
"""

import numpy as np

from assay.training.partreper import MPI

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
plate = np.zeros((16 + 2, 64))  # own rows between two of the neighbours'
plate[1:-1] = np.random.default_rng(rank).random((16, 64))
up = rank - 1 if rank else MPI.PROC_NULL
down = rank + 1 if rank + 1 < size else MPI.PROC_NULL

for _ in range(20):
    comm.Sendrecv(plate[1], dest=up, recvbuf=plate[-1], source=down)
    comm.Sendrecv(plate[-2], dest=down, recvbuf=plate[0], source=up)
    plate[1:-1, 1:-1] = (plate[:-2, 1:-1] + plate[2:, 1:-1] + plate[1:-1, :-2] + plate[1:-1, 2:]) / 4

heat = comm.allreduce(plate[1:-1].sum(), op=MPI.SUM)
if rank == 0:
    print(f"{size} ranks, heat {heat:.6f}")
