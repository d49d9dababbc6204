"""What a training job imports: which stage it is in, told to `assay watch` without ever holding the job up.

    from assay.live import monitor

    for batch in loader:                    # or all of it in one call:
        with monitor.stage("forward"):      # model, optimizer, loader = monitor.wrap(model, optimizer, loader)
            loss = model(batch)
        ...
        monitor.step()

`ASSAY_WATCH` says where to report: `host:port` of an `assay watch`, or a folder that it reads. Where it is not set,
nothing is measured. There is one monitor a process; it starts with the first stage and ends with the process. Its rank
is that of `torch.distributed`, or of the launcher's environment (RANK, SLURM_PROCID, ...). Workers of data loaders and
other children of a rank do not report. Call it from the thread that trains; other threads are not counted.

>>> import tempfile
>>> folder = tempfile.mkdtemp()
>>> start(folder, rank=0, size=1)
True
>>> for _ in range(3):
...     with stage("data"):
...         batch = list(range(1000))
...     with stage("forward"):
...         loss = sum(batch)
...     step()
>>> stop()
>>> from assay.live.watch.sources import Folder
>>> [(said.rank, said.steps, said.last) for _, said in Folder(folder).read()]
[(0, 3, False), (0, 3, True)]
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from threading import get_ident
from typing import TYPE_CHECKING, Any

from assay.live.watch.send import Speaker, outlet
from assay.live.watch.wire import MOST_RANKS
from assay.observe.frontier.collector import STAGES, Collector
from assay.record.errors import BadInput

if TYPE_CHECKING:
    from assay.live.watch.hooks import Hooks

VARIABLE = "ASSAY_WATCH"
MARK = "ASSAY_WATCH_REPORTER"  # the process that reports; its children inherit it and keep quiet
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)
_NAMES = 64  # unknown stage names that are remembered

log = logging.getLogger("assay.monitor")


class Monitor:
    """A collector and the thread that sends what it finished."""

    def __init__(self, collector: Collector, speaker: Speaker) -> None:
        self.collector, self.speaker = collector, speaker
        self.hooks: Hooks | None = None


Context = AbstractContextManager[Any]
_NOTHING: Context = nullcontext()
_places: dict[str, Context] = {}  # what `stage` hands out, by name: one look-up is all that a boundary costs
_running: Monitor | None = None
_tried = False
_trainer = 0  # the thread whose stages count


def start(
    to: str | None = None, rank: int | None = None, size: int | None = None, stages: Sequence[str] = STAGES
) -> bool:
    """Start to report; needed only to say more than the environment does. False, and one line of log: it cannot.

    Args:
        to: `host:port` or a folder; otherwise what `ASSAY_WATCH` says.
        rank: which rank this process is, of `size`; otherwise torch.distributed or the launcher knows.
        size: how many ranks there are.
        stages: names, in the order in which a step goes through them; what is left of a step goes to the last.
    """
    global _running, _tried, _trainer
    if _running is not None:
        return True
    _tried = True
    to = to or os.environ.get(VARIABLE, "")
    if why := _child():
        log.debug("nothing is reported: %s", why)
        return False
    if not to:
        if os.environ.get("RANK", "0") == "0":  # once a job, not once a rank
            log.warning("nothing is reported: %s is not set; 'assay watch' says what to set it to", VARIABLE)
        return False
    given = None if rank is None else (rank, 1 + rank if size is None else size)
    known = given or identity()
    try:
        if known and not 0 <= known[0] < known[1] <= MOST_RANKS:
            raise BadInput(f"rank {known[0]} of {known[1]}; at most {MOST_RANKS:,} ranks can be watched")
        collector = Collector(*(known or (0, 1)), stages)
        speaker = Speaker(collector, outlet(to), (lambda: given) if given else identity, _deferred)
        speaker.start()
    except (BadInput, OSError, RuntimeError) as error:  # no thread, no socket: the job goes on without
        log.warning("nothing is reported: %s", error)
        return False
    os.environ[MARK] = _mark()
    _places.clear()
    _places.update({name: collector.stage(name) for name in collector.stages})
    _running, _trainer = Monitor(collector, speaker), get_ident()
    atexit.register(stop)
    _at_the_end_of_a_child()
    return True


def stage(name: str) -> Context:
    """A stage of the step: `with monitor.stage("forward"): …`."""
    found = _places.get(name)
    if found is not None and get_ident() == _trainer:
        return found
    return _seldom(name)


def step() -> None:
    """The step ended; the next begins."""
    global _trainer
    if _running is None:
        if not _tried:
            start()
        return
    _trainer = get_ident()
    if _running.hooks is not None:
        _running.hooks.by_hand()
    _running.collector.step()


def wrap(model: Any, optimizer: Any = None, loader: Any = None) -> tuple[Any, Any, Any]:
    """Measure a torch model, its optimizer (or several) and its data loader without another line in the job.

    The model, plain or in DDP, gets hooks around its forward pass, `backward()` is timed as a whole, and under DDP the
    wait for the other ranks' gradients is told apart as the stage `sync`. A step ends where the first batch after an
    optimizer step is asked for, so gradient accumulation is one step. `monitor.step()` overrides that. What is handed
    back is the same model and optimizer, and a loader that behaves as the one given.
    """
    from assay.live.watch.hooks import Hooks, stages_of

    if _running is None and not _tried:
        start(stages=stages_of(model))
    if _running is None:
        return model, optimizer, loader
    if _running.hooks is None:
        _running.hooks = Hooks(_running)
    return _running.hooks.wrap(model, optimizer, loader)


def stop() -> None:
    """Send what is left, say goodbye and take all hooks away; a process that ends does it by itself."""
    global _running, _tried
    running, _running, _tried = _running, None, False
    _places.clear()
    if running is None:
        return
    atexit.unregister(stop)
    os.environ.pop(MARK, None)
    if running.hooks is not None:
        running.hooks.remove()
    running.speaker.finish()


def identity() -> tuple[int, int] | None:
    """Which rank of how many this process is, as far as torch.distributed or the launcher's environment says."""
    distributed = sys.modules.get("torch.distributed")  # not imported for this: a job without torch needs none
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    for rank, size in _LAUNCHERS:
        said = os.environ.get(rank, ""), os.environ.get(size, "")
        if all(value.isascii() and value.isdigit() for value in said):
            return int(said[0]), int(said[1])
    return None


def _seldom(name: str) -> Context:
    """The first stage of all, a name that nobody declared, a thread that does not train, a job without a watcher."""
    if _running is None:
        if not _tried and start():
            return stage(name)
        return _NOTHING
    if name not in _places and len(_places) < _NAMES:
        stages = _running.collector.stages
        log.warning("no stage '%s'; its time counts as '%s'. Stages are %s", name, stages[-1], ", ".join(stages))
        _places[name] = _NOTHING
    return _NOTHING


def _child() -> str:
    """Whose child this process is, if it is one that should not report."""
    worker = sys.modules.get("torch.utils.data._utils.worker")
    if worker is not None and worker.get_worker_info() is not None:
        return "this is a worker of a data loader"
    mark = os.environ.get(MARK, "")
    if mark and mark != _mark() and mark.partition(":")[2] == _mark().partition(":")[2]:
        return f"process {mark.partition(':')[0]}, which started this one, reports"
    return ""


def _at_the_end_of_a_child() -> None:
    """Say goodbye in a forked child of multiprocessing too, which leaves without what `atexit` was told."""
    if "multiprocessing" in sys.modules:
        from multiprocessing import parent_process, util

        if parent_process() is not None:
            util.Finalize(None, stop, exitpriority=0)


def _mark() -> str:
    """Process and rank. A child with another rank is one that a rank has started, and reports."""
    return f"{os.getpid()}:{os.environ.get('RANK', '')}"


def _deferred() -> bool:
    """Whether work is queued on a GPU, so that the host does not see how long it takes."""
    cuda = sys.modules.get("torch.cuda")
    return cuda is not None and bool(cuda.is_initialized())


def _forget() -> None:
    """In a forked child: the thread did not come along, and the rank is the parent's. A launcher's child is a rank."""
    global _running, _tried
    _running, _tried = None, _tried or _running is not None
    _places.clear()
    atexit.unregister(stop)


os.register_at_fork(after_in_child=_forget)
