"""Requests whose answers branch: a plan, parts that can be written independently of one another, a summary.

An answer is a sequence of stages. A serial stage is one stretch of tokens; a parallel stage has several branches that
all continue the same text and may be decoded side by side; the next stage sees the text of all of them. Models trained
to mark such parts, outline-first prompting and sampled reasoning paths give answers of this shape; no public trace
records it, so it is generated: a share of the requests of any trace, or of Poisson traffic, gets a branching answer.

>>> trace = generate(100, rate=2.0, share=0.5, seed=0)
>>> len(trace), bool((np.diff(trace.arrival) >= 0).all())
(100, True)
>>> int(trace.widths.max()) <= 16, 0.3 < float(trace.branching.mean()) < 0.7
(True, True)
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from assay.record.errors import BadInput, unreadable
from assay.sim.random import stream
from assay.workloads.requests import Requests

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Answer:
    """What a branching answer looks like. Lengths are lognormal, in tokens; all values are assumptions.

    A round is a serial stage and a parallel one; after the last round a serial stage ends the answer.
    """

    rounds: tuple[int, int] = (1, 2)  # fewest and most
    width: tuple[int, int] = (2, 16)
    branch: float = 100.0  # median tokens of a branch
    branch_spread: float = 0.7  # standard deviation of the logarithm
    serial: float = 60.0
    serial_spread: float = 0.5

    def __post_init__(self) -> None:
        for name in ("rounds", "width"):
            low, high = getattr(self, name)
            if not 1 <= low <= high:
                raise ValueError(f"{name} is {low}..{high}, should be at least 1 and in order")
        if min(self.branch, self.serial) < 1 or min(self.branch_spread, self.serial_spread) < 0:
            raise ValueError("medians should be at least 1 token and spreads at least 0")


@dataclass(frozen=True, eq=False)
class Branching:
    """A trace of answers with stages, in order of arrival.

    Request r has stages `stages[r]` to `stages[r + 1] - 1`, stage s has branches `branches[s]` to
    `branches[s + 1] - 1`, branch i has `length[i]` tokens. A serial stage is a stage of one branch, and so is the
    first of each request: what follows the prompt is one text.
    """

    arrival: Floats
    prompt: Ints
    stages: Ints
    branches: Ints
    length: Ints

    @classmethod
    def of(
        cls, arrival: Sequence[float], prompt: Sequence[int], answers: Sequence[Sequence[Sequence[int]]]
    ) -> Branching:
        """From lists: an answer is a list of stages, a stage a list of branch lengths.

        >>> Branching.of([0.0], [100], [[[5], [7, 9], [3]]]).tokens.tolist()
        [24]

        Raises:
            ValueError: a row that cannot be a request; the message says which.
        """
        if not len(arrival) == len(prompt) == len(answers):
            raise ValueError("arrival, prompt and answers must have one length")
        stages = [0, *np.cumsum([len(answer) for answer in answers], dtype=np.int64)]
        widths = [len(stage) for answer in answers for stage in answer]
        lengths = [tokens for answer in answers for stage in answer for tokens in stage]
        trace = cls(
            np.array(arrival, np.float64), np.array(prompt, np.int64), np.array(stages, np.int64),
            np.array([0, *np.cumsum(widths, dtype=np.int64)], np.int64), np.array(lengths, np.int64),
        )  # fmt: skip
        trace._check()
        return trace

    def _check(self) -> None:
        times = self.arrival
        if len(times) and (not np.isfinite(times).all() or times[0] < 0 or (np.diff(times) < 0).any()):
            raise ValueError("arrivals must be finite, at least 0 and sorted")
        if len(self.prompt) and self.prompt.min() < 1:
            raise ValueError(f"request {int(self.prompt.argmin())} has no prompt token")
        empty = np.flatnonzero(np.diff(self.stages) < 1)
        if len(empty):
            raise ValueError(f"request {int(empty[0])} has no stage")
        wide = np.flatnonzero(self.widths[self.stages[:-1]] != 1)
        if len(wide):
            raise ValueError(f"request {int(wide[0])} starts with a parallel stage, should start with a serial one")
        if (self.widths < 1).any() or (self.length < 1).any():
            raise ValueError("every stage needs a branch and every branch a token")

    def __len__(self) -> int:
        return len(self.arrival)

    @property
    def widths(self) -> Ints:
        """Branches of each stage."""
        return np.diff(self.branches)

    @property
    def branching(self) -> NDArray[np.bool_]:
        """Which requests have a parallel stage."""
        return np.maximum.reduceat(self.widths, self.stages[:-1]) > 1

    @property
    def tokens(self) -> Ints:
        """Output tokens of each request, all branches counted."""
        return np.add.reduceat(self.length, self.branches[self.stages[:-1]])

    @property
    def rate(self) -> float:
        """Requests a second."""
        return len(self) / float(self.arrival[-1] - self.arrival[0])

    def at(self, rate: float) -> Branching:
        """The same requests at another rate.

        >>> round(generate(50, rate=2.0, share=0.5, seed=0).at(5.0).rate, 9)
        5.0
        """
        return replace(self, arrival=self.arrival * (self.rate / rate))


def branching(requests: Requests, share: float, seed: int, answer: Answer | None = None) -> Branching:
    """Give a share of a trace's requests a branching answer; the others keep their output as one serial stage.

    >>> plain = Requests.of(arrival=[0.0, 0.5], prompt=[100, 20], output=[5, 7])
    >>> branching(plain, 0.0, seed=0).length.tolist()
    [5, 7]

    Raises:
        ValueError: a share outside 0 to 1.
    """
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"share is {share:g}, should be 0 to 1")
    shape, random = answer or Answer(), stream(seed, "branches", "answers")
    # Drawn for every request, so that a larger share turns more requests into branching ones and changes no other.
    drawn, answers = random.random(len(requests)), []
    for chosen, output in zip(drawn < share, requests.output.tolist(), strict=True):
        stages = _stages(shape, random)
        answers.append(stages if chosen else [[output]])
    return Branching.of(requests.arrival.tolist(), requests.prompt.tolist(), answers)


def _stages(shape: Answer, random: np.random.Generator) -> list[list[int]]:
    def lengths(median: float, spread: float, count: int) -> list[int]:
        drawn = np.maximum(1.0, np.rint(random.lognormal(np.log(median), spread, count)))
        return [int(tokens) for tokens in drawn]

    stages = []
    for _ in range(int(random.integers(shape.rounds[0], shape.rounds[1] + 1))):
        stages.append(lengths(shape.serial, shape.serial_spread, 1))
        width = int(random.integers(shape.width[0], shape.width[1] + 1))
        stages.append(lengths(shape.branch, shape.branch_spread, width))
    stages.append(lengths(shape.serial, shape.serial_spread, 1))
    return stages


def generate(
    requests: int, rate: float, share: float, seed: int, answer: Answer | None = None,
    prompt: float = 1000.0, output: float = 300.0, spread: float = 0.8,
) -> Branching:  # fmt: skip
    """Poisson arrivals with lognormal prompts and serial outputs (medians, in tokens), a share of them branching.

    >>> generate(3, rate=1.0, share=1.0, seed=0).branching.tolist()
    [True, True, True]
    """
    random = stream(seed, "branches", "traffic")
    arrival = np.cumsum(random.exponential(1.0 / rate, requests))
    prompts, outputs = (
        np.maximum(1.0, np.rint(random.lognormal(np.log(median), spread, requests))) for median in (prompt, output)
    )
    return branching(Requests.of(arrival, prompts, outputs), share, seed, answer)


# ------------------------------------------------------------------------------------------- own data


class _Line(msgspec.Struct):
    arrival: float
    prompt: int
    stages: list[list[int]] = []
    output: int = 0


def read(path: str | os.PathLike[str]) -> Branching:
    """A trace from JSON lines: arrival in seconds, prompt tokens, and the stages of the answer.

    A stage is a list of branch lengths in tokens, one for a serial stage; an answer without branches may say `output`
    instead. Rows may come in any order; the first arrival becomes zero.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder, "mine.jsonl")
    ...     _ = file.write_text('{"arrival": 5, "prompt": 90, "stages": [[9], [40, 30], [9]]}\\n'
    ...                         '{"arrival": 4, "prompt": 70, "output": 12}\\n')
    ...     trace = read(file)
    >>> trace.arrival.tolist(), trace.tokens.tolist(), trace.branching.tolist()
    ([0.0, 1.0], [12, 88], [False, True])

    Raises:
        BadInput: a line that is no such request; the message has its number.
    """
    right = '{"arrival": 0.5, "prompt": 800, "stages": [[60], [100, 90], [40]]} expected'
    try:
        lines = Path(path).read_bytes().splitlines()
    except OSError as error:
        raise unreadable(path, error, f"lines such as {right}") from error
    rows: list[tuple[float, int, list[list[int]]]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found = msgspec.json.decode(line, type=_Line)
            answer = found.stages or [[found.output]]
            Branching.of([abs(found.arrival)], [found.prompt], [answer])  # a bad row is told by its line
        except (msgspec.MsgspecError, ValueError, OverflowError) as error:
            raise BadInput(f"{path}, line {number}: {error}; {right}") from error
        rows.append((found.arrival, found.prompt, answer))
    if not rows:
        raise BadInput(f"{path}: no request; lines such as {right}")
    rows.sort(key=lambda row: row[0])
    return Branching.of([row[0] - rows[0][0] for row in rows], [row[1] for row in rows], [row[2] for row in rows])
