"""Agents' rollouts: what each turn reads and writes, which tool it calls, what came back and how long that took.

A trajectory is a series of turns. A turn reads `prompt` new tokens (the task, then what the tool returned), writes
`output` tokens and calls a tool for `env` seconds; the last one calls none. What a tool returned is told by its kind,
the size of its answer and its status, as a scheduler sees it.

Files are JSON lines, a turn a line: trajectory, turn, prompt_tokens, gen_tokens, tool, payload_bytes, status,
env_seconds, and optionally the RL step that the trajectory belongs to.

>>> work = draw(1000, seed=0)
>>> len(work), bool(np.percentile(work.written, 75) < 0.3 * work.written.max())  # a long tail
(1000, True)
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.record import reading
from assay.record.errors import BadInput
from assay.sim.random import stream

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

SIZES = (500, 5000)  # bytes of a tool's answer: small, medium, large
STATUSES = ("success", "failure", "timeout")
MOST = 1 << 22  # tokens of one turn; more is a file read wrongly
LARGEST = 1 << 29  # bytes of a file that are read
FIELDS = ("trajectory", "turn", "prompt_tokens", "gen_tokens")


@dataclass(frozen=True)
class Trajectories:
    """Turns of trajectory i are `first[i] : first[i + 1]`; `state` is what a tool returned, -1 after the last."""

    first: Ints
    prompt: Ints
    output: Ints
    env: Floats
    state: Ints
    step: Ints  # of each trajectory
    tools: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.first) - 1

    @property
    def states(self) -> int:
        """How many kinds of return there are: tools by sizes by statuses."""
        return max(1, len(self.tools)) * 9

    @property
    def turns(self) -> Ints:
        """Of each trajectory."""
        return np.diff(self.first)

    @property
    def written(self) -> Ints:
        """Tokens that each trajectory generates."""
        return np.add.reduceat(self.output, self.first[:-1]) if len(self) else np.zeros(0, np.int64)

    @property
    def length(self) -> Ints:
        """Tokens that each trajectory has in the end."""
        return np.add.reduceat(self.output + self.prompt, self.first[:-1]) if len(self) else np.zeros(0, np.int64)

    def __getitem__(self, which: Ints) -> Trajectories:
        """Some of them, in this order."""
        which = np.asarray(which, dtype=np.int64)
        counts = self.turns[which]
        first = np.concatenate([[0], np.cumsum(counts)])
        at = np.repeat(self.first[:-1][which] - first[:-1], counts) + np.arange(first[-1])
        return Trajectories(
            first, self.prompt[at], self.output[at], self.env[at], self.state[at], self.step[which], self.tools
        )

    def of_step(self, step: int) -> Trajectories:
        """Those of one RL step."""
        return self[np.flatnonzero(self.step == step)]


def joined(parts: list[Trajectories]) -> Trajectories:
    """One after another; all know the same tools."""
    turns = np.concatenate([part.turns for part in parts])
    columns = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("prompt", "output", "env", "state", "step")
    }
    return Trajectories(np.concatenate([[0], np.cumsum(turns)]), **columns, tools=parts[0].tools)


def payload_class(nbytes: float) -> int:
    """0 small, 1 medium, 2 large.

    >>> [payload_class(n) for n in (500, 501, 6000)]
    [0, 1, 2]
    """
    return int(nbytes > SIZES[0]) + int(nbytes > SIZES[1])


# --------------------------------------------------------------------------------------------------------- generator

TOOLS = ("search", "shell", "tests")


def draw(
    count: int, seed: int, *, step: int = 0, informative: float = 1.0, hard: float = 0.15, stretch: float = 1.0,
    env: float = 4.0,
) -> Trajectories:  # fmt: skip
    """Rollouts of coding agents: most end after a few short turns, `hard` ones go on for long.

    What a tool returns depends on whether the task is hard (failing tests, large outputs), by `informative`: at 0 it
    says nothing, at 1 a failure is thirty times as likely where the task is hard. `stretch` makes all turns longer, as
    drift does; `env` is the median seconds that a tool takes. Medians and shares are assumed, none was fitted.

    >>> draw(3, seed=1).turns.min() >= 1
    np.True_
    """
    random = stream(seed, "trajectories", step)
    is_hard = random.random(count) < hard
    turns = np.where(is_hard, 5 + random.geometric(0.25, count), random.geometric(0.4, count)).clip(1, 16)
    first = np.concatenate([[0], np.cumsum(turns)])
    total, of = int(first[-1]), np.repeat(is_hard, turns)
    scale = np.repeat(np.exp(0.25 * random.standard_normal(count)), turns)
    output = np.where(of, 900.0, 400.0) * scale * stretch * np.exp(0.5 * random.standard_normal(total))
    prompt = 350.0 * np.exp(0.7 * random.standard_normal(total))
    prompt[first[:-1]] = 900.0 * np.exp(0.4 * random.standard_normal(count))
    seconds = env * np.exp(0.7 * random.standard_normal(total))
    fails = np.where(of & (random.random(total) < informative), 0.9, 0.03)
    status = (random.random(total) < fails) * (1 + (random.random(total) < 0.2))
    large = np.where(of & (random.random(total) < informative), 0.6, 0.2)
    size = (random.random(total) < large) * (1 + (random.random(total) < 0.4))
    state = random.integers(0, len(TOOLS), total) * 9 + size * 3 + status
    last = first[1:] - 1
    state[last], seconds[last] = -1, 0.0
    return Trajectories(
        first, prompt.clip(16, 16384).astype(np.int64), output.clip(8, 16384).astype(np.int64), seconds,
        state.astype(np.int64), np.full(count, step, dtype=np.int64), TOOLS,
    )  # fmt: skip


# -------------------------------------------------------------------------------------------------------------- files


def as_lines(work: Trajectories) -> str:
    """The file that `read` reads; sizes of answers come out as one of each class."""
    sizes = (200, 2000, 20_000)
    rows: list[str] = []
    for i in range(len(work)):
        for turn, at in enumerate(range(work.first[i], work.first[i + 1])):
            row: dict[str, Any] = {"trajectory": i, "turn": turn, "step": int(work.step[i])}
            row |= {"prompt_tokens": int(work.prompt[at]), "gen_tokens": int(work.output[at])}
            if (state := int(work.state[at])) >= 0:
                row |= {"tool": work.tools[state // 9], "payload_bytes": sizes[state // 3 % 3]}
                row |= {"status": STATUSES[state % 3], "env_seconds": round(float(work.env[at]), 3)}
            rows.append(json.dumps(row, separators=(",", ":")))
    return "".join(row + "\n" for row in rows)


def read(path: Path) -> Trajectories:
    """Trajectories of a JSONL file, a turn a line, in any order.

    Raises:
        BadInput: the line and the field that is wrong.
    """
    lines = reading.text(path, "a line of JSON for each turn", LARGEST).splitlines()
    rows: dict[str, dict[int, tuple[Any, ...]]] = {}
    for number, line in enumerate(lines, 1):
        if line.strip():
            _take(rows, line, f"{path}, line {number}")
    if not rows:
        raise BadInput(f"{path}: no trajectories in it; a line a turn is expected, with {', '.join(FIELDS)}")
    return _laid_out(rows, path)


def _take(rows: dict[str, dict[int, tuple[Any, ...]]], line: str, where: str) -> None:
    try:
        row = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise BadInput(f"{where}: not JSON") from error
    if not isinstance(row, dict):
        raise BadInput(f"{where}: an object expected, with {', '.join(FIELDS)}")
    name, turn = row.get("trajectory"), row.get("turn")
    if isinstance(name, bool) or not isinstance(name, str | int):
        raise BadInput(f"{where}: trajectory should be a name or a number")
    if isinstance(turn, bool) or not isinstance(turn, int) or not 0 <= turn < 1 << 16:
        raise BadInput(f"{where}: turn should be a whole number from 0")
    prompt, output = (_number(row, field, where, least=1, most=MOST) for field in FIELDS[2:])
    env = _number(row, "env_seconds", where, default=0.0, most=1e7)
    payload = _number(row, "payload_bytes", where, default=0.0, most=1e12)
    step = _number(row, "step", where, default=0, most=1e6)
    tool, status = row.get("tool") or "", row.get("status") or "success"
    if not isinstance(tool, str) or status not in STATUSES:
        raise BadInput(f"{where}: tool should be a name and status one of {', '.join(STATUSES)}")
    turns = rows.setdefault(str(name), {})
    if turn in turns:
        raise BadInput(f"{where}: turn {turn} of trajectory {name} is there twice")
    turns[turn] = (int(prompt), int(output), env, tool, payload_class(payload) * 3 + STATUSES.index(status), int(step))


def _number(
    row: dict[str, Any], field: str, where: str, *, least: float = 0, most: float, default: float | None = None
) -> float:
    value = row.get(field, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise BadInput(f"{where}: {field} should be a number")
    if not least <= value <= most:
        raise BadInput(f"{where}: {field} is {value:g}; {least:g} to {most:g} expected")
    return value


def _laid_out(rows: dict[str, dict[int, tuple[Any, ...]]], path: Path) -> Trajectories:
    tools = sorted({turn[3] for turns in rows.values() for turn in turns.values()} - {""}) or ["tool"]
    if len(tools) > 256:
        raise BadInput(f"{path}: {len(tools)} kinds of tool; name at most 256")
    flat: list[tuple[Any, ...]] = []
    counts: list[int] = []
    steps: list[int] = []
    for name, turns in rows.items():
        if sorted(turns) != list(range(len(turns))):
            raise BadInput(f"{path}: trajectory {name} has turns {sorted(turns)[:6]}; 0, 1, 2, … expected")
        flat += [turns[turn] for turn in range(len(turns))]
        counts.append(len(turns))
        steps.append(turns[0][5])
    first = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    state = np.array([(tools.index(turn[3]) if turn[3] else 0) * 9 + turn[4] for turn in flat], dtype=np.int64)
    env = np.array([turn[2] for turn in flat], dtype=float)
    state[first[1:] - 1], env[first[1:] - 1] = -1, 0.0  # nobody waits for what follows the last turn
    prompt, output = (np.array([turn[k] for turn in flat], dtype=np.int64) for k in (0, 1))
    return Trajectories(first, prompt, output, env, state, np.array(steps, dtype=np.int64), tuple(tools))
