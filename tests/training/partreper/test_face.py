"""A user's mpi4py script runs by changing its import; what chance decides is the same on both carriers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.cli.partreper import command
from assay.record.errors import BadInput
from assay.training.engine import mpi
from assay.training.partreper import kill, launch, replicate
from assay.training.partreper.face import Comm, blocks, flat
from assay.training.partreper.process import ANY, Message, Receive, Sent

EXAMPLE = Path(__file__).parents[3] / "examples" / "heat_mpi.py"
MANY_CALLS = """
import numpy as np
from assay.training.partreper import MPI

comm = MPI.COMM_WORLD
rank, size = comm.Get_rank(), comm.Get_size()
out = []
status = MPI.Status()
if rank == 0:  # the order in which they come is anybody's guess, and the same for both carriers
    requests = [comm.irecv(source=MPI.ANY_SOURCE, tag=7) for _ in range(size - 1)]
    polls = 0
    while not requests[0].Test():
        polls += 1
    left = requests[1:]
    order = [MPI.Request.waitany(left)]
    del left[order[0][0]]
    order += [one.wait() for one in left]
    while not comm.Iprobe(MPI.ANY_SOURCE, 8, status):
        polls += 1
    order.append(comm.recv(source=status.Get_source(), tag=8))
    comm.Probe(MPI.ANY_SOURCE, 8, status)
    order.append(comm.recv(source=status.Get_source(), tag=8))
    comm.send((order, polls), 1, tag=9)
else:
    comm.isend(rank, 0, tag=7).wait()
    if rank < 3:
        comm.send(rank, 0, tag=8)
    if rank == 1:
        order, polls = comm.recv(source=0, tag=9)
told = comm.bcast((order, polls) if rank == 1 else None, root=1)
out.append(rank > 1 or told == (order, polls))
half = comm.Split(rank % 2, rank)
out.append(half.allreduce(rank) == sum(range(rank % 2, size, 2)))
out.append(comm.Dup().reduce(rank, op=MPI.MAX, root=1) == (size - 1 if rank == 1 else None))
out.append(comm.scatter([10 * one for one in range(size)] if rank == 2 else None, root=2) == 10 * rank)
out.append(comm.gather(rank, root=2) == (list(range(size)) if rank == 2 else None))
out.append(comm.alltoall([(rank, one) for one in range(size)]) == [(one, rank) for one in range(size)])
a = np.full(3, float(rank))
comm.Allreduce(MPI.IN_PLACE, a, op=MPI.MIN)
b = np.empty((size, 2), "i4")
comm.Allgather([np.array([rank, -rank], "i4"), MPI.INT], b)
c = np.zeros(3)
comm.Reduce(np.arange(3.0), c, root=0)
d = np.arange(4.0) if rank == 3 else np.empty(4)
comm.Bcast(d, root=3)
e = np.empty(1 + rank)
comm.Scatterv([np.arange(10.0), [1, 2, 3, 4]] if rank == 0 else None, e, root=0)
f = np.empty(10) if rank == 0 else None
comm.Gatherv(e, [f, [1, 2, 3, 4]] if rank == 0 else None, root=0)
g = np.zeros(70_000)
comm.Sendrecv(np.full(70_000, float(rank)), (rank + 1) % size, recvbuf=g, source=(rank - 1) % size)
comm.Barrier()
out += [a.tolist() == [0.0] * 3, b[:, 0].tolist() == list(range(size)), d.tolist() == [0, 1, 2, 3],
        e.tolist() == list(range(rank * (rank + 1) // 2, (rank + 1) * (rank + 2) // 2)),
        rank > 0 or (c.tolist() == [0, size, 2 * size] and f.tolist() == list(range(10))), g[-1] == (rank - 1) % size]
print(rank, all(out), out if not all(out) else "")
"""
here = pytest.mark.skipif(mpi.mpirun() is None, reason="needs the extra mpi")


@here
@pytest.mark.alone
@pytest.mark.parametrize("kills", [[], pytest.param([(0, "call", 6), (5, "call", 9)], marks=pytest.mark.slow)])
def test_the_calls_of_mpi4py_do_what_they_do_there_and_chance_is_shared(
    kills: list[launch.Kill], tmp_path: Path
) -> None:
    (tmp_path / "many.py").write_text(MANY_CALLS)
    found = launch.script([str(tmp_path / "many.py")], 4, (0, 1), kills, limit=240.0)
    assert [text.split()[:2] for text in found.printed] == [[str(rank), "True"] for rank in range(4)], found.printed
    assert found.died == sorted(who for who, _, _ in kills)


@here
@pytest.mark.slow
def test_chance_is_shared_whoever_dies_where(tmp_path: Path) -> None:
    """Every call of both carriers of rank 0, which alone lets chance decide."""
    (tmp_path / "many.py").write_text(MANY_CALLS)
    for who in (0, 4):
        for at in range(0, 24, 2):
            found = launch.script([str(tmp_path / "many.py")], 4, (0, 1), [(who, "call", at)], limit=240.0)
            assert all(text.split()[1] == "True" for text in found.printed), (who, at, found.printed)


@here
@pytest.mark.alone
def test_the_example_runs_as_written_with_a_death_and_says_who_died() -> None:
    arguments = ["run", "-n", "2", "--replicate", "1", "--kill", "1:25", "--json", str(EXAMPLE)]
    said = json.loads(CliRunner().invoke(command, arguments, catch_exceptions=False).output)
    assert said["died"] == [1] and said["printed"][0].startswith("2 ranks, heat ") and said["printed"][1] == ""


@here
@pytest.mark.alone
def test_a_script_that_fails_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("from assay.training.partreper import MPI\nMPI.COMM_WORLD.Ibarrier()\n")
    with pytest.raises(BadInput, match="Ibarrier: partial replication has no such call"):
        launch.script([str(tmp_path / "bad.py")], 1, ())
    with pytest.raises(BadInput, match="no such script"):
        launch.script(["nowhere.py"], 1, ())


def test_ranks_and_deaths_of_the_command_line() -> None:
    assert replicate(3, 3) == (0, 1, 2) and replicate(3, 0) == ()
    for bad in ((2, 3, ""), (2, 0, "2"), (2, 0, "x"), (2, 0, "-1")):
        with pytest.raises(BadInput, match=r"would be right|there are ranks 0 to 1"):
            replicate(*bad)
    for word in ("3", "9:1", "a:b", "1:"):
        with pytest.raises(BadInput, match="--kill"):
            kill(word, 6)


# -------------------------------------------------------------------------------------------------- without processes


class Wire:
    """Processes of a toy machine, which only keeps what is put on it."""

    def __init__(self, me: int, carriers: dict[int, list[int]]) -> None:
        self.rank = next(rank for rank, some in carriers.items() if me in some)
        self.me, self.carriers = me, carriers


@given(st.lists(st.booleans(), min_size=2, max_size=5), st.data())
@settings(max_examples=60, deadline=None)
def test_every_carrier_gets_each_message_once_whoever_is_left(replicated: list[bool], data: st.DataObject) -> None:
    """The rule of who sends to whom, against: each living carrier of the destination, from exactly one carrier."""
    from assay.training.partreper.process import Process

    ranks = len(replicated)
    carriers = {rank: [rank, ranks + rank] if twin else [rank] for rank, twin in enumerate(replicated)}
    for some in carriers.values():
        if len(some) > 1 and data.draw(st.booleans()):
            some.pop(data.draw(st.integers(0, 1)))
    for source in range(ranks):
        for dest in range(ranks):
            got = [to for me in carriers[source] for to in Process.targets(Wire(me, carriers), dest)]  # type: ignore[arg-type]
            assert sorted(got) == sorted(carriers[dest])


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 9)), max_size=20))
@settings(max_examples=50, deadline=None)
def test_a_log_keeps_what_some_living_carrier_lacks(acks: list[tuple[int, int]]) -> None:
    sent = Sent()
    for number in range(10):
        sent.entries.append((number, np.zeros(3, np.uint8)))
        sent.count, sent.nbytes = number + 1, sent.nbytes + 3
    for carrier, have in acks:
        sent.have[carrier] = max(have, sent.have.get(carrier, 0))
        sent.forget([0, 1])
        floor = min(sent.have.get(0, 0), sent.have.get(1, 0))
        assert [number for number, _ in sent.entries] == list(range(floor, 10)) and sent.nbytes == 3 * (10 - floor)


def test_receives_overlap_where_one_message_could_be_for_both() -> None:
    first, other = Receive(0, ANY, 3), Receive(0, 2, ANY)
    assert first.overlaps(other) and other.fits(Message(2, 9, 0, np.empty(0, np.uint8), 0))
    assert not first.overlaps(Receive(0, 1, 4)) and not first.overlaps(Receive(2, 1, 3))


def test_buffers_as_mpi4py_writes_them() -> None:
    assert flat(bytearray(b"abc")).tolist() == [97, 98, 99]
    assert [len(some) for some in blocks(np.arange(6), 3)] == [2, 2, 2]
    assert [some.tolist() for some in blocks([np.arange(6), ([1, 2], [4, 0])], 2)] == [[4], [0, 1]]
    with pytest.raises(ValueError, match="contiguous"):
        flat(np.zeros((4, 4))[:, 1])
    with pytest.raises(AttributeError, match="no such call"):
        Comm.__getattr__(object.__new__(Comm), "Ireduce")
