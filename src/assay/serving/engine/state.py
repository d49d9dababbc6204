"""The state of a fleet as a few arrays of records, shared by the compiled core and Python.

One record per group (instances that iterate together; usually one), per instance, per cache (the KV memory of an
instance, then its host tier), per request, and per cache entry (the resident part of one segment in one cache).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Records = NDArray[Any]
NONE = -1
ON_PATH = -2  # an answer whose blocks follow those of its prompt on the path, each a segment of its own
OWN = -3  # and below: blocks that only request OWN - segment finds again

# Where a request is.
AHEAD, WAITING, PREFILLING, DECODING, HANDED, FINISHED = range(6)
# How an instance plans an iteration.
VLLM_V1, SGLANG, STATIC = range(3)
PLANS = {"vllm-v1": VLLM_V1, "sglang": SGLANG, "static": STATIC}
# What of a prompt must fit before it is admitted to a vLLM batch: all of it, or the next chunk.
PROMPT, CHUNK = range(2)
ADMISSIONS = {"prompt": PROMPT, "chunk": CHUNK}
# What an instance is for.
BOTH, PREFILL, DECODE = range(3)
ROLES = {"both": BOTH, "prefill": PREFILL, "decode": DECODE}
# What a group does next.
SETTLE, PLAN, IDLE, HALTED = range(4)
# Why the core returns to Python.
REACHED, HANDOFF, FINISH, OPPORTUNITY, STOPPED, ROOM = range(6)
# How a sequence gives way when blocks run out.
RECOMPUTE, SWAP = range(2)

GROUP = np.dtype(
    [
        ("first", "i4"), ("last", "i4"),  # members: instances first .. last - 1
        ("phase", "i4"), ("stop", "i4"),
        ("start", "f8"),  # when iteration 0 of the line began
        ("alpha", "f8"), ("gamma", "f8"),  # iteration k of the line takes alpha + gamma k
        ("done", "i8"),  # iterations of the line that are over
        ("target", "i8"),  # the line is next looked at after this many iterations
        ("valid", "i8"),  # the line holds for this many iterations
        ("accounted", "i8"),  # iterations of the line whose blocks are taken
        ("next", "f8"),  # start + T(target); inf when idle
    ],
    align=True,
)  # fmt: skip

INSTANCE = np.dtype(
    [
        ("group", "i4"), ("kind", "i4"), ("plan", "i4"), ("role", "i4"), ("preemption", "i4"), ("accepts", "i4"),
        ("admission", "i4"),  # what of a prompt must fit
        ("max_seqs", "i4"), ("max_tokens", "i4"), ("chunk_limit", "i4"), ("host", "i4"),  # host: cache row or -1
        ("decodes", "i4"),  # sequences that decode
        ("prefills", "i4"),  # sequences in the middle of their prompt
        ("waiting", "i4"),
        ("queue", "i4"),  # root of the pairing heap of waiting requests
        ("oldest", "i4"), ("newest", "i4"),  # the running sequences, in order of admission
        ("mixed", "i4"),  # the present plan advances the decodes
        ("changed", "i4"), ("blocked", "i4"),
        ("k", "i8"),  # decode iterations so far: a sequence's context is a number plus this
        ("context", "i8"),  # sum of the contexts of the decodes
        ("uncomputed", "i8"),  # prompt tokens accepted and not computed, as of the last booking
        ("alpha", "f8"), ("gamma", "f8"), ("valid_to", "i8"), ("base", "i8"),  # own line, in iterations of the instance
        ("turn", "i8"),  # iterations of the group seen by this instance
        ("extra", "f8"),  # seconds that the next iteration takes on top: fetched KV, swapped sequences
        ("stall", "f8"),  # time since the last decode iteration (prefill-only iterations in between)
        ("swap", "f8"), ("fetch", "f8"),  # seconds per token over PCIe
        ("ratio", "f8"), ("ratio_k", "i8"),  # SGLang's share of outputs to keep room for, as of decode k
        ("itl", "f8"), ("ttft", "f8"),  # moving averages, as a router would see them
        ("busy", "f8"), ("gap", "f8"),  # seconds computing, and waiting for the slowest of its group
        ("iterations", "i8"), ("spans", "i8"), ("preemptions", "i8"),
        ("decoded", "i8"), ("prefilled", "i8"), ("joules", "f8"),  # joules: work, above idling
    ],
    align=True,
)  # fmt: skip

CACHE = np.dtype(
    [
        ("capacity", "i8"),  # blocks
        ("active", "i8"),  # held by running sequences
        ("resident", "i8"),  # active, or kept for whoever asks for them again
        ("peak", "i8"),
        ("coldest", "i4"), ("warmest", "i4"),  # the entries nobody holds, by last use
    ],
    align=True,
)  # fmt: skip

REQUEST = np.dtype(
    [
        ("arrival", "f8"), ("routed", "f8"), ("admitted", "f8"), ("first", "f8"), ("finish", "f8"),
        ("key", "f8"),  # the queue's order; ties go by request number
        ("extra", "f8"),  # seconds its admission adds
        ("prompt", "i4"), ("output", "i4"),
        ("instance", "i4"), ("state", "i4"), ("prefilled_by", "i4"),
        ("child", "i4"), ("sibling", "i4"),  # pairing heap of the waiting
        ("older", "i4"), ("newer", "i4"),  # list of the running
        ("emitted", "i4"),  # output tokens produced
        ("target", "i4"),  # tokens to prefill: the prompt, and what was emitted before a preemption
        ("pre", "i4"),  # of them with KV
        ("chunk", "i4"),  # tokens an iteration
        ("ready", "i4"),  # tokens whose KV comes with it (handed over, swapped out)
        ("reuse", "i4"),  # tokens a cache layer supplies beyond the prefix
        ("expected", "i4"),  # prompt tokens to compute, as estimated when it was accepted
        ("held", "i4"),  # path segments it holds
        ("shared", "i4"),  # blocks of its own that lie in them
        ("private", "i4"),  # other blocks, while it prefills
        ("writing", "i4"),  # it is the one that fills the segment it reached
        ("path_blocks", "i4"),
        ("own", "i4"), ("own_begin", "i4"),  # the entry of what it left when it gave way, and its first block
        ("cached", "i4"), ("fetched", "i4"), ("preemptions", "i4"),
        ("begun", "i8"), ("context0", "i8"),  # context = context0 + (k - begun) while it decodes
        ("end", "i8"),  # decode iteration after which it is complete
        ("promised", "i4"),  # prompt tokens not cached when it was sent, until its first token comes
        ("beside", "i4"),  # the next that ends in the same segment, plus one
        ("turn", "i4"),  # who came earlier, where nothing else decides; the request's number is its remainder
    ],
    align=True,
)  # fmt: skip

ENTRY = np.dtype(
    [
        ("segment", "i4"), ("cache", "i4"), ("blocks", "i4"), ("refs", "i4"), ("writer", "i4"),
        ("colder", "i4"), ("warmer", "i4"),
    ],
    align=True,
)  # fmt: skip

FINISHING = np.dtype([("end", "i8"), ("request", "i4")], align=True)  # request: its turn

SPAN = np.dtype(
    [
        ("instance", "i4"), ("decodes", "i4"), ("tokens", "i4"), ("waiting", "i4"),
        ("start", "f8"),  # of the first iteration
        ("alpha", "f8"), ("gamma", "f8"),  # iteration k takes alpha + gamma k
        ("iterations", "i8"),
        ("stall", "f8"),  # what the first gap between tokens is longer by
        ("kv_blocks", "i8"),
    ],
    align=True,
)  # fmt: skip

# Rows of `World.gauges` and of `World.signals`.
RUNNING, QUEUED, PREFILL_TOKENS, KV_TOKENS = range(4)
KV_FREE, ITL, TTFT = range(3)
# Rows of `World.books`.
UNANSWERED, ABOARD = range(2)
# Slots of `World.counts`.
FREE_ENTRY, ENTRIES_LEFT, SPANS, FINISHED_COUNT, HANDED_COUNT, AT, RECORD, EACH_FINISH, HOLD, STEP = range(10)
TOUCHED, LONGEST, FINDS_OWN, N_COUNTS = range(10, 14)


SIZES = (
    "n_groups",
    "n_instances",
    "n_caches",
    "n_requests",
    "n_entries",
    "n_segments",
    "n_path",
    "n_kinds",
    "n_spans",
    "width",
    "block",
    "seats",
    "n_touched",
    "n_board",
)


class World(NamedTuple):
    """Everything the compiled core reads and writes."""

    groups: Records
    instances: Records
    caches: Records
    requests: Records
    entries: Records
    index: NDArray[np.int32]  # type: ignore[assignment]  # [segment, cache] -> entry; hides tuple.index
    offsets: NDArray[np.int64]
    path: NDArray[np.int32]
    begin: NDArray[np.int32]  # first block of a segment, counted from the start of the prompt
    end: NDArray[np.int32]  # one past its last block
    answers: NDArray[np.int32]  # the segment an answer fills, ON_PATH, or -1
    phases: NDArray[np.int32]  # [instance, block size]: decodes that need a block when k mod block equals the column
    finishing: Records  # [instance, slot]: heap of (end, request)
    chunks: NDArray[np.int32]  # [instance, slot]: requests in the middle of their prompt
    tokens: NDArray[np.float64]  # [kind, n]: StepCost.tokens
    coefficients: NDArray[np.float64]  # [kind, …]: StepCost.packed()
    joules: NDArray[np.float64]  # [kind, n]: Energy.joules
    energies: NDArray[np.float64]  # [kind, 3]: joules per KV token read, per query-key pair, per decoded token
    spans: Records
    gauges: NDArray[np.int64]  # [signal, instance]: what routers see, as of the last `look`
    signals: NDArray[np.float64]
    books: NDArray[np.int64]  # [signal, instance]: what whoever routes counts itself (`own_books`)
    board: NDArray[np.int32]  # [segment, instance, 2]: prompts on board that use it; empty: nobody asks
    finished: NDArray[np.int32]  # requests in order of completion
    handed: NDArray[np.int32]  # requests that leave for another instance at this boundary
    touched: NDArray[np.int32]  # segment -> the one that came or went before it, 0: neither; empty: nobody asks
    counts: NDArray[np.int64]
    # One record of addresses and sizes: what compiled functions take. It lies in an array of one because Numba takes
    # 2.4 us to be handed a record and 0.3 for an array; whoever is called once a request takes the array.
    handle: Records


HANDLE = np.dtype([(name, "i8") for name in (*World._fields[:-1], *SIZES)], align=True)


def handle_of(world: World) -> Records:
    """The addresses and sizes of a world's arrays."""
    handle = np.zeros(1, HANDLE)
    record = handle[0]
    for name in World._fields[:-1]:
        array = getattr(world, name)
        assert array.flags.c_contiguous
        record[name] = array.ctypes.data
    sizes = (
        len(world.groups), len(world.instances), len(world.caches), len(world.requests), len(world.entries),
        len(world.begin), len(world.path), len(world.tokens), len(world.spans), world.tokens.shape[1],
        world.phases.shape[1], world.chunks.shape[1], len(world.touched), len(world.board),
    )  # fmt: skip
    for name, size in zip(SIZES, sizes, strict=True):
        record[name] = size
    return handle
