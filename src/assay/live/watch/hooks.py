"""Stages of a torch job without a line in its loop: hooks on the model and the optimizer, a loader that is timed.

Torch itself is not imported before a job hands over a model, and then it has long been imported by the job.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from threading import get_ident
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from assay.observe.frontier.collector import STAGES, SYNC_STAGES

if TYPE_CHECKING:
    from assay.live.monitor import Monitor

log = logging.getLogger("assay.monitor")
_DEEP = 4  # levels of tuples and dictionaries in which a model's outputs are looked for


def is_ddp(model: Any) -> bool:
    """Whether a model averages its gradients with other ranks at the end of its backward pass."""
    parallel = sys.modules.get("torch.nn.parallel")
    inner = getattr(model, "_orig_mod", model)  # what torch.compile wrapped
    return parallel is not None and isinstance(inner, parallel.DistributedDataParallel)


def stages_of(model: Any) -> tuple[str, ...]:
    """The stages that can be told apart."""
    return SYNC_STAGES if is_ddp(model) else STAGES


class Hooks:
    """Everything that was hung into a job's model, optimizers and autograd, and how it is taken away again."""

    def __init__(self, monitor: Monitor) -> None:
        collector = monitor.collector
        self._monitor = monitor
        self._begin, self._end = collector.begin, collector.end
        self._places = {name: index for index, name in enumerate(collector.stages)}
        self._other = len(collector.stages) - 1
        self._undo: list[Callable[[], None]] = []
        self._seen: WeakSet[Any] = WeakSet()
        self._optimizers = self._loaders = 0
        self._stepped: set[int] = set()
        self._optimizing = self._begun = self._told = False
        self._automatic = True
        self._depth = 0
        self._thread = get_ident()

    def wrap(self, model: Any, optimizer: Any, loader: Any) -> tuple[Any, Any, Any]:
        """Hang in; the loader comes back as one that is timed."""
        if self._takes(model, "register_forward_pre_hook", "forward"):
            self._model(model)
        for one in optimizer if isinstance(optimizer, Sequence) else (optimizer,):
            if self._takes(one, "register_step_pre_hook", "optimizer"):
                self._optimizer(one)
        return model, optimizer, None if loader is None else self._timed(loader)

    def _takes(self, thing: Any, hook: str, stage: str) -> bool:
        """Whether something can be hooked into, and was not yet. What cannot is the job's to measure, not to fix."""
        if thing is None or any(thing is one for one in self._seen):
            return False
        if not hasattr(thing, hook):
            log.warning("a %s takes no hooks; time it with monitor.stage('%s')", type(thing).__name__, stage)
            return False
        self._seen.add(thing)
        return True

    def by_hand(self) -> None:
        """The job says itself where a step ends."""
        self._automatic = False

    def remove(self) -> None:
        """Leave the job's objects as they were found."""
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    # ------------------------------------------------------------------------------------ where a step ends

    def _next_batch(self) -> None:
        """A batch is asked for: if an optimizer has stepped, or there is none, a new step begins."""
        self._thread = get_ident()
        self._boundary(bool(self._stepped) or not self._optimizers)

    def _next_forward(self) -> None:
        """Without a loader, a step ends before the forward pass that follows the step of every optimizer."""
        if not self._loaders:
            self._boundary(len(self._stepped) == self._optimizers > 0)

    def _boundary(self, over: bool) -> None:
        if not self._automatic:
            return
        if not self._begun:
            self._begun = True
            self._monitor.collector.start()  # what was prepared before the first step is no step's time
        elif over:
            if self._optimizing:
                self._optimized()
            self._stepped.clear()
            self._monitor.collector.step()

    # ------------------------------------------------------------------------------------ model and backward

    def _model(self, model: Any) -> None:
        forward = self._places.get("forward", self._other)
        waits = is_ddp(model) and "sync" in self._places

        def before(module: Any, _: Any) -> None:
            if module.training and get_ident() == self._thread:  # an evaluation is no stage of training
                self._next_forward()
                self._begin(forward)

        def after(module: Any, _: Any, output: Any) -> None:
            if module.training and get_ident() == self._thread:
                self._end(forward)
                if waits:
                    for tensor in _tensors(output):
                        tensor.register_hook(self._backward_reached)

        pre = model.register_forward_pre_hook(_untraced(before))
        post = model.register_forward_hook(_untraced(after), always_call=True)
        self._undo += [pre.remove, post.remove]
        if not self._told:
            self._told = True
            self._backward()

    def _backward(self) -> None:
        """Time `backward()` as a whole: what a hook on a module sees begins after the loss and ends before DDP does."""
        import torch

        autograd, backward, plain = torch.autograd, self._places.get("backward", self._other), torch.autograd.backward

        def timed(*arguments: Any, **named: Any) -> None:
            if get_ident() != self._thread:
                return plain(*arguments, **named)
            self._depth += 1
            self._begin(backward)
            try:
                return plain(*arguments, **named)
            finally:
                self._end(backward)  # and the wait, which began inside it
                self._depth -= 1
                self._waiting = False

        def undo() -> None:
            if autograd.backward is timed:  # else somebody else has wrapped it since, and holds ours
                autograd.backward = plain

        timed.__doc__ = plain.__doc__
        autograd.backward = timed
        self._undo.append(undo)

    _waiting = False  # autograd was asked to tell when this pass has computed its gradients

    def _backward_reached(self, _: Any) -> None:
        """The first gradient of a pass: ask to be told when all are there.

        Autograd calls back in the order in which it was asked, and DDP asks when its last bucket is full. So ours
        comes when this rank has computed its gradients, and DDP's, which waits for the other ranks, after it.
        """
        import torch

        if not self._waiting and self._depth == 1:
            self._waiting = True
            torch.autograd.Variable._execution_engine.queue_callback(self._computed)

    def _computed(self) -> None:
        self._begin(self._places["sync"])

    # ------------------------------------------------------------------------------------ optimizer and loader

    def _optimizer(self, optimizer: Any) -> None:
        self._optimizers += 1
        place = self._places.get("optimizer", self._other)

        def before(*_: Any) -> None:
            self._thread = get_ident()
            if self._optimizing:  # the last one raised, and nothing told
                self._optimized()
            self._optimizing = True
            self._begin(place)

        def after(one: Any, *_: Any) -> None:
            self._stepped.add(id(one))
            self._optimized()

        self._undo += [
            optimizer.register_step_pre_hook(_untraced(before)).remove,
            optimizer.register_step_post_hook(_untraced(after)).remove,
        ]

    def _optimized(self) -> None:
        self._optimizing = False
        self._end(self._places.get("optimizer", self._other))

    def _timed(self, loader: Any) -> TimedLoader:
        self._loaders += 1
        place = self._places.get("data", self._other)
        return TimedLoader(loader, self._next_batch, lambda: self._begin(place), lambda: self._end(place))


class TimedLoader:
    """A loader whose batches are waited for in the stage `data`; for everything else it is the one it was made from."""

    def __init__(
        self, loader: Any, before: Callable[[], None], begin: Callable[[], None], end: Callable[[], None]
    ) -> None:
        self._loader, self._before, self._begin, self._end = loader, before, begin, end

    def __iter__(self) -> Iterator[Any]:
        self._before()
        self._begin()
        try:
            source = iter(self._loader)  # starts the workers
        finally:
            self._end()
        first = True
        while True:
            if not first:
                self._before()
            first = False
            self._begin()
            try:
                batch = next(source)
            except StopIteration:
                return
            finally:
                self._end()
            yield batch

    def __next__(self) -> Any:
        self._before()
        self._begin()
        try:
            return next(self._loader)
        finally:
            self._end()

    def __len__(self) -> int:
        return len(self._loader)

    def __bool__(self) -> bool:
        return bool(self._loader)  # a stream without a length is true, too

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # a copy that is still being made
            raise AttributeError(name)
        return getattr(self._loader, name)


def _tensors(output: Any, deep: int = _DEEP) -> Iterator[Any]:
    """The tensors of a model's output that gradients will flow back to."""
    if hasattr(output, "requires_grad"):
        if output.requires_grad:
            yield output
    elif deep and isinstance(output, dict):
        for value in output.values():
            yield from _tensors(value, deep - 1)
    elif deep and isinstance(output, (list, tuple)):
        for value in output:
            yield from _tensors(value, deep - 1)


def _untraced(hook: Callable[..., None]) -> Callable[..., None]:
    """The hook as torch.compile must leave it alone: a clock that is read while tracing is a constant."""
    if "torch._dynamo" not in sys.modules:  # nobody compiles
        return hook
    import torch

    alone: Callable[..., None] = torch.compiler.disable(hook)
    return alone
