"""A small real LLM engine: continuous batching, paged KV cache, chunked prefill, greedy sampling.

It exists to be measured: what a cost model predicts is compared with what this engine takes, on a CPU or a GPU. Each
iteration follows vLLM v1's plan: one token for every decoding sequence, then chunks of prompts in order of arrival
until the token budget is spent; a sequence that finds no page sends the youngest one back to the queue. The loop
(`serve`) takes its clock and its executor as arguments: with the wall clock and a model it serves, with a virtual
clock and a cost model it simulates, and the plans are the same code.
"""

# torch's own functions carry no types.
# mypy: disallow-untyped-calls=False

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from assay.serving.dooly.torch_ops import PAGE, Batch

if TYPE_CHECKING:
    import polars as pl
    import torch

    from assay.serving.dooly.torch_model import Shape, Transformer

GRAPH_SIZES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 160, 192, 224, 256)


@dataclass(frozen=True)
class Request:
    """`output` tokens are generated after a prompt of `prompt` tokens that arrives at `arrival` seconds."""

    arrival: float
    prompt: int
    output: int
    tokens: tuple[int, ...] = ()  # the prompt itself; empty: some pseudo-random tokens


@dataclass(eq=False)
class Running:
    """A request in the engine: its known tokens are the prompt and what was emitted; `computed` are in the cache."""

    number: int
    request: Request
    computed: int = 0
    emitted: int = 0
    pages: list[int] = field(default_factory=list)
    first: float = 0.0
    inside: bool = False  # running, not waiting
    preemptions: int = 0

    @property
    def known(self) -> int:
        """Tokens whose value is known."""
        return self.request.prompt + self.emitted


Work = tuple[Running, int]  # a sequence and how many of its tokens this iteration computes


@dataclass(frozen=True)
class Step:
    """One iteration: when it began, what was in it, how long it took, and how long the CPU needed to launch it."""

    start: float
    n: int
    b: int
    context: int
    chunks: tuple[tuple[int, int], ...]
    seconds: float
    launch: float = 0.0


class Scheduler:
    """Which tokens the next iteration computes, and which pages hold them.

    >>> scheduler = Scheduler(pages=10, max_batched_tokens=32)
    >>> scheduler.add(Running(0, Request(0.0, prompt=40, output=2)))
    >>> [(seq.number, count) for seq, count in scheduler.plan()]
    [(0, 32)]
    """

    def __init__(self, pages: int, max_batched_tokens: int = 2048, max_seqs: int = 256) -> None:
        self.max_batched_tokens, self.max_seqs = max_batched_tokens, max_seqs
        self.free = list(range(pages - 1, -1, -1))
        self.pages = pages
        self.running: list[Running] = []
        self.waiting: deque[Running] = deque()

    def add(self, seq: Running) -> None:
        """Queue a request; one that could never fit is refused now."""
        if -(-(seq.request.prompt + seq.request.output) // PAGE) > self.pages:
            raise ValueError(
                f"request {seq.number} needs more KV cache than the engine has ({self.pages * PAGE} tokens)"
            )
        self.waiting.append(seq)

    def plan(self) -> list[Work]:
        """Decodes first, then prompts that are under way, then new ones while tokens, sequences and pages last."""
        work: list[Work] = []
        budget = self.max_batched_tokens
        decoding = [seq for seq in self.running if seq.known - seq.computed == 1]
        partial = [seq for seq in self.running if seq.known - seq.computed > 1]
        for seq in [*decoding, *partial]:
            count = min(seq.known - seq.computed, budget)
            if count > 0 and seq.inside and self._reserve(seq, count, preempt=True):
                work.append((seq, count))
                budget -= count
        work = [(seq, count) for seq, count in work if seq.inside]  # a later one may have sent one back
        while self.waiting and budget > 0 and len(self.running) < self.max_seqs:
            seq = self.waiting[0]
            count = min(seq.known - seq.computed, budget)
            if not self._reserve(seq, count, preempt=False):
                break
            self.running.append(self.waiting.popleft())
            seq.inside = True
            work.append((seq, count))
            budget -= count
        return work

    def _reserve(self, seq: Running, count: int, preempt: bool) -> bool:
        need = -(-(seq.computed + count) // PAGE) - len(seq.pages)
        while need > len(self.free):
            youngest = self.running[-1] if self.running else None
            if not preempt or youngest is None:
                return False
            self._send_back(youngest)
            if youngest is seq:
                return False
        seq.pages += [self.free.pop() for _ in range(need)]
        return True

    def _send_back(self, seq: Running) -> None:
        self.running.remove(seq)
        self.release(seq)
        seq.computed, seq.inside, seq.preemptions = 0, False, seq.preemptions + 1
        self.waiting.appendleft(seq)

    def release(self, seq: Running) -> None:
        """Give the sequence's pages back."""
        self.free += seq.pages[::-1]
        seq.pages = []

    def advance(self, work: Iterable[Work], now: float) -> list[Running]:
        """Account for an iteration that ended `now`; returns the requests that finished with it."""
        done = []
        for seq, count in work:
            seq.computed += count
            if seq.computed == seq.known:
                seq.emitted += 1
                if seq.emitted == 1:
                    seq.first = now
                if seq.emitted >= seq.request.output:
                    done.append(seq)
        for seq in done:
            self.running.remove(seq)
            self.release(seq)
        return done


@dataclass(frozen=True)
class Outcome:
    """Times of every request (in the order given) and of every iteration; all in seconds from the run's start."""

    requests: tuple[Request, ...]
    first: np.ndarray
    finish: np.ndarray
    steps: tuple[Step, ...]
    tokens: tuple[tuple[int, ...], ...] = ()

    @property
    def ttft(self) -> np.ndarray:
        """Time to first token of each request."""
        return np.asarray(self.first - np.array([r.arrival for r in self.requests]))

    @property
    def tpot(self) -> np.ndarray:
        """Time per output token after the first; nan where there is only one."""
        rest = np.array([r.output - 1 for r in self.requests], float)
        return np.asarray(np.where(rest > 0, (self.finish - self.first) / np.maximum(rest, 1), np.nan))

    @property
    def table(self) -> pl.DataFrame:
        """One row per request."""
        import polars as pl

        columns = {name: [getattr(r, name) for r in self.requests] for name in ("arrival", "prompt", "output")}
        return pl.DataFrame({**columns, "first": self.first, "ttft": self.ttft, "tpot": self.tpot})


class VirtualClock:
    """Time that only passes when somebody says so."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        """The present."""
        return self.time

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.time += max(0.0, seconds)


class WallClock(VirtualClock):
    """The real time since the clock was made."""

    def __init__(self) -> None:
        super().__init__()
        self.time = time.perf_counter()

    def now(self) -> float:
        """The present."""
        return time.perf_counter() - self.time

    def sleep(self, seconds: float) -> None:
        """Wait; the last stretch by looking at the clock, because a sleep may come back late."""
        until = self.now() + seconds
        if seconds > 0.002:
            time.sleep(seconds - 0.001)
        while self.now() < until:
            pass


class WorkClock(VirtualClock):
    """The time this thread has computed, plus the waits it was asked for and skipped.

    On a CPU that others use too, an iteration takes as long as on an idle one; it must compute with one thread.
    """

    def __init__(self) -> None:
        super().__init__()
        self.begun = time.thread_time()

    def now(self) -> float:
        """Computed and skipped seconds so far."""
        return time.thread_time() - self.begun + self.time


def shape_of_step(work: Sequence[Work]) -> tuple[int, int, tuple[tuple[int, int], ...]]:
    """(decodes, their context tokens, chunks as (tokens, tokens before)) of a plan."""
    decodes = [seq for seq, count in work if count == 1 and seq.emitted > 0 and seq.known - seq.computed == 1]
    ids = {id(seq) for seq in decodes}
    chunks = tuple((count, seq.computed) for seq, count in work if id(seq) not in ids)
    return len(decodes), sum(seq.known for seq in decodes), chunks


def serve(
    requests: Sequence[Request],
    scheduler: Scheduler,
    execute: Callable[[list[Work]], float],
    clock: VirtualClock,
) -> Outcome:
    """Serve requests as they arrive. `execute` computes a plan's tokens and returns the seconds its launch took.

    >>> clock = VirtualClock()
    >>> def fixed(work):
    ...     clock.sleep(0.01)
    ...     return 0.0
    >>> serve([Request(0.0, 8, 3)], Scheduler(4), fixed, clock).finish.tolist()
    [0.03]
    """
    order = sorted(range(len(requests)), key=lambda i: requests[i].arrival)
    first, finish = np.zeros(len(requests)), np.zeros(len(requests))
    steps: list[Step] = []
    coming = deque(order)
    left = len(order)
    while left:
        start = clock.now()
        while coming and requests[coming[0]].arrival <= start:
            number = coming.popleft()
            scheduler.add(Running(number, requests[number]))
        work = scheduler.plan()
        if not work:
            if not coming:
                raise RuntimeError("the engine stalled: requests wait and nothing can run")
            clock.sleep(requests[coming[0]].arrival - clock.now())
            continue
        b, context, chunks = shape_of_step(work)
        launch = execute(work)
        now = clock.now()
        steps.append(Step(start, b + sum(c for c, _ in chunks), b, context, chunks, now - start, launch))
        for seq in scheduler.advance(work, now):
            first[seq.number], finish[seq.number] = seq.first, now
            left -= 1
    return Outcome(tuple(requests), first, finish, tuple(steps))


def replay(requests: Sequence[Request], seconds: Callable[..., float], **limits: Any) -> Outcome:
    """The same loop on a virtual clock, an iteration taking `seconds(b=, context=, chunks=)`: a simulated run.

    >>> replay([Request(0.0, 8, 3)], lambda b, context, chunks: 0.02, pages=4).ttft.tolist()
    [0.02]
    """
    clock = VirtualClock()

    def execute(work: list[Work]) -> float:
        b, context, chunks = shape_of_step(work)
        clock.sleep(seconds(b=b, context=context, chunks=chunks))
        return 0.0

    return serve(requests, Scheduler(**limits), execute, clock)


class Engine:
    """A model, its KV pages and the loop that serves requests with it."""

    def __init__(
        self, shape: Shape, device: str = "cpu", *, dtype: torch.dtype | None = None, backend: str = "sdpa",
        kv_tokens: int = 16_384, max_batched_tokens: int = 2048, max_seqs: int = 256, max_context: int = 8192,
        graphs: bool = True, seed: int = 0,
    ) -> None:  # fmt: skip
        from assay.serving.dooly.torch_model import Transformer

        # One page more than the scheduler knows of: padding rows of a CUDA graph write there.
        self.model: Transformer = Transformer(shape, device, dtype, backend, kv_tokens + PAGE, max_context, seed)
        self.device, self.cuda = device, device.startswith("cuda")
        self.limits = {
            "pages": kv_tokens // PAGE, "max_batched_tokens": max_batched_tokens, "max_seqs": max_seqs,
        }  # fmt: skip
        self.max_context = max_context
        self.known: dict[int, list[int]] = {}
        self.graphs: dict[int, tuple[Any, Batch, Any]] = {}
        self.use_graphs = graphs and self.cuda and backend == "paged"
        self.seed = seed

    def run(self, requests: Sequence[Request], clock: VirtualClock | None = None) -> Outcome:
        """Serve the requests in real time; returns each one's times and tokens and each iteration's."""
        import dataclasses

        for number, request in enumerate(requests):
            self.known[number] = list(request.tokens) or some_tokens(number, request.prompt, self.model.shape.vocab)
            if len(self.known[number]) != request.prompt:
                raise ValueError(f"request {number} says {request.prompt} tokens and brings {len(self.known[number])}")
        outcome = serve(requests, Scheduler(**self.limits), self.execute, clock or WallClock())
        said = tuple(tuple(self.known[i][r.prompt :]) for i, r in enumerate(requests))
        self.known.clear()
        return dataclasses.replace(outcome, tokens=said)

    def execute(self, work: list[Work]) -> float:
        """Compute the plan's tokens and append what each finished sequence of tokens is followed by."""
        import torch

        start = time.perf_counter()
        with torch.inference_mode():
            emitting, result = self._launch(work)
            launched = time.perf_counter() - start
            said = result.tolist()  # waits for the device
        for seq, token in zip(emitting, said, strict=True):
            self.known[seq.number].append(token)
        return launched

    def _launch(self, work: list[Work]) -> tuple[list[Running], Any]:
        decodes = [item for item in work if item[1] == 1 and item[0].emitted and item[0].known - item[0].computed == 1]
        ids = {id(seq) for seq, _ in decodes}
        chunks = [item for item in work if id(item[0]) not in ids]
        if not chunks and self.use_graphs and len(decodes) <= GRAPH_SIZES[-1]:
            return [seq for seq, _ in decodes], self._decode_graph([seq for seq, _ in decodes])
        ordered = [*decodes, *chunks]
        batch = lay_out([seq for seq, _ in decodes], chunks, self.known, self.device)
        emitting = [seq for seq, count in ordered if seq.computed + count == seq.known]
        return emitting, self.model.forward(batch).argmax(-1)

    # ------------------------------------------------------------------------------------- CUDA graphs

    def _decode_graph(self, decodes: list[Running]) -> Any:
        """Replay the recorded iteration of the next larger batch size; padding rows write to the spare page."""
        import torch

        b = len(decodes)
        size = next(s for s in GRAPH_SIZES if s >= b)
        if size not in self.graphs:
            self.graphs[size] = self._capture(size)
        graph, batch, out = self.graphs[size]
        spare = self.limits["pages"]
        width = self.max_context // PAGE
        flat = np.full((size, 4 + width), spare, np.int32)
        flat[b:, 0], flat[b:, 1], flat[b:, 2], flat[b:, 3] = 0, 0, spare * PAGE, 1
        for row, seq in enumerate(decodes):
            at = seq.computed
            slot = seq.pages[at // PAGE] * PAGE + at % PAGE
            flat[row, :4] = self.known[seq.number][at], at, slot, at + 1
            flat[row, 4 : 4 + len(seq.pages)] = seq.pages
        fresh = torch.from_numpy(flat).to(self.device, non_blocking=True)
        assert batch.tables is not None
        assert batch.contexts is not None
        batch.tokens.copy_(fresh[:, 0])
        batch.positions.copy_(fresh[:, 1])
        batch.slots.copy_(fresh[:, 2])
        batch.contexts.copy_(fresh[:, 3])
        batch.tables.copy_(fresh[:, 4:])
        graph.replay()
        return out[:b]

    def _capture(self, size: int) -> tuple[Any, Batch, Any]:
        import torch

        def zeros(*dims: int, dtype: Any = torch.int64) -> Any:
            return torch.zeros(*dims, dtype=dtype, device=self.device)

        slots = zeros(size) + self.limits["pages"] * PAGE
        batch = Batch(
            zeros(size), zeros(size), slots, torch.arange(size, device=self.device), size,
            zeros(size, self.max_context // PAGE, dtype=torch.int32), zeros(size, dtype=torch.int32) + 1, [1] * size,
        )  # fmt: skip
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self.model.forward(batch).argmax(-1)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = self.model.forward(batch).argmax(-1)
        return graph, batch, out

    # ----------------------------------------------------------------------------------- one iteration

    def measure(
        self, b: int = 0, context: int = 0, chunks: Sequence[tuple[int, int]] = (), repeat: int = 5, warm: int = 2
    ) -> list[Step]:
        """Time iterations of a given composition: `b` decodes of `context` tokens in all, (chunk, before) prompts."""
        work, self.known = compose(b, context, chunks, self.limits["pages"], self.model.shape.vocab)
        steps = []
        for turn in range(warm + repeat):
            clock = time.perf_counter if self.cuda else time.thread_time
            start = clock()
            launch = self.execute(work)
            seconds = clock() - start
            b_, context_, chunks_ = shape_of_step(work)
            if turn >= warm:
                steps.append(Step(start, sum(c for _, c in work), b_, context_, chunks_, seconds, launch))
        self.known.clear()
        return steps


def some_tokens(number: int, length: int, vocab: int) -> list[int]:
    """Tokens of a prompt nobody will read. Only that prompts differ matters: a hash needs no generator."""
    spread = (np.arange(1, length + 1) * 2_654_435_761 + number * 40_503) >> 7
    return [int(token) for token in spread % vocab]


def compose(
    b: int, context: int, chunks: Sequence[tuple[int, int]], pages: int, vocab: int
) -> tuple[list[Work], dict[int, list[int]]]:
    """A plan of a wanted composition, with pages scattered as in an engine that has run for a while, and its tokens.

    >>> work, known = compose(b=2, context=30, chunks=[(8, 16)], pages=8, vocab=100)
    >>> shape_of_step(work)
    (2, 30, ((8, 16),))
    """
    each = [context // b + (i < context % b) for i in range(b)] if b else []
    need = sum(-(-c // PAGE) for c in each) + sum(-(-(c + p) // PAGE) for c, p in chunks)
    if need > pages:
        raise ValueError(f"the iteration needs {need} pages, the engine has {pages}")
    scattered = iter(sorted(range(pages), key=lambda page: (page + 1) * 7919 % 65_537))
    work: list[Work] = []
    known: dict[int, list[int]] = {}
    for number, (count, before) in enumerate([*((1, c - 1) for c in each), *chunks]):
        decode = number < b
        request = Request(0.0, before if decode else before + count, 2)
        seq = Running(number, request, computed=before, emitted=int(decode))
        seq.pages = [next(scattered) for _ in range(-(-(before + count) // PAGE))]
        known[number] = some_tokens(number, before + count, vocab)
        work.append((seq, count))
    return work, known


def lay_out(decodes: list[Running], chunks: list[Work], known: dict[int, list[int]], device: str) -> Batch:
    """The tensors of one iteration."""
    import torch

    ordered = [*((seq, 1) for seq in decodes), *chunks]
    tokens: list[int] = []
    for seq, count in ordered:
        tokens += known[seq.number][seq.computed : seq.computed + count]
    counts = np.array([count for _, count in ordered])
    before = np.array([seq.computed for seq, _ in ordered])
    packed = np.concatenate([_slots(seq.pages, 0, seq.computed + count) for seq, count in ordered])
    ends_q, ends_k = np.cumsum(counts), np.cumsum(before + counts)
    now = np.concatenate([np.arange(e - c, e) for e, c in zip(ends_k, counts, strict=True)])  # in `packed`
    positions = now - np.repeat(ends_k - before - counts, counts)
    finished = [i for i, (seq, count) in enumerate(ordered) if seq.computed + count == seq.known]
    b, whole = len(decodes), [int(x) for x in before + counts]

    def put(values: Any, dtype: Any = torch.int64) -> Any:
        return torch.as_tensor(np.asarray(values), dtype=dtype).to(device, non_blocking=True)

    table = np.zeros((b, max((len(seq.pages) for seq in decodes), default=0)), np.int32)
    for row, seq in enumerate(decodes):
        table[row, : len(seq.pages)] = seq.pages
    return Batch(
        put(tokens), put(positions), put(packed[now]), put(ends_q[finished] - 1), b,
        put(table, torch.int32), put(whole[:b], torch.int32), whole[:b],
        [(int(count), int(seq.computed)) for seq, count in chunks], put(packed),
        put([0, *ends_q], torch.int32), put([0, *ends_k], torch.int32), int(counts.max()), max(whole),
        b, int(ends_k[b - 1]) if b else 0,
    )  # fmt: skip


def _slots(pages: Sequence[int], start: int, stop: int) -> np.ndarray:
    positions = np.arange(start, stop)
    return np.asarray(pages)[positions // PAGE] * PAGE + positions % PAGE
