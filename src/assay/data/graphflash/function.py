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

from assay.data.engine.puts import ATTEMPTS, put_surely
from assay.data.engine.segments import SegmentBlob, checked, digest
from assay.data.graphflash.parts import Part, Place, join, read_arrays, write_arrays
from assay.data.graphflash.programs import PROGRAMS, Letter, Mail, Params, Program, State, opened
from assay.data.interface import AlreadyExists, Buffer, Meta, Store, Unknown
from assay.data.store.address import open_store
from assay.data.store.wrappers import Metered
from assay.sim.clock import Clock
from assay.sim.faas import Context, Handler
from assay.sim.ledger import Ledger

AT_ONCE = 32  # requests of one function on their way
BYTES_AT_ONCE = 1 << 20
BUNDLE, PAIR, VERTEX = "bundle", "pair", "vertex"
LAYOUTS = (BUNDLE, PAIR, VERTEX)


class Posted(msgspec.Struct, frozen=True, array_like=True):
    """A letter in the store: a span of an object, or (`length` -1) a folder with an object for each vertex."""

    to: int
    key: str
    offset: int
    length: int
    digest: bytes


class Done(msgspec.Struct, frozen=True, array_like=True):
    """The official outcome of a group's superstep."""

    attempt: str
    active: bool
    letters: list[Posted]
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
    mail: list[Posted]
    attempt: str
    layout: str = BUNDLE
    local: bool = True
    keep: bool = False  # the instance stays: parts and state may stay in its memory
    save: bool = True  # put the state
    compute: bool = True  # False: nothing but put the state
    since: int = -1  # the superstep whose state a kept function should have
    state: Place | None = None  # the last state that was put
    again: list[tuple[int, list[Posted]]] = []  # supersteps since then, with their mail
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
    done, mail = Done(call.attempt, False, [], None, [], 0, 0), list[Letter]()
    if call.compute:
        await _absorbed(store, call.mail, program, held)
        mail, active, scanned = program.turn(held.part, held.state, call.step, call.params, call.local)
        done = Done(call.attempt, active, [], None, [], scanned, sum(len(one.numbers) // 2 for one in mail))
        if call.pace:
            await clock.sleep(scanned * call.pace)
    done = await _committed(store, call, held.state, mail, done)
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
    held = _Held(part, state, call.since)
    for step, letters in call.again:
        await _absorbed(store, letters, program, held)
        program.turn(part, state, step, call.params, call.local)
    return held


# -------------------------------------------------------------------------------------------------------------- mail


async def _absorbed(store: Store, letters: Sequence[Posted], program: Program, held: _Held) -> None:
    """Take all mail, in the order of the letters; as much is on its way at once as makes up for the store's latency."""
    if any(letter.length < 0 for letter in letters):
        mails = [opened(data) for data in await _vertex_mail(store, letters)]
        program.absorb(held.part, held.state, Mail(*(np.concatenate(parts) for parts in zip(*mails, strict=True))))
        return
    waiting = list(letters)
    while waiting:
        ends = np.cumsum([letter.length for letter in waiting[:AT_ONCE]])
        count = max(1, int(np.searchsorted(ends, BYTES_AT_ONCE, side="right")))
        some, waiting = waiting[:count], waiting[count:]
        found = await asyncio.gather(*(store.get(letter.key, letter.offset, letter.length) for letter in some))
        for letter, data in zip(some, found, strict=True):
            program.absorb(held.part, held.state, opened(checked(data, letter.digest, letter.key)))


async def _vertex_mail(store: Store, letters: Sequence[Posted]) -> list[Buffer]:
    """An object for each vertex: list them, then get them, several at a time."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def get(meta: Meta) -> Buffer:
        async with turns:
            return await store.get(meta.key, 0, meta.size)  # a known length spares the store a look

    metas = [meta for letter in letters async for meta in store.list(f"{letter.key}/")]
    return list(await asyncio.gather(*(get(meta) for meta in metas)))


async def _committed(store: Store, call: Call, state: State, mail: list[Letter], done: Done) -> Done:
    """Put what there is to say, then the record."""
    base = f"jobs/{call.job}/m/{call.step:06d}/{call.group:05d}/{call.attempt}"
    blob, letters, objects = SegmentBlob(), list[Posted](), list[str]()
    for to, numbers in mail:
        data = numbers.view(np.uint8).data
        if call.layout == BUNDLE:
            row = blob.add(f"{to}", data, rows=len(numbers) // 2)
            letters.append(Posted(to, base, row.offset, row.length, row.digest))
            continue
        key = f"{base}-{to:05d}"
        if call.layout == PAIR:
            await put_surely(store, key, data)
            letters.append(Posted(to, key, 0, len(data), digest(data)))
            objects.append(key)
        else:
            await _put_each(store, key, opened(data))
            letters.append(Posted(to, key, 0, -1, b""))
    place = Place(base, write_arrays(blob, state)) if call.save else None
    if blob.segments:
        await put_surely(store, base, blob.parts())
        objects.append(base)
    done = msgspec.structs.replace(done, letters=letters, state=place, objects=objects)
    return await _official(store, done_key(call.job, call.step, call.group), done)


async def _put_each(store: Store, folder: str, mail: Mail) -> None:
    """An object for each vertex that is written to."""
    keys, values = mail
    turns = asyncio.Semaphore(AT_ONCE)
    each, firsts = np.unique(keys, return_index=True)

    async def one(key: int, first: int, stop: int) -> None:
        async with turns:
            await put_surely(store, f"{folder}/{key:012d}", keys[first:stop].tobytes() + values[first:stop].tobytes())

    order = np.argsort(firsts)  # equal keys stand together, in an order that the layouts share
    bounds = [*firsts[order].tolist(), len(keys)]
    await asyncio.gather(*(one(key, bounds[i], bounds[i + 1]) for i, key in enumerate(each[order].tolist())))


async def _official(store: Store, key: str, done: Done) -> Done:
    """The record, whoever created it."""
    for _ in range(ATTEMPTS):
        try:
            await store.put(key, msgspec.msgpack.encode(done), if_absent=True)
            return done
        except AlreadyExists:
            pass
        except Unknown as error:
            lost = error
            if await store.head(key) is None:
                continue
        return msgspec.msgpack.decode(bytes(await store.get(key)), type=Done)
    raise lost
