"""PartRePer-MPI: give some ranks of an MPI job a second process that computes the same and takes over when one dies.

A long job on many machines is interrupted whenever one process dies, and restarts from a checkpoint. With a replica
for a rank, both carry it: each message goes to both carriers of whoever gets it, replicas feed replicas, and if a
process dies, the other one is the rank. Nobody rolls back. What got lost on the way is in the senders' logs, under
numbers, and is sent again. Replicating all ranks halves the machine; replicating some (those on nodes that fail more
often, say) is the paper's middle way. What to watch: a job survives only as long as no rank loses its last carrier,
and both carriers must compute the same: a script that branches on time, or on random numbers without a seed, must not.

The layer is real: `from assay.training.partreper import MPI` instead of `from mpi4py import MPI`, started by
`assay partreper run`. Receives from any source follow the primary's choice, which the replica knows before anything is
sent that depends on it. Collectives are trees of the layer's own messages. Deaths are found by ULFM (Open MPI 5), then
revoke, shrink, exchange of numbers, resending. Known of the paper are roles, communicators, resending and replay; the
rest is inferred. Two things differ: the paper moves data by a second, native MPI in the same process, here all is one
Open MPI over sockets; and it forwards the results of collectives to replicas, who here take part message by message,
which costs more messages and survives a second death inside the same collective.

Beside it: plain MPI, full replication, and checkpoints at Daly's interval with restarts, both run and modelled.

arXiv:2310.16370.

>>> round(mean_time_to_interrupt(1000, 500) / mean_time_to_interrupt(1000, 0), 2)  # a replica for every second rank
1.99
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from assay.record.measures import Measure, best, change, clocked, counted, ratio, rows, share
from assay.record.types import Claim, Estimate, Evidence, Kind
from assay.training.partreper import trials
from assay.training.partreper.kernels import APPLICATIONS, NAS
from assay.training.partreper.launch import Interrupted as Interrupted
from assay.training.partreper.launch import kill as kill
from assay.training.partreper.launch import replicate as replicate
from assay.training.partreper.launch import script as run_script
from assay.training.partreper.model import Fleet as Fleet
from assay.training.partreper.model import efficiency as efficiency
from assay.training.partreper.model import mean_time_to_interrupt as mean_time_to_interrupt

if TYPE_CHECKING:  # a job's processes import this, and no table
    import altair as alt
    import polars as pl

    from assay.record.lab import Lab

__all__ = ["MPI", "Fleet", "Interrupted", "efficiency", "kill", "mean_time_to_interrupt", "replicate", "run_script"]

evidence = Evidence.REAL
needs = ("mpi",)
use_when = (
    "An MPI job is interrupted so often that checkpoints and restarts eat more than the replicas would, or few of its "
    "nodes are known to fail more often than the others."
)
avoid_when = (
    "Failures are rare against a checkpoint's cost: each replica is a process that could compute. Or ranks do not "
    "compute the same twice (time, unseeded randomness, files written by every process)."
)
trust = (
    "Deaths, results, messages and restarts are real, of small jobs on one machine. Interrupts and efficiency of 1,000 "
    "to 100,000 processes are a model: independent deaths at a constant rate, replicas not replaced before a restart, "
    "work in proportion to ranks."
)
own_input = "assay partreper run -n 4 --replicas 2 examples/heat_mpi.py"
references = (
    "ULFM: Bland et al., 2013 (revoke, shrink, agree).",
    "Full replication: rMPI, Ferreira et al., SC 2011; partial: Stearley et al., 2012.",
    "Checkpoint interval: Young, 1974; Daly, 2006.",
)

DEATHS = ("one process", "inside a call", "two pairs", "within recovery")
SCALES = (1_000, 10_000, 100_000)
LIVES = (154.0, 1826.0)  # days: Meta's research clusters lose 6.5 of 1,000 nodes a day; five years
LIFE = LIVES[0]


def __getattr__(name: str) -> Any:
    """`MPI` connects this process to the job when it is first asked for, and needs the extra `mpi`."""
    if name == "MPI":
        from assay.training.partreper.face import connected

        return connected()
    raise AttributeError(f"module {__name__} has no attribute {name}")


def study(lab: Lab) -> dict[str, pl.DataFrame]:
    """Real jobs with deaths, messages and seconds; interrupts and efficiency of large machines."""
    here = replace(lab, workers=0)
    some = lab.pick(quick={"ranks": 3, "replicas": 2}, full={"ranks": 4, "replicas": 2})
    lone = lab.pick(quick={"ranks": 2, "replicas": 1}, full={"ranks": 4, "replicas": 2})
    pace = lab.pick(quick={"size": "S", "rounds": 3}, full={"size": "W", "rounds": 7})
    crowds = [{"ranks": 4, "replicas": replicas} for replicas in lab.pick(quick=(2,), full=(0, 2, 4))]
    machines = [{"processes": processes, "life_days": life} for processes in SCALES for life in LIVES]
    return {
        "deaths": here.with_seeds(quick=1, full=10).run(trials.survive, [{**some, "cases": DEATHS}], per="case"),
        "unreplicated": here.with_seeds(quick=1, full=10).run(trials.unreplicated, [lone]),
        "restart": here.with_seeds(quick=1, full=5).run(trials.restarted, [{"ranks": 2, "steps": 30}], per="system"),
        "overhead": here.with_seeds(quick=1, full=5).run(trials.overhead, [pace], per="case"),
        "crowded": here.with_seeds(quick=1, full=3).run(trials.crowded, crowds),
        "scale": lab.with_seeds(quick=1, full=1).run(trials.at_scale, machines, per="degree"),
    }


def _slower(kernels: tuple[str, ...], than: str = "plain") -> Measure:
    """The worst program's change of seconds."""
    return best({
        kernel: change("seconds", new={"system": "partreper"}, old={"system": than}, experiment="overhead",
                       kernel=kernel)
        for kernel in kernels
    })  # fmt: skip


def _scaled(column: str, of: float, processes: int) -> Measure:
    """A degree of replication over none: computed, not drawn."""
    where = {"experiment": "scale", "processes": processes, "life_days": LIFE}
    times = ratio(column, of={"fraction": of}, to={"fraction": 0.0}, **where)
    return lambda table: counted(times(table).value)


def _partial(table: pl.DataFrame) -> Estimate:
    """The best middle way's efficiency over the better of none and full, on the machine where that is largest."""
    import polars as pl

    found = []
    for _, some in rows(table, {"experiment": "scale"}).group_by("processes", "life_days"):
        end = pl.col("fraction").is_in([0.0, 1.0])
        middle, ends = (some.filter(which)["efficiency"].to_numpy().max() for which in (~end, end))
        found.append(float(middle / ends))
    return counted(max(found), len(found))


def _again(table: pl.DataFrame) -> Estimate:
    """The fewest steps that a restarted job computed again."""
    found = rows(table, {"experiment": "restart", "system": "checkpoints"})["again"]
    return counted(float(found.to_numpy().min()), len(found))


_ON_TIME = {"experiment": "overhead"}
_MODEL = Evidence.MODEL
claims = [
    Claim("nas", clocked(_slower(NAS), **_ON_TIME)),
    Claim("applications", clocked(_slower(APPLICATIONS), **_ON_TIME)),
    Claim("interrupt", _scaled("same_ranks", 0.5, 10_000), evidence=_MODEL),
    Claim(
        "same", share("same", experiment="deaths"), kind=Kind.EVERY,
        asks="Every job finds bit by bit what it finds when nobody dies, whichever replicated process is killed and at "
             "whichever call: one, one of each of two pairs, or a second one during the recovery from the first.",
    ),
    Claim(
        "messages", share("as_counted", experiment="deaths", case="nobody dies"), kind=Kind.EVERY,
        asks="Every job in which nobody dies puts exactly one message on the wire for each carrier of the rank that it "
             "goes to.",
    ),
    Claim(
        "told", share("told", experiment="unreplicated"), kind=Kind.EVERY,
        asks="Every death of a rank without a replica ends the job with the name of that rank, and none hangs.",
    ),
    Claim(
        "restarts", share("same", experiment="restart"), kind=Kind.EVERY,
        asks="Every job finds the same by restarts from checkpoints and by full replication, after one death.",
    ),
    Claim(
        "rework", _again, kind=Kind.AT_LEAST, value=1.0,
        unit="count", asks="After one death, restarts at Daly's interval compute at least 1 of 30 steps again.",
    ),
    Claim(
        "layer", clocked(_slower(NAS, "plain over sockets"), **_ON_TIME), kind=Kind.AT_MOST, value=0.064,
        unit="change",
        asks="Numbers, logs and the layer's own collectives cost at most 6.4 % on the NAS-like programs against plain "
             "MPI over the same sockets, with two ranks on two processors.",
    ),
    Claim(
        "full-pays", _scaled("efficiency", 1.0, 100_000), kind=Kind.RATIO, toward="up", evidence=_MODEL,
        asks="On 100,000 processes that live 154 days each, full replication gets more work done than checkpoints "
             "alone, with as many processes.",
    ),
    Claim(
        "small-pays", _scaled("efficiency", 0.5, 1_000), kind=Kind.RATIO, toward="up", evidence=_MODEL,
        asks="On 1,000 such processes a replica for every second rank gets more work done than checkpoints alone.",
    ),
    Claim(
        "middle", _partial, kind=Kind.RATIO, toward="up", evidence=_MODEL,
        asks="On some machine of 1,000 to 100,000 processes that fail alike, partial replication gets more work done "
             "than none and than full replication.",
    ),
]  # fmt: skip


def plot(table: pl.DataFrame) -> alt.Chart:
    """Work that counts by degree of replication and size of the machine."""
    import altair as alt
    import polars as pl

    found = rows(table, {"experiment": "scale"}).with_columns(
        machine=pl.format("{} processes of {} days", "processes", pl.col("life_days").cast(pl.Int64))
    )
    chart: alt.Chart = (
        alt.Chart(found)
        .mark_line(point=True)
        .encode(
            x=alt.X("fraction:Q", title="ranks with a replica", axis=alt.Axis(format="%")),
            y=alt.Y("efficiency:Q", title="work that counts, of all processes' time", axis=alt.Axis(format="%")),
            color=alt.Color(
                "machine:N",
                title=None,
                sort=found["machine"].unique(maintain_order=True).to_list(),
                legend=alt.Legend(columns=2),
            ),
        )
        .properties(width=380, height=260, title="Checkpoints alone, or replicas as well?")
    )
    return chart
