"""PBFT replicas that equivocate in earnest: each half of the others hears another story, properly signed.

To one half they tell what the replica inside says. To the other half they say, with their own valid signature, that the
request which does nothing stands at that place, and vouch for another state. All of them tell the same two stories,
and each other the first. A forged copy that fails its signature would be noise; these do not fail.

>>> from assay.protocols.kernel.world import World
>>> from assay.protocols.nodes.pbft import Pbft, PbftClient
>>> def conflicts(liars):
...     client = PbftClient([("write", "x", number) for number in range(9)], patience=20)
...     replicas = [Pbft(patience=10) for _ in range(7)]
...     world = World(n=7, f=2, node=replicas, clients=[client], faults=equivocators(range(liars)))
...     return len(world.run("rounds", limit=60, metered=False).conflicts)
>>> conflicts(2), conflicts(3) > 0  # f of them can do no harm, one more can
(0, True)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from assay.protocols.interface import Ctx, Fault, Message, NodeId
from assay.protocols.nodes.pbft_proofs import digest, signed

NOTHING: Message = ()


@dataclass
class TwoFaced(Fault):
    """A replica with two stories: correct nodes with an odd number hear the second."""

    members: frozenset[NodeId]

    def on_send(self, ctx: Ctx, to: NodeId, msg: Message) -> Iterable[tuple[NodeId, Message]]:
        """The story for this listener."""
        return ((to, other_story(ctx, msg) if to % 2 == 1 and to not in self.members else msg),)


def equivocators(members: Iterable[NodeId]) -> dict[NodeId, Fault]:
    """The faults of a world in which these replicas tell two stories."""
    everyone = frozenset(members)
    return {member: TwoFaced(everyone) for member in everyone}


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
