"""Threshold automata as text, and every run of them at small parameters: Python reads the same expressions itself.

Nothing here knows the parser, linear forms or solvers: `/` becomes `//`, and configurations are walked one by one.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product
from types import CodeType

Values = Mapping[str, int]


@dataclass(frozen=True)
class Step:
    """One rule; an update of None is a reset."""

    source: str
    target: str
    guard: str
    updates: tuple[tuple[str, int | None], ...] = ()


@dataclass(frozen=True)
class Written:
    """An automaton in the words of its file, and one thing that must never be."""

    parameters: tuple[str, ...]
    counters: tuple[str, ...]
    places: tuple[str, ...]
    assumptions: tuple[str, ...]
    inits: tuple[str, ...]
    steps: tuple[Step, ...]
    start: str
    bad: str

    def text(self) -> str:
        """The file."""
        rules = "\n".join(
            f"    {i}: {s.source} -> {s.target} when ({s.guard}) do {{ {_effect(s)} }};"
            for i, s in enumerate(self.steps)
        )
        return f"""ta Random {{
  shared {", ".join(self.counters)};
  parameters {", ".join(self.parameters)};
  assumptions {{ {" ".join(f"{one};" for one in self.assumptions)} }}
  locations {{ {" ".join(f"{name}: [{i}];" for i, name in enumerate(self.places))} }}
  inits {{ {" ".join(f"{one};" for one in self.inits)} }}
  rules {{
{rules}
  }}
  specifications {{ never: ({self.start}) -> [](!({self.bad})); }}
}}"""


def _effect(step: Step) -> str:
    return " ".join(f"{name}' == {f'{name} + {by}' if by is not None else 0};" for name, by in step.updates)


@cache
def _code(text: str) -> CodeType:
    said = text.replace("/", "//").replace("&&", " and ").replace("||", " or ").replace("true", "True")
    return compile(said.replace("!=", "<>").replace("!", " not ").replace("<>", "!="), "condition", "eval")


def true(text: str, values: Values) -> bool:
    """What Python says about an expression of the file."""
    return bool(eval(_code(text), {}, dict(values)))  # the text is this module's own


def sizes(automaton: Written, up_to: int) -> Iterator[dict[str, int]]:
    """Parameters that the assumptions admit."""
    for values in product(range(up_to + 1), repeat=len(automaton.parameters)):
        size = dict(zip(automaton.parameters, values, strict=True))
        if all(true(one, size) for one in automaton.assumptions):
            yield size


def breaks(automaton: Written, size: Values, most: int = 4000) -> bool | None:
    """Whether a run at these parameters comes to what must never be; None after too many configurations."""
    names = (*automaton.places, *automaton.counters)
    crowd = max(size.values(), default=0)
    seen: set[tuple[int, ...]] = set()
    waiting: list[tuple[int, ...]] = []
    for counts in product(range(crowd + 1), repeat=len(automaton.places)):
        values = (*counts, *(0 for _ in automaton.counters))
        now = {**size, **dict(zip(names, values, strict=True))}
        if sum(counts) <= crowd and all(true(one, now) for one in automaton.inits) and true(automaton.start, now):
            seen.add(values)
            waiting.append(values)
    while waiting:
        values = waiting.pop()
        now = {**size, **dict(zip(names, values, strict=True))}
        if true(automaton.bad, now):
            return True
        if len(seen) > most:
            return None
        for step in automaton.steps:
            after = _after(step, now)
            if after is not None and (later := tuple(after[name] for name in names)) not in seen:
                seen.add(later)
                waiting.append(later)
    return False


def _after(step: Step, now: dict[str, int]) -> dict[str, int] | None:
    if now[step.source] < 1 or not true(step.guard, now):
        return None
    after = dict(now)
    after[step.source] -= 1
    after[step.target] += 1
    for name, by in step.updates:
        after[name] = after[name] + by if by is not None else 0
    return after


def _threshold(draw: random.Random, parameters: tuple[str, ...]) -> str:
    """A number over the parameters, nearly always with a division, at times with one inside another."""
    one, two = draw.choice(parameters), draw.choice(parameters)
    by = draw.choice((2, 2, 3))
    shapes = (
        f"({one} + {draw.randint(0, 3)}) / {by}",
        f"({one} + {two}) / {by} + {draw.randint(0, 1)}",
        f"({one} - {two}) / {by} + 1",
        f"{draw.randint(2, 3)} * ({one} / {by})",
        f"{one} - {two} / {by}",
        f"(2 * {one} - {two} + 1) / 3",
        f"({one} / 2 + {two}) / 2",
        f"{one} - {two}",
    )
    return draw.choice(shapes)


def _guard(draw: random.Random, parameters: tuple[str, ...], counters: tuple[str, ...]) -> str:
    threshold = _threshold(draw, parameters)
    total = draw.choice((*counters, " + ".join(counters), f"2 * {counters[0]}", f"{counters[-1]} / 2"))
    sign = draw.choice((">=", ">=", ">", "<"))
    return f"{total} {sign} {threshold}"


def written(seed: int) -> Written:
    """A random automaton: two to four parameters, divisions in assumptions, inits, guards, start and goal."""
    draw = random.Random(seed)
    parameters = ("N", "T", "F", "K")[: draw.randint(2, 4)]
    counters = ("x", "y")[: draw.randint(1, 2)]
    places = ("a", "b", "c", "d")[: draw.randint(3, 4)]
    assumptions = [f"N > {draw.randint(1, 2)} * T", draw.choice(("N >= 1", "T <= (N - 1) / 2", "2 * T >= N / 3"))]
    assumptions += ["T >= F"] if "F" in parameters else []
    assumptions += [draw.choice(("K <= T", "K == (N + T) / 2", "K <= N / 2"))] if "K" in parameters else []
    if draw.random() < 0.5:
        inits = [f"a == {draw.choice(('N', 'N - T', '(N + 1) / 2', 'N - T / 2'))}", "b == 0"]
    else:
        split = draw.choice(("b <= N / 2", "a >= (N + 1) / 2", "b / 2 <= T", "b == N / 3"))
        inits = ["a + b == N", split]
    inits += [f"{name} == 0" for name in (*places[2:], *counters)]
    steps = []
    for _ in range(draw.randint(2, 5)):
        source, target = sorted(draw.sample(places, 2)) if draw.random() < 0.9 else draw.sample(places, 2)
        guard = "true" if draw.random() < 0.35 else _guard(draw, parameters, counters)
        guard += f" && {_guard(draw, parameters, counters)}" if draw.random() < 0.2 else ""
        updates = tuple((name, draw.choice((1, 1, 2))) for name in counters if draw.random() < 0.6)
        steps.append(Step(source, target, guard, updates))
    last = draw.choice(places[1:])
    goals = (f"{last} > 0", f"{last} >= 2", f"{last} > 0 && {places[0]} == 0", f"{last} > {parameters[1]} / 2")
    spoken = (f"x >= ({parameters[0]} + 1) / 2 && {last} > 0", f"{last} / 2 >= {parameters[1]} && {last} > 0")
    start = draw.choice(("true", "b == 0", "T >= (N - 1) / 3", "b <= T / 2"))
    return Written(
        parameters, counters, places, tuple(assumptions), tuple(inits), tuple(steps), start,
        draw.choice(goals * 2 + spoken),
    )  # fmt: skip
