"""One picture of a gateway for the terminal: what it does, its engines, its last decisions, its shadow.

Drawn from one reading of `GET /engines` and the readings before it, without touching a terminal. What a reading does
not say is a dash. Colours are the sixteen that every theme chooses for itself, and none of them says what a sign or a
number does not say, too: the picture is for dark and light screens, and for eyes that see no red.

>>> page = convert({"policy": "lmetric", "engines": [{"name": "a", "state": "up", "aboard": 3}]})
>>> from rich.console import Console
>>> Console(width=80).print(frame(Reading(0.0, page), (), 80))  # doctest: +ELLIPSIS
assay gateway · lmetric · 1 of 1 engines up
...
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import Any

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

WIDE = 112  # columns from which on everything has room
SHOWN = 12  # engines, where there are more
HISTORY = 60  # readings that the small curves show
STALE = 10.0  # seconds after which an engine's own metrics are called old
NONE = "–"

SIGNS = {"up": ("●", "green"), "down": ("✗", "red"), "draining": ("◌", "yellow")}


class EngineRow(msgspec.Struct):
    """One engine of a reading."""

    name: str | None = None
    state: str | None = None
    note: str | None = None
    aboard: int | None = None
    running: int | None = None
    waiting: int | None = None
    prefill_tokens: int | None = None
    kv_free: float | None = None
    itl: float | None = None
    ttft: float | None = None
    age: float | None = None
    requests: int | None = None
    errors: int | None = None
    hit_ratio: float | None = None


class Decision(msgspec.Struct):
    """One request that was sent somewhere."""

    engine: str | None = None
    prompt: int | None = None
    matched: int | None = None
    scores: list[float | None] | None = None
    at: float | None = None  # seconds ago
    shadow: str | None = None


class ShadowReport(msgspec.Struct):
    """What a policy that nobody follows would have done."""

    policy: str | None = None
    decisions: int | None = None
    agreement: float | None = None
    errors: int | None = None
    match_ratio: float | None = None
    match_ratio_real: float | None = None
    load_spread: float | None = None
    load_spread_real: float | None = None


class Page(msgspec.Struct):
    """What `GET /engines` answers; other versions may say more, or less."""

    engines: list[EngineRow]
    policy: str | None = None
    order: str | None = None
    queue: int | None = None
    requests: int | None = None
    retries: int | None = None
    policy_errors: int | None = None
    policy_error: str | None = None
    ttft_p50: float | None = None
    ttft_p99: float | None = None
    itl_p50: float | None = None
    itl_p99: float | None = None
    statuses: dict[str, int] | None = None
    decisions: list[Decision] | None = None
    shadow: ShadowReport | None = None


@dataclass(frozen=True)
class Reading:
    """A page, and when it was read on this machine's steady clock."""

    at: float
    page: Page


def convert(value: Any) -> Page:
    """A page from plain values; msgspec.ValidationError where they are none."""
    return msgspec.convert(value, Page)


def frame(
    reading: Reading, before: Sequence[Reading], width: int, height: int = 40, title: str = "", trouble: str = ""
) -> RenderableType:
    """The whole picture. `before`: earlier readings, oldest first; `trouble`: why there is no newer one."""
    page = reading.page
    rows = max(min(height - 14, SHOWN), 3)
    parts: list[RenderableType] = [
        _head(reading, before, width, title, trouble),
        Text(),
        _engines(reading, before, width, rows),
    ]
    used = 8 + min(len(page.engines), rows + 1) + (5 if page.shadow else 0) + len(_troubles(page, width))
    if page.decisions:
        parts += [Text(), _decisions(page, width, max(min(height - used - 3, 12), 1))]
    if page.shadow is not None:
        parts += [Text(), _shadow(page, page.shadow)]
    return Group(*parts)


# ---------------------------------------------------------------------------------------------------- numbers


def seconds(value: float | None) -> str:
    """A time as people say it.

    >>> seconds(0.00042), seconds(0.0123), seconds(0.25), seconds(1.5), seconds(90.0), seconds(None)
    ('420 µs', '12 ms', '250 ms', '1.5 s', '90 s', '–')
    """
    if value is None or value <= 0.0:
        return NONE
    if value < 0.001:
        return f"{value * 1e6:.0f} µs"
    if value < 0.9995:
        digits = 1 if value < 0.00995 else 0
        return f"{value * 1e3:.{digits}f} ms".replace(".0 ms", " ms")
    return f"{value:.1f} s" if value < 10.0 else f"{value:,.0f} s"


def short(value: float | None) -> str:
    """A count or a score in at most six signs.

    >>> [short(value) for value in (0, 7, 0.25, 12.5, 1234, 98765, 1234567, 3.2e9, None)]
    ['0', '7', '0.25', '12.5', '1234', '98.8k', '1.23M', '3.2G', '–']
    """
    if value is None:
        return NONE
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            scaled = value / (1e3 if unit == "k" else size)
            return f"{scaled:.3g}{unit}" if scaled < 1e3 else f"{scaled:.3g}{unit}".replace("e+0", "e")
    return f"{value:.0f}" if float(value).is_integer() or abs(value) >= 1000.0 else f"{value:.3g}"


def percent(value: float | None) -> str:
    """A ratio.

    >>> percent(0.834), percent(None)
    ('83%', '–')
    """
    return NONE if value is None else f"{value:.0%}"


def rate(now: int | None, then: int | None, elapsed: float) -> float | None:
    """A counter's growth a second; one that fell belongs to a gateway that was started anew.

    >>> rate(30, 10, 2.0), rate(5, 10, 2.0), rate(None, 10, 2.0)
    (10.0, None, None)
    """
    if now is None or then is None or elapsed <= 0.0 or now < then:
        return None
    return (now - then) / elapsed


def sparkline(values: Sequence[float | None], width: int) -> str:
    """The last values as a small curve over zero; a gap where nothing is known.

    >>> sparkline([0, 1, 2, None, 4], 8)
    '▁▃▅ █'
    """
    values = values[-width:] if width > 0 else ()
    top = max((value for value in values if value is not None), default=0.0)
    ticks = "▁▂▃▄▅▆▇█"
    return "".join(" " if v is None else ticks[min(round(v / top * 7), 7) if top > 0.0 else 0] for v in values)


def bar(share: float | None, width: int) -> Text:
    """A share as a line that fills up."""
    if share is None:
        return Text(NONE, style="dim")
    share = min(max(share, 0.0), 1.0)
    halves = round(share * 2 * width)
    full, half = divmod(halves, 2)
    colour = "green" if share < 0.7 else "yellow" if share < 0.9 else "red"
    text = Text("━" * full + "╸" * half, style=colour)
    text.append("─" * (width - full - half), style="dim")
    return text.append(f" {percent(share):>4}")


# ---------------------------------------------------------------------------------------------------- the head


def _rates(readings: Sequence[Reading]) -> list[float | None]:
    """Requests a second between each two readings that follow one another."""
    pairs = zip(readings, readings[1:], strict=False)
    return [rate(new.page.requests, old.page.requests, new.at - old.at) for old, new in pairs]


def _ttft(page: Page) -> float | None:
    """The mean over engines of their moving averages."""
    known = [engine.ttft for engine in page.engines if engine.ttft]
    return sum(known) / len(known) if known else None


def _head(reading: Reading, before: Sequence[Reading], width: int, title: str, trouble: str) -> RenderableType:
    page = reading.page
    lines = [_title(page, width, title)]
    if trouble:
        lines.append(Text(f"✗ {trouble}", style="bold red"))
    readings = [*before[-HISTORY:], reading]
    room = max((width - 46) // 2, 0)
    rates, times = _rates(readings), [_ttft(one.page) for one in readings]
    curves = Text()
    now = rates[-1] if rates else None
    curves.append("requests ", style="dim").append(f"{short(now) if now is not None else NONE:>6}/s ", style="bold")
    curves.append(f"{sparkline(rates, room):<{room}}", style="cyan")
    curves.append("   TTFT ", style="dim").append(f"{seconds(times[-1]):>6} ", style="bold")
    curves.append(sparkline(times, room), style="magenta")
    lines.append(curves)
    lines.append(_times(page, width))
    lines.append(_counts(page))
    if page.policy_errors:
        lines.append(
            Text(f"✗ the policy failed {page.policy_errors:,} times: {page.policy_error or NONE}", style="red")
        )
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return Group(*lines)


def _title(page: Page, width: int, title: str) -> Text:
    up = sum(engine.state == "up" for engine in page.engines)
    line = Text("assay gateway", style="bold")
    line.append(" · ", style="dim").append(page.policy or NONE, style="bold cyan")
    if page.order:
        line.append(" · ", style="dim").append(f"order {page.order}")
    line.append(" · ", style="dim")
    line.append(f"{up} of {len(page.engines)} engines up", style="green" if up == len(page.engines) and up else "red")
    gap = width - line.cell_len - len(title)
    if title and gap >= 2:
        line.append(" " * gap).append(title, style="dim")
    return line


def _times(page: Page, width: int) -> Text:
    """Quantiles since the start, each the upper edge of its bucket."""
    line = Text()
    for name, p50, p99 in (("TTFT", page.ttft_p50, page.ttft_p99), ("ITL", page.itl_p50, page.itl_p99)):
        line.append("     " if line and width >= WIDE else "   " if line else "").append(f"{name} ", style="dim")
        for label, value in (("p50", p50), ("p99", p99)):
            line.append(f"{label} ", style="dim").append(f"≤ {seconds(value)} " if value else f"{NONE} ")
    return line.append(" since the start", style="dim")


def _counts(page: Page) -> Text:
    line = Text("queue ", style="dim")
    line.append(short(page.queue), style="bold yellow" if page.queue else "default")
    line.append("   retries ", style="dim").append(short(page.retries), style="yellow" if page.retries else "default")
    if page.statuses:
        line.append("   answers", style="dim")
    for status, count in sorted((page.statuses or {}).items()):
        colour = {"2": "green", "5": "red"}.get(status[:1], "yellow")
        line.append(f"  {status} ", style="dim").append(f"{count:,}", style="dim" if status == "499" else colour)
    return line


# ---------------------------------------------------------------------------------------------------- engines


def _engines(reading: Reading, before: Sequence[Reading], width: int, rows: int) -> RenderableType:
    page, wide = reading.page, width >= WIDE
    shown, rest = _choose(page.engines, rows)
    rates = _engine_rates(reading, before)
    table = Table(box=None, pad_edge=False, padding=(0, 2 if wide else 1, 0, 0), header_style="dim", expand=True)
    table.add_column(
        "engine", no_wrap=True, overflow="ellipsis", ratio=None if wide else 1, max_width=28 if wide else None
    )
    table.add_column("state", no_wrap=True)
    for name in ("aboard", "run", "wait", *(("prefill",) if wide or width >= 90 else ())):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("KV in use", no_wrap=True)
    for name in ("hits", "TTFT", "ITL", "req/s", "err"):
        table.add_column(name, justify="right", no_wrap=True)
    if wide:
        table.add_column("note", no_wrap=True, overflow="ellipsis", ratio=1, style="dim")
    for engine in shown:
        table.add_row(*_row(engine, rates.get(engine.name or ""), width))
    parts: list[RenderableType] = [table]
    if rest:
        parts.append(_remainder(rest, rates))
    return Group(*parts, *_troubles(page, width))


def _row(engine: EngineRow, sent: float | None, width: int) -> list[RenderableType]:
    wide = width >= WIDE
    sign, colour = SIGNS.get(engine.state or "", ("?", "yellow"))
    state = Text(f"{sign} {engine.state or NONE}", style=colour)
    kv = 1.0 - engine.kv_free if engine.kv_free is not None and engine.age is not None else None
    cells: list[RenderableType] = [
        Text(engine.name or NONE),
        state,
        Text(short(engine.aboard), style="bold"),
        short(engine.running),
    ]
    cells.append(Text(short(engine.waiting), style="yellow" if engine.waiting else ""))
    if wide or width >= 90:
        cells.append(short(engine.prefill_tokens))
    cells += [bar(kv, 10 if wide else 5), percent(engine.hit_ratio), seconds(engine.ttft), seconds(engine.itl)]
    cells += [short(sent), Text(short(engine.errors), style="red" if engine.errors else "")]
    return [*cells, Text(note(engine))] if wide else cells


def note(engine: EngineRow) -> str:
    """What is worth saying of an engine: why it is down, how old its metrics are, what they lack.

    >>> note(EngineRow(state="up", age=1.0, note="vLLM: found running; missing hits; start the engine with --x"))
    'vLLM: missing hits; start the engine with --x'
    """
    said = engine.note or ""
    family, found, rest = said.partition(": found ")
    if found:
        _, missing, lacks = rest.partition("; ")
        said = f"{family}: {lacks}" if missing else family
    if engine.state != "up":
        return said
    if engine.age is None:
        return said or "no metrics read yet"
    return f"metrics {seconds(engine.age)} old; {said}" if engine.age > STALE else said


def _troubles(page: Page, width: int) -> list[Text]:
    """Where notes have no column: why engines are down, three of them."""
    if width >= WIDE:
        return []
    down = [engine for engine in page.engines if engine.state == "down"]
    lines = [Text(f"✗ {engine.name or NONE}: {note(engine) or 'no reason given'}", style="red") for engine in down[:3]]
    for line in lines:
        line.no_wrap, line.overflow = True, "ellipsis"
    return lines


def _choose(engines: Sequence[EngineRow], rows: int) -> tuple[list[EngineRow], list[EngineRow]]:
    """Who is shown where there are too many: those in trouble, then the fullest; in the fleet's own order."""
    if len(engines) <= rows + 1:  # a line that says "and 1 more" could as well be that one
        return list(engines), []
    places = sorted(range(len(engines)), key=lambda i: (engines[i].state == "up", -(engines[i].aboard or 0), i))[:rows]
    kept = set(places)
    return [engines[i] for i in sorted(kept)], [e for i, e in enumerate(engines) if i not in kept]


def _remainder(rest: Sequence[EngineRow], rates: dict[str, float | None]) -> Text:
    up = sum(engine.state == "up" for engine in rest)
    aboard = sum(engine.aboard or 0 for engine in rest)
    sent = sum(rates.get(engine.name or "") or 0.0 for engine in rest)
    line = Text(f"… and {len(rest)} more", style="bold")
    return line.append(f": {up} up, {aboard:,} aboard, {short(sent)} requests/s", style="dim not bold")


def _engine_rates(reading: Reading, before: Sequence[Reading]) -> dict[str, float | None]:
    if not before:
        return {}
    last = before[-1]
    then = {engine.name: engine.requests for engine in last.page.engines}
    elapsed = reading.at - last.at
    return {e.name or "": rate(e.requests, then.get(e.name), elapsed) for e in reading.page.engines}


# ---------------------------------------------------------------------------------------------------- decisions


def labels(names: Iterable[str]) -> list[str]:
    """Names without what all of them begin or end with, so that columns can be headed with them.

    >>> labels(["127.0.0.1:8001", "127.0.0.1:8002"]), labels(["gpu-0.llm:80", "gpu-1.llm:80"]), labels(["one"])
    (['8001', '8002'], ['0', '1'], ['one'])
    """
    names = list(names)
    if len(names) < 2:
        return names
    start = _at_sign(commonprefix(names))
    end = _at_sign(commonprefix([name[::-1] for name in names]))
    cut = [name[start : len(name) - end] for name in names]
    return cut if all(cut) and len(set(cut)) == len(set(names)) else names


def _at_sign(common: str) -> int:
    """The length of what is common, up to the last sign that is neither letter nor digit."""
    return next((i for i in range(len(common), 0, -1) if not common[i - 1].isalnum()), 0)


def _decisions(page: Page, width: int, rows: int) -> RenderableType:
    made = list(reversed(page.decisions or []))[:rows]
    names = [engine.name or NONE for engine in page.engines]
    called = dict(zip(names, labels(names), strict=True))
    shadow = any(decision.shadow for decision in made)
    widest = max((min(len(label), 8) for label in called.values()), default=1)
    cell = max(widest, 6) + 3
    grid = 0 < len(names) <= (width - 32 - (10 if shadow else 0)) // cell and any(d.scores for d in made)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("ago", justify="right", no_wrap=True)
    table.add_column("sent to", no_wrap=True, overflow="ellipsis", max_width=12, min_width=7)
    table.add_column("known of prompt", justify="right", no_wrap=True)
    if grid:
        for name in names:
            table.add_column(Text(called[name][-8:]), justify="right", no_wrap=True)
    else:
        table.add_column("smallest scores", no_wrap=True, overflow="ellipsis")
    if shadow:
        table.add_column("shadow", no_wrap=True, overflow="ellipsis")
    for decision in made:
        table.add_row(*_decision(decision, names, called, grid, shadow, width))
    return table


def _decision(
    decision: Decision, names: Sequence[str], called: dict[str, str], grid: bool, shadow: bool, width: int
) -> list[RenderableType]:
    chosen = decision.engine or NONE
    cells: list[RenderableType] = [seconds(decision.at), Text(called.get(chosen, chosen), style="bold")]
    cells.append(_known(decision))
    # An engine that came or went since makes the old scores nobody's.
    scores = decision.scores if decision.scores and len(decision.scores) == len(names) else None
    known = [score for score in scores or () if score is not None]
    least = min(known, default=None)
    if grid:
        cells += [_score(scores[i] if scores else None, name == chosen, least, "") for i, name in enumerate(names)]
    else:
        cells.append(_smallest(scores, names, called, chosen, max((width - 44) // 12, 1)))
    if shadow:
        other = decision.shadow
        agrees = other == chosen
        said = "same" if agrees else called.get(other, other) if other else NONE
        cells.append(Text(said, style="dim" if agrees or not other else "yellow"))
    return cells


def _known(decision: Decision) -> Text:
    text = Text(short(decision.matched), style="green" if decision.matched else "dim")
    return text.append(" / ", style="dim").append(short(decision.prompt), style="default")


def _score(score: float | None, chosen: bool, least: float | None, label: str) -> Text:
    """The chosen engine's is marked; the smallest stands out, whoever has it."""
    style = "bold green" if score is not None and score == least else "bold" if chosen else "dim"
    return Text(("▸" if chosen else "") + (f"{label} " if label else "") + short(score), style=style)


def _smallest(
    scores: Sequence[float | None] | None, names: Sequence[str], called: dict[str, str], chosen: str, count: int
) -> Text:
    """The smallest scores of many, and the chosen engine's where it is not among them."""
    ranked = sorted((score, i) for i, score in enumerate(scores or ()) if score is not None)
    if not ranked:
        return Text("the policy gave none", style="dim")
    kept = ranked[:count]
    kept += [pair for pair in ranked[count:] if names[pair[1]] == chosen]
    pieces = [_score(score, names[i] == chosen, ranked[0][0], called[names[i]][-8:]) for score, i in kept]
    return Text("  ").join(pieces)


# ---------------------------------------------------------------------------------------------------- shadow


def _shadow(page: Page, shadow: ShadowReport) -> RenderableType:
    """Both policies beside each other; the better figure stands out."""
    line = Text("shadow ", style="dim").append(shadow.policy or NONE, style="bold magenta")
    line.append(f" agrees in {percent(shadow.agreement)} of {short(shadow.decisions)} decisions")
    if shadow.errors:
        line.append(f" and failed in {short(shadow.errors)}", style="red")
    line.no_wrap, line.overflow = True, "ellipsis"
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    for name in ("policy", "prompt tokens known", "fullest engine / mean"):
        table.add_column(name, justify="left" if name == "policy" else "right", no_wrap=True, overflow="ellipsis")
    hits, loads = (shadow.match_ratio_real, shadow.match_ratio), (shadow.load_spread_real, shadow.load_spread)
    for i, (policy, style) in enumerate(((page.policy, "cyan"), (shadow.policy, "magenta"))):
        best_hit = hits[i] is not None and hits[i] == max(hit for hit in hits if hit is not None)
        best_load = loads[i] is not None and loads[i] == min(load for load in loads if load is not None)
        load = loads[i]
        table.add_row(
            Text(policy or NONE, style=style),
            Text(percent(hits[i]), style="bold green" if best_hit else ""),
            Text(NONE if load is None else f"{load:.2f}", style="bold green" if best_load else ""),
        )
    return Group(line, table)
