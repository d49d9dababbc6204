"""The bench lab: a git history of a small package in which some commits really do more work.

The package simulates a little network of spiking neurons in plain Python. Most commits are harmless (a comment, a
renamed local, a function nobody calls); a planted one integrates with a finer time step, so that its simulation does
exactly so much more of the same work. Whoever detects sees commits and times; the truth stays with the lab.

>>> import tempfile
>>> with tempfile.TemporaryDirectory() as folder:
...     planted = history(Path(folder), [0.0, 0.05, 0.0])
...     [round(commit.work / planted[0].work - 1, 3) for commit in planted]
[0.0, 0.0, 0.05, 0.05]
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from assay.record.errors import BadInput
from assay.sim.random import stream

STEPS = 1000  # of the first commit: changes as small as a thousandth can be planted
CONFIG = """\
min_change = 0.01

[benchmark.simulate]
call = "spiking.network:simulate"
"""
NETWORK = '''\
"""A network of leaky neurons on a ring{note}."""

NEURONS = 8
STEPS = {steps}
LEAK, PUSH, DRIVE, THRESHOLD = 0.98, 0.15, 0.03, 1.0


def simulate(steps=STEPS):
    """The spikes of every neuron."""
    {local} = [0.1 * neuron for neuron in range(NEURONS)]
    spikes = [0] * NEURONS
    for step in range(steps):
        for neuron in range(NEURONS):
            level = {local}[neuron] * LEAK + DRIVE
            if level > THRESHOLD:
                spikes[neuron] += 1
                level = 0.0
                {local}[neuron - 1] += PUSH
            {local}[neuron] = level
    return spikes
'''
UNUSED = '''

def rate_{number}(spikes, seconds):
    """Spikes a second."""
    return [count / seconds for count in spikes]
'''
_WHEN = 1_700_000_000  # a fixed day, so that the same history always has the same commits


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit of the lab: its name, its change of work against the one before, and its work."""

    name: str
    change: float
    work: int


def history(folder: Path, changes: Sequence[float], seed: int = 0) -> list[Commit]:
    """Make a repository whose commit i + 1 does `changes[i]` more work than commit i; 0 is a harmless commit."""
    random = stream(seed, "bench-lab", len(changes))
    (folder / "spiking").mkdir(parents=True)
    (folder / "spiking" / "__init__.py").write_text("")
    (folder / "bench.toml").write_text(CONFIG)
    _git(folder, 0, "init", "--quiet", "--initial-branch=main")
    steps, note, local, unused = STEPS, "", "potential", ""
    commits: list[Commit] = []
    for number, change in enumerate((0.0, *changes)):
        before, steps = steps, round(steps * (1 + change))
        if steps == before and number:
            match int(random.integers(3)):
                case 0:
                    note = f", revision {number}"
                case 1:
                    local = f"voltage_{number}"
                case _:
                    unused += UNUSED.format(number=number)
        source = NETWORK.format(steps=steps, note=note, local=local) + unused
        (folder / "spiking" / "network.py").write_text(source)
        _git(folder, number, "add", "--all")
        message = "Finer time step" if steps != before else f"Tidy up {number}"
        _git(folder, number, "commit", "--quiet", "--message", message)
        commits.append(Commit(_git(folder, number, "rev-parse", "HEAD"), steps / before - 1, steps))
    return commits


def _git(folder: Path, number: int, *words: str) -> str:
    who = ["-c", "user.name=lab", "-c", "user.email=lab@localhost", "-c", "commit.gpgsign=false"]
    when = f"{_WHEN + 60 * number} +0000"
    env = {"GIT_AUTHOR_DATE": when, "GIT_COMMITTER_DATE": when, "GIT_CONFIG_GLOBAL": "/dev/null"}
    command = ["git", "-C", str(folder), *who, *words]
    ended = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, timeout=60, check=False)
    if ended.returncode:
        raise BadInput(f"the bench lab needs git: {ended.stderr.strip()}")
    return ended.stdout.strip()
