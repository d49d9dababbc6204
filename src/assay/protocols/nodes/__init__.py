"""A library of nodes to run, to build on and to break. They go by their names alone:

>>> from assay.protocols import nodes
>>> nodes.Bracha.__module__
'assay.protocols.nodes.broadcast'

so ``assay protocol run assay.protocols.nodes:Bracha`` runs one; its module is imported when it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "ABA": "agreement", "AlternatingBit": "data_links", "Bracha": "broadcast", "Chord": "chord",
    "IdealCoin": "agreement", "Kademlia": "kademlia", "Miner": "chain", "NumberedLink": "data_links", "Pbft": "pbft",
    "PbftClient": "pbft", "Raft": "raft", "RaftClient": "raft", "Replica": "stores", "Session": "stores",
    "SignedBroadcast": "broadcast", "StabilisingLink": "data_links",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"no node '{name}'; there are {', '.join(_HOMES)}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*_HOMES]
