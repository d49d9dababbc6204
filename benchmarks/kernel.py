"""Messages per second of the protocol kernel with trivial handlers; and QUANTAS beside it on the same experiment files.

.venv/bin/python benchmarks/kernel.py
ASSAY_QUANTAS=/path/to/quantas .venv/bin/python benchmarks/kernel.py

The binary is one that was built with PBFTPeer and LinearChordPeer; it is given a file as QUANTAS takes it.
Both sides run each file on one thread, in turns. QUANTAS counts no messages, so what is compared is the time of a run:
the same peers, links and rounds. What the two do in a round differs, and is printed: requests or lookups served.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from assay.protocols.interface import Ctx, Message, Node, NodeId
from assay.protocols.kernel.net import Constant, Net
from assay.protocols.kernel.world import World
from assay.protocols.quantas import Experiment, parse
from assay.record.timing import interleave, median

NODES, TOKENS, ROUNDS = 100, 20, 200
TURNS = 3


class Forward(Node):
    """Passes on what it gets: as little as a handler can do."""

    def start(self, ctx: Ctx) -> None:
        """Some tokens go round."""
        for token in range(TOKENS):
            ctx.send((ctx.id + token + 1) % ctx.n, ("token", token))

    def recv(self, ctx: Ctx, src: NodeId, msg: Message) -> None:
        """On to the next."""
        ctx.send((ctx.id + 1) % ctx.n, msg)


def trivial() -> None:
    """Rounds and timed, with and without the meter."""
    world = World(n=NODES, node=Forward, net=Net(Constant(1.0)))
    cases: dict[str, Callable[[], Any]] = {
        f"{mode}, {'metered' if metered else 'not metered'}": _run(world, mode, metered)
        for mode in ("rounds", "timed") for metered in (False, True)
    }  # fmt: skip
    taken = interleave(cases, rounds=TURNS)
    for name, case in cases.items():
        print(f"{name:<24}{case().meter.deliveries / median(taken[name]) / 1e6:>10.2f} million messages/s")


def _run(world: World, mode: str, metered: bool) -> Callable[[], Any]:
    plain = World(n=world.n, node=world.node) if mode == "rounds" else world  # rounds have their own fast path
    return lambda: plain.run(mode, limit=ROUNDS, metered=metered)


def experiment(peer: str, n: int, rounds: int) -> str:
    """An experiment file."""
    one = {
        "logFile": "log.json", "threadCount": 1, "tests": 1, "rounds": rounds, "parameters": {},
        "distribution": {"type": "UNIFORM", "maxDelay": 1, "maxMsgsRec": 10},
        "topology": {"type": "complete", "initialPeers": n, "initialPeerType": peer},
    }  # fmt: skip
    return json.dumps({"algorithms": [], "experiments": [one]})


SCENARIOS = {
    "PBFT, 19 peers, 500 rounds": (experiment("PBFTPeer", 19, 500), "throughput", "answered"),
    "Chord, 128 peers, 1,000 rounds": (
        experiment("LinearChordPeer", 128, 1000), "linearChordRequestsSatisfied", "lookups",
    ),
    "Chord, 256 peers, 500 rounds": (
        experiment("LinearChordPeer", 256, 500), "linearChordRequestsSatisfied", "lookups",
    ),
}  # fmt: skip


def theirs(binary: str, text: str, logs: list[dict[str, Any]]) -> Callable[[], None]:
    """A run of the peer's process, with what it logged."""

    def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "input.json").write_text(text)
            subprocess.run([binary, "input.json"], cwd=folder, check=True, timeout=600, stdout=subprocess.DEVNULL)
            logs.append(json.loads((Path(folder) / "log.json").read_text()))

    return run


def ours(found: Experiment) -> Callable[[], Any]:
    """A run of an experiment, not metered."""
    return lambda: found.world().run("rounds", limit=found.rounds, metered=False)


def beside_quantas(binary: str) -> None:
    """Each scenario on both sides, in turns."""
    print(f"\n{'scenario':<34}{'who':<10}{'seconds':>9}{'rounds/s':>11}{'served':>9}{'messages/s':>13}")
    for name, (text, logged, measured) in SCENARIOS.items():
        (found,) = parse(text)
        logs: list[dict[str, Any]] = []
        cases = {"quantas": theirs(binary, text, logs), "assay": ours(found)}
        taken = interleave(cases, rounds=TURNS)
        outcome = ours(found)()
        served = {"quantas": _last(logs[-1], logged), "assay": found.measure(outcome)[measured]}
        for who in cases:
            seconds = median(taken[who])
            rate = f"{outcome.meter.deliveries / seconds:>13,.0f}" if who == "assay" else f"{'–':>13}"
            print(f"{name:<34}{who:<10}{seconds:>9.2f}{found.rounds / seconds:>11,.0f}{served[who]:>9,.0f}{rate}")


def _last(log: dict[str, Any], name: str) -> float:
    values: list[float] = log["tests"][-1][name]
    return values[-1]


def main() -> None:
    """Both parts; the second where there is a binary."""
    trivial()
    binary = os.environ.get("ASSAY_QUANTAS")
    if binary:
        beside_quantas(str(Path(binary).resolve()))
    else:
        print("\nQUANTAS: not run, ASSAY_QUANTAS names no binary")


if __name__ == "__main__":
    main()
