"""What PBFT's replicas prove to each other with signatures: prepared requests, checkpoints, changes of view.

Everything here came over the network and may be anything: each function says whether it is what it claims to be.
Last come replicas that abuse it: they tell two stories and sign both.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b
from typing import Any

from assay.protocols.faults import Equivocate
from assay.protocols.interface import Ctx, Fault, Message, NodeId
from assay.protocols.kernel import wire
from assay.protocols.nodes.kv import is_command

Request = tuple[Any, ...]
"""(command, the client's signature); () is the request that does nothing."""
Certificate = tuple[Any, ...]
"""(view, place, request, the primary's signature, ((backup, signature), …)): a request was prepared."""
Change = tuple[Any, ...]
"""(replica, place of the last stable checkpoint, its digest, its signers, certificates, signature)."""
HIGHEST = 1 << 40  # numbers beyond are nonsense, and would not survive the wire
WINDOW = 64
"""Places after the last stable checkpoint for which replicas vote."""


def digest(value: Any) -> bytes:
    """Sixteen bytes that stand for a value."""
    return blake2b(wire.encode(value), digest_size=16).digest()


def signed(kind: str, *parts: Any) -> bytes:
    """What is signed: the kind and all that the signature is to cover."""
    return wire.encode((kind, *parts))


def is_request(ctx: Ctx, request: Any) -> bool:
    """Whether a client has asked this."""
    match request:
        case ():
            return True
        case (command, bytes(mark)) if is_command(command):
            return command[0] >= ctx.n and ctx.verify(command[0], signed("request", *command), mark)
    return False


def signers(ctx: Ctx, links: Any, data: bytes) -> set[NodeId]:
    """The replicas among these (replica, signature) pairs that really signed the data."""
    found: set[NodeId] = set()
    for link in links if isinstance(links, tuple) else ():
        match link:
            case (int(who), bytes(mark)) if 0 <= who < ctx.n and who not in found and ctx.verify(who, data, mark):
                found.add(who)
    return found


def is_prepared(ctx: Ctx, certificate: Any, below: int) -> bool:
    """Whether the primary of an earlier view proposed this and 2f backups prepared it."""
    match certificate:
        case (int(view), int(place), tuple(request), bytes(mark), links) if 0 <= view < below and 0 < place < HIGHEST:
            name = digest(request)
            proposed = ctx.verify(view % ctx.n, signed("pre-prepare", view, place, name), mark)
            backups = signers(ctx, links, signed("prepare", view, place, name)) - {view % ctx.n}
            return proposed and len(backups) >= 2 * ctx.f and is_request(ctx, request)
    return False


def is_stable(ctx: Ctx, place: Any, state: Any, links: Any) -> bool:
    """Whether 2f + 1 replicas vouch for this state at this place; place 0 is where all begin."""
    match place, state:
        case (0, b""):
            return True
        case (int(), bytes()) if 0 < place < HIGHEST:
            return len(signers(ctx, links, signed("checkpoint", place, state))) > 2 * ctx.f
    return False


def is_change(ctx: Ctx, view: int, change: Any) -> bool:
    """Whether this replica asks for the view, with proofs of all that it claims."""
    match change:
        case (int(who), place, state, links, tuple(certificates), bytes(mark)) if 0 <= who < ctx.n:
            said = signed("view-change", view, who, place, state, links, certificates)
            return (
                ctx.verify(who, said, mark) and is_stable(ctx, place, state, links)
                and all(is_prepared(ctx, certificate, view) for certificate in certificates)
                and all(place < certificate[1] <= place + WINDOW for certificate in certificates)
            )  # fmt: skip
    return False


def carried_over(changes: Iterable[Change]) -> tuple[int, tuple[Request, ...]]:
    """The checkpoint's place from which a new view starts, and the requests it has to propose again after it.

    What was committed anywhere was prepared by f + 1 correct replicas, one of which is among any 2f + 1 that ask for
    the view: so its certificate is here, and of two for one place that of the later view counts.
    """
    asked = list(changes)
    place = max(change[1] for change in asked)
    best: dict[int, Certificate] = {}
    for certificate in (certificate for change in asked for certificate in change[4]):
        at = certificate[1]
        if at > place and (at not in best or certificate[0] > best[at][0]):
            best[at] = certificate
    last = max(best, default=place)
    return place, tuple(best[at][2] if at in best else () for at in range(place + 1, last + 1))


# ------------------------------------------------------------------------------------------------ two signed stories

NOTHING: Request = ()


def equivocators(members: Iterable[NodeId], n: int) -> dict[NodeId, Fault]:
    """The faults of a world of n replicas in which these equivocate in earnest, properly signed.

    Correct replicas with an odd number hear that the request which does nothing stands at each place, and are vouched
    another state; the others, and the members among themselves, hear what the replica inside says. A forged copy that
    fails its signature would be noise; these do not fail.

    >>> from assay.protocols.kernel.world import World
    >>> from assay.protocols.nodes.pbft import Pbft, PbftClient
    >>> def conflicts(liars):
    ...     client = PbftClient([("write", "x", number) for number in range(9)], patience=20)
    ...     replicas = [Pbft(patience=10) for _ in range(7)]
    ...     world = World(n=7, f=2, node=replicas, clients=[client], faults=equivocators(range(liars), 7))
    ...     return len(world.run("rounds", limit=60, metered=False).conflicts)
    >>> conflicts(2), conflicts(3) > 0  # f of them can do no harm, one more can
    (0, True)
    """
    liars = frozenset(members)
    misled = frozenset(range(1, n, 2)) - liars
    return {member: Equivocate(half=misled, signed=other_story) for member in liars}


def other_story(ctx: Ctx, msg: Message) -> Message:
    """The same kind of message about the same place, with another content and this node's signature."""
    match msg:
        case ("pre-prepare", view, place, _, _):
            return ("pre-prepare", view, place, NOTHING, ctx.sign(signed("pre-prepare", view, place, digest(NOTHING))))
        case ("prepare", view, place, _, _):
            name = digest(NOTHING)
            return ("prepare", view, place, name, ctx.sign(signed("prepare", view, place, name)))
        case ("commit", view, place, _):
            return ("commit", view, place, digest(NOTHING))
        case ("checkpoint", place, name, _):
            other = digest(name)
            return ("checkpoint", place, other, ctx.sign(signed("checkpoint", place, other)))
    return msg
