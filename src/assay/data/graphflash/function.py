"""One superstep of one group of parts: what a stateless function does when it is called.

It fetches its parts, its state and its mail, computes, puts one object with what it has to say, and then creates the
record that makes this attempt official. Whoever comes second with that record finds the first one's and answers with
it; what the loser had put is named by nobody. A kept function has parts and state in memory already, and puts its
state only now and then; after a death the successor starts from the last state and takes the mail since again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from assay.data.engine.segments import SegmentBlob, checked
from assay.data.graphflash.parts import Part, Place, join, read_arrays, write_arrays
from assay.data.graphflash.programs import NOTHING, PROGRAMS, Mail, Outbox, Params, Program, State
from assay.data.interface import AlreadyExists, Buffer, Store, Unknown
from assay.data.store.address import open_store
from assay.data.store.wrappers import Metered
from assay.sim.clock import Clock
from assay.sim.faas import Context, Handler
from assay.sim.ledger import Ledger

ATTEMPTS = 8  # how often a put without an answer is tried
AT_ONCE = 32  # requests of one function on their way
BUNDLE, PAIR, VERTEX = "bundle", "pair", "vertex"
LAYOUTS = (BUNDLE, PAIR, VERTEX)


class Letter(msgspec.Struct, frozen=True, array_like=True):
    """Mail for one group: a span of an object, or (`length` -1) a folder with an object for each vertex."""

    to: int
    key: str
    offset: int
    length: int
    digest: bytes


class Done(msgspec.Struct, frozen=True, array_like=True):
    """The official outcome of a group's superstep."""

    attempt: str
    active: bool
    letters: list[Letter]
    state: Place | None  # where the state lies, if it was saved
    objects: list[str]  # what this attempt put, besides folders of letters
    scanned: int
    messages: int


class Call(msgspec.Struct, frozen=True):
    """What a function is told."""

    store: str
    fsync: bool
    job: str
    program: str
    params: Params
    step: int
    group: int
    of: int  # parts to a group
    parts: list[Place]
    mail: list[Letter]
    attempt: str
    layout: str = BUNDLE
    local: bool = True
    keep: bool = False  # the instance stays: parts and state may stay in its memory
    save: bool = True  # put the state
    compute: bool = True  # False: nothing but put the state
    since: int = -1  # the superstep whose state a kept function should have
    state: Place | None = None  # the last state that was put
    again: list[tuple[int, list[Letter]]] = []  # supersteps since then, with their mail
    pace: float = 0.0  # seconds an edge takes in the model


@dataclass
class _Held:
    part: Part
    state: State
    step: int


def done_key(job: str, step: int, group: int) -> str:
    """Where the official outcome lies."""
    return f"jobs/{job}/done/{step:06d}/{group:05d}"


async def handle(argument: bytes, context: Context) -> bytes:
    """A call to a real process: the store is opened by its address, once an instance."""
    call = msgspec.msgpack.decode(argument, type=Call)
    if call.store not in context.memory:
        context.memory[call.store] = open_store(call.store, fsync=call.fsync)
    return await serving(context.memory[call.store])(argument, context)


def serving(inside: Store) -> Handler:
    """The function on a store that is open; it answers with the outcome and with the requests that it took."""

    async def answer(argument: bytes, context: Context) -> bytes:
        ledger = Ledger()
        store = Metered(inside, ledger, clock=context.clock)
        done = await superstep(store, msgspec.msgpack.decode(argument, type=Call), context.memory, context.clock)
        counts = [(op, line.requests, line.nbytes, line.seconds) for (op, _, _), line in ledger.lines.items()]
        return msgspec.msgpack.encode((done, counts))

    return answer


async def superstep(store: Store, call: Call, memory: dict[Any, Any], clock: Clock) -> Done:
    """Do it, or find that it was done."""
    program = PROGRAMS[call.program]
    # Taken out while it changes: an attempt that dies half way must not be gone on from.
    held = memory.pop((call.job, call.group), None) if call.keep else None
    if held is None or held.step != call.since:
        held = await _recovered(store, call, program)
    active, scanned, out = False, 0, Outbox(np.empty(0, np.int32), *NOTHING)
    if call.compute:
        mail = await _fetched(store, call.mail)
        out, active, scanned = program.turn(held.part, held.state, mail, call.step, call.params, call.local)
        if call.pace:
            await clock.sleep(scanned * call.pace)
    done = await _committed(store, call, held.state, out, active, scanned)
    if call.keep:
        memory[call.job, call.group] = _Held(held.part, held.state, call.step if call.compute else held.step)
    return done


async def _recovered(store: Store, call: Call, program: Program) -> _Held:
    """Parts and state from the store, and the supersteps since the state once more."""
    part = join([Part(**await read_arrays(store, place)) for place in call.parts], call.of)
    if call.state is None:
        state = program.start(part, call.params)
    else:
        state = await read_arrays(store, call.state)
    for step, letters in call.again:
        program.turn(part, state, await _fetched(store, letters), step, call.params, call.local)
    return _Held(part, state, call.since)


# -------------------------------------------------------------------------------------------------------------- mail


async def _fetched(store: Store, letters: Sequence[Letter]) -> Mail:
    """All mail, in the order of the letters."""
    if not letters:
        return NOTHING
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(letter: Letter) -> Buffer:
        async with turns:
            return checked(await store.get(letter.key, letter.offset, letter.length), letter.digest, letter.key)

    if any(letter.length < 0 for letter in letters):
        found = await _vertex_mail(store, letters, turns)
    else:
        found = await asyncio.gather(*(one(letter) for letter in letters))
    both = [_opened(data) for data in found]
    return Mail(np.concatenate([keys for keys, _ in both]), np.concatenate([values for _, values in both]))


async def _vertex_mail(store: Store, letters: Sequence[Letter], turns: asyncio.Semaphore) -> list[Buffer]:
    """An object for each vertex: list them, then get them, several at a time."""

    async def get(key: str) -> Buffer:
        async with turns:
            return await store.get(key)

    keys = [meta.key for letter in letters async for meta in store.list(f"{letter.key}/")]
    return list(await asyncio.gather(*(get(key) for key in keys)))


def _opened(data: Buffer) -> Mail:
    count = len(data) // 16
    return Mail(np.frombuffer(data, np.int64, count), np.frombuffer(data, np.float64, count, 8 * count))


def _sealed(keys: Any, values: Any) -> bytes:
    return keys.tobytes() + values.tobytes()  # type: ignore[no-any-return]


async def _committed(store: Store, call: Call, state: State, out: Outbox, active: bool, scanned: int) -> Done:
    """Put what there is to say, then the record."""
    base = f"jobs/{call.job}/m/{call.step:06d}/{call.group:05d}/{call.attempt}"
    blob, letters, objects = SegmentBlob(), list[Letter](), list[str]()
    groups, firsts = np.unique(out.to, return_index=True)
    bounds = [*firsts.tolist(), len(out.to)]
    for to, first, stop in zip(groups.tolist(), bounds[:-1], bounds[1:], strict=True):
        keys, values = out.keys[first:stop], out.values[first:stop]
        if call.layout == BUNDLE:
            row = blob.add(f"{to}", _sealed(keys, values), rows=stop - first)
            letters.append(Letter(to, base, row.offset, row.length, row.digest))
        elif call.layout == PAIR:
            data = _sealed(keys, values)
            alone = SegmentBlob().add("", data)
            letters.append(Letter(to, f"{base}-{to:05d}", 0, len(data), alone.digest))
            await _put(store, letters[-1].key, data)
            objects.append(letters[-1].key)
        else:
            letters.append(Letter(to, f"{base}-{to:05d}", 0, -1, b""))
            await _put_each(store, letters[-1].key, keys, values)
    place = Place(base, write_arrays(blob, state)) if call.save else None
    if blob.segments:
        await _put(store, base, blob.parts())
        objects.append(base)
    done = Done(call.attempt, active, letters, place, objects, scanned, len(out.to))
    return await _official(store, done_key(call.job, call.step, call.group), done)


async def _put_each(store: Store, folder: str, keys: Any, values: Any) -> None:
    """An object for each vertex that is written to."""
    turns = asyncio.Semaphore(AT_ONCE)
    each, firsts = np.unique(keys, return_index=True)

    async def one(key: int, first: int, stop: int) -> None:
        async with turns:
            await _put(store, f"{folder}/{key:012d}", _sealed(keys[first:stop], values[first:stop]))

    order = np.argsort(firsts)  # equal keys stand together, in an order that the layouts share
    bounds = [*firsts[order].tolist(), len(keys)]
    await asyncio.gather(*(one(key, bounds[i], bounds[i + 1]) for i, key in enumerate(each[order].tolist())))


async def _put(store: Store, key: str, data: Buffer | Sequence[Buffer]) -> None:
    """The name belongs to this attempt, whose bytes are always the same: an unanswered put is simply made again."""
    for last in range(ATTEMPTS):
        try:
            await store.put(key, data)
            return
        except Unknown:
            if last == ATTEMPTS - 1:
                raise


async def _official(store: Store, key: str, done: Done) -> Done:
    """The record, whoever created it."""
    for _ in range(ATTEMPTS):
        try:
            await store.put(key, msgspec.msgpack.encode(done), if_absent=True)
            return done
        except AlreadyExists:
            pass
        except Unknown:
            if await store.head(key) is None:
                continue
        return msgspec.msgpack.decode(bytes(await store.get(key)), type=Done)
    raise Unknown(f"the store does not say whether {key} was written, {ATTEMPTS} times in a row")
