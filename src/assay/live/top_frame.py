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
from itertools import pairwise, takewhile
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

# The columns of engines, and how wide a terminal must be to have each.
COLUMNS = {
    "state": 0, "aboard": 0, "run": 64, "wait": 64, "prefill tok": 92, "KV in use": 56, "hits": 76, "TTFT": 0,
    "ITL": 50, "req/s": 42, "err/min": 60, "note": WIDE,
}  # fmt: skip

SIGNS = {"up": ("●", "green"), "down": ("✗", "red"), "draining": ("◌", "yellow"), "starting": ("○", "yellow")}


class EngineRecent(msgspec.Struct):
    """The last minute of an engine."""

    errors: int | None = None
    hit_ratio: float | None = None


class Recent(msgspec.Struct):
    """The last minute of a gateway."""

    seconds: float | None = None  # None: it has not run for so long
    retries: int | None = None
    statuses: dict[str, int] | None = None


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
    recent: EngineRecent | None = None


class Decision(msgspec.Struct):
    """One request that was sent somewhere."""

    engine: str | None = None
    prompt: int | None = None
    matched: int | None = None
    scores: list[float | None] | None = None  # none of engines that could not have been chosen
    engines: list[str] | None = None  # whose they are
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


class CanaryReport(msgspec.Struct):
    """What a policy that gets a share of the traffic has done with it."""

    policy: str | None = None
    share: float | None = None
    requests: int | None = None
    requests_usual: int | None = None
    verdict: str | None = None


class TenantRow(msgspec.Struct):
    """What one tenant has asked for."""

    tenant: str | None = None
    requests: int | None = None
    failed: int | None = None


class Change(msgspec.Struct):
    """An engine that is no longer as it was."""

    engine: str | None = None
    to: str | None = None
    at: float | None = None  # seconds ago


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
    log_lost: int = 0
    log_error: str | None = None
    ttft_p50: float | None = None
    ttft_p99: float | None = None
    itl_p50: float | None = None
    itl_p99: float | None = None
    statuses: dict[str, int] | None = None
    decisions: list[Decision] | None = None
    shadow: ShadowReport | None = None
    canary: CanaryReport | None = None
    tenants: list[TenantRow] | None = None
    changes: list[Change] | None = None
    recent: Recent | None = None


@dataclass(frozen=True)
class Reading:
    """A page, and when it was read on this machine's steady clock."""

    at: float
    page: Page


def convert(value: Any) -> Page:
    """A page from plain values; msgspec.ValidationError where they are none."""
    return msgspec.convert(_printable(value), Page)


def _printable(value: Any) -> Any:
    """The same without control characters: what an engine or a policy says must not steer the terminal."""
    if isinstance(value, str):
        return value if value.isprintable() else "".join(sign if sign.isprintable() else "·" for sign in value)
    if isinstance(value, dict):
        return {_printable(name): _printable(inner) for name, inner in value.items()}
    return [_printable(inner) for inner in value] if isinstance(value, list) else value


def frame(
    reading: Reading, before: Sequence[Reading], width: int, height: int = 40, title: str = "", trouble: str = ""
) -> RenderableType:
    """The whole picture. `before`: earlier readings, oldest first; `trouble`: why there is no newer one."""
    page = reading.page
    head = _head(reading, before, width, title, trouble)
    troubles = _troubles(page, width)
    below = (5 if page.shadow is not None else 0) + (3 if page.canary is not None else 0)
    below += 1 + len(_lately(page)) if _lately(page) else 0
    room = height - len(head) - 2 - len(troubles) - below  # for engines and decisions
    rows = max(min(room - 5, SHOWN), 3)
    parts: list[RenderableType] = [*head, Text(), _engines(reading, before, width, rows), *troubles]
    if page.decisions:
        parts += [Text(), _decisions(page, width, max(room - 2 - min(len(page.engines), rows + 1), 1))]
    if page.shadow is not None:
        parts += [Text(), _shadow(page, page.shadow)]
    if page.canary is not None:
        parts += [Text(), *_canary(page.canary)]
    if more := _lately(page):
        parts += [Text(), *more]
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
    text = Text().append("━" * full + "╸" * half, style=colour)
    text.append("─" * (width - full - half), style="dim")
    return text.append(f" {percent(share):>4}", style=colour)


# ---------------------------------------------------------------------------------------------------- the head


def _rates(readings: Sequence[Reading]) -> list[float | None]:
    """Requests a second between each two readings that follow one another."""
    return [rate(new.page.requests, old.page.requests, new.at - old.at) for old, new in pairwise(readings)]


def _ttft(page: Page) -> float | None:
    """The mean over engines of their moving averages."""
    known = [engine.ttft for engine in page.engines if engine.ttft]
    return sum(known) / len(known) if known else None


def _head(reading: Reading, before: Sequence[Reading], width: int, title: str, trouble: str) -> list[Text]:
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
    lines += [_times(page, width), _counts(page)]
    if page.policy_errors:
        why = page.policy_error or NONE
        lines.append(Text(f"✗ the policy failed {page.policy_errors:,} times: {why}", style="red"))
    if page.log_lost or page.log_error:
        lines.append(Text(f"✗ the access log lost {page.log_lost:,} lines: {page.log_error or NONE}", style="red"))
    return [_one_line(line) for line in lines]


def _one_line(text: Text) -> Text:
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _title(page: Page, width: int, title: str) -> Text:
    up = sum(engine.state == "up" for engine in page.engines)
    line = Text().append("assay gateway", style="bold")
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
    """Quantiles of the last minute, each the upper edge of its bucket."""
    line = Text()
    for name, p50, p99 in (("TTFT", page.ttft_p50, page.ttft_p99), ("ITL", page.itl_p50, page.itl_p99)):
        line.append("     " if line and width >= WIDE else "   " if line else "").append(f"{name} ", style="dim")
        for label, value in (("p50", p50), ("p99", p99)):
            line.append(f"{label} ", style="dim").append(f"≤ {seconds(value)} " if value else f"{NONE} ")
    return line.append(" in the last minute", style="dim")


def _counts(page: Page) -> Text:
    line = Text().append("queue ", style="dim")
    line.append(short(page.queue), style="bold yellow" if page.queue else "")
    recent = page.recent or Recent()
    line.append("   in the last minute: retries ", style="dim")
    line.append(short(recent.retries), style="yellow" if recent.retries else "")
    line.append("   answers", style="dim").append(
        "" if recent.statuses else f"  {NONE}" if recent.retries is None else "  0"
    )
    for status, count in sorted((recent.statuses or {}).items()):
        colour = {"2": "green", "5": "red"}.get(status[:1], "yellow")
        line.append(f"  {status} ", style="dim").append(f"{count:,}", style="dim" if status == "499" else colour)
    return line


# ---------------------------------------------------------------------------------------------------- engines


def _engines(reading: Reading, before: Sequence[Reading], width: int, rows: int) -> RenderableType:
    page, wide = reading.page, width >= WIDE
    shown, rest = _choose(page.engines, rows)
    rates = _engine_rates(reading, before)
    names = [engine.name or NONE for engine in page.engines]
    if any(len(name) > (32 if wide else max(width - 64, 12)) for name in names):
        names = labels(names)
    called = dict(zip((engine.name for engine in page.engines), names, strict=True))
    table = Table(box=None, pad_edge=False, padding=(0, 2 if wide else 1, 0, 0), header_style="dim", expand=True)
    table.add_column("engine", no_wrap=True, overflow="ellipsis", ratio=None if wide else 1, max_width=32, min_width=8)
    columns = [name for name, least in COLUMNS.items() if width >= least]
    for name in columns:
        left, last = name in ("state", "KV in use", "note"), name == "note"
        table.add_column(
            name, justify="left" if left else "right", no_wrap=True, overflow="ellipsis", ratio=1 if last else None
        )
    for engine in shown:
        cells = _cells(engine, rates.get(engine.name or ""), 10 if wide else 5)
        table.add_row(Text(called[engine.name]), *(cells[name] for name in columns))
    return Group(table, _remainder(rest, rates)) if rest else table


def _cells(engine: EngineRow, sent: float | None, bar_width: int) -> dict[str, RenderableType]:
    sign, colour = SIGNS.get(engine.state or "", ("?", "yellow"))
    # Before its metrics were read an engine's memory is thought to be free, which is no reading.
    recent = engine.recent or EngineRecent()
    kv = 1.0 - engine.kv_free if engine.kv_free is not None and engine.age is not None else None
    return {
        "state": Text(f"{sign} {engine.state or NONE}", style=colour),
        "aboard": Text(short(engine.aboard), style="bold"),
        "run": short(engine.running),
        "wait": Text(short(engine.waiting), style="yellow" if engine.waiting else ""),
        "prefill tok": short(engine.prefill_tokens),
        "KV in use": bar(kv, bar_width),
        "hits": percent(recent.hit_ratio),
        "TTFT": seconds(engine.ttft),
        "ITL": seconds(engine.itl),
        "req/s": short(sent),
        "err/min": Text(short(recent.errors), style="red" if recent.errors else ""),
        "note": Text(note(engine), style="dim"),
    }


def note(engine: EngineRow) -> str:
    """What is worth saying of an engine: why it is down, how old its metrics are, what they lack.

    >>> note(EngineRow(state="up", age=1.0, note="vLLM: found running; missing hits; start the engine with --x"))
    'vLLM: start it with --x; missing hits'
    """
    said = engine.note or ""
    family, found, rest = said.partition(": found ")
    if found:
        missing, told, cure = rest.partition("; ")[2].partition("; start the engine with ")
        said = ": ".join(filter(None, (family, "; ".join(filter(None, (told and f"start it with {cure}", missing))))))
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
    lines = [f"✗ {engine.name or NONE}: {note(engine) or 'no reason given'}" for engine in down[:3]]
    return [_one_line(Text(line, style="red")) for line in lines]


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
    line = Text().append(f"… and {len(rest)} more", style="bold")
    return line.append(f": {up} up, {aboard:,} aboard, {short(sent)} requests/s", style="dim")


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
    start, end = _alike(names), _alike([name[::-1] for name in names])
    cut = [name[start : len(name) - end] for name in names]
    return cut if all(cut) and len(set(cut)) == len(set(names)) else names


def _alike(names: Sequence[str]) -> int:
    """Signs that all names begin with, up to the last one that is neither letter nor digit."""
    first, last = min(names), max(names)  # what these two have in common, all have
    common = [a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))]
    return next((n for n in range(len(common), 0, -1) if not common[n - 1].isalnum()), 0)


def _decisions(page: Page, width: int, rows: int) -> RenderableType:
    """The newest first; where they fit, the scores of all engines side by side."""
    made = [_today(decision, page) for decision in list(reversed(page.decisions or []))[:rows]]
    names = [engine.name or NONE for engine in page.engines]
    heads = [label[-8:] for label in labels(names)]
    shadow = any(decision.shadow for decision in made)
    gap = 2 if width >= WIDE else 1
    room = width - 28 - 3 * gap - (8 + gap if shadow else 0)
    cell = max((len(head) for head in heads), default=0)
    grid = 0 < len(names) * (max(cell, 6) + gap) <= room and any(decision.scores for decision in made)
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="dim")
    table.add_column("ago", justify="right", no_wrap=True, min_width=6)
    table.add_column("sent to", no_wrap=True, overflow="ellipsis", max_width=8)
    table.add_column("known/prompt", justify="right", no_wrap=True)
    for head in heads if grid else ():
        table.add_column(Text(head), justify="right", no_wrap=True, min_width=6)
    if not grid:
        table.add_column("smallest scores", no_wrap=True, overflow="ellipsis")
    if shadow:
        table.add_column("shadow", no_wrap=True, overflow="ellipsis", max_width=8)
    for decision in made:
        cells = _decision(decision, dict(zip(names, heads, strict=True)))
        cells += _scores(decision, page, heads) if grid else [_smallest(decision, page, heads, room // (cell + 9))]
        table.add_row(*cells, *(_other(decision, names, heads) if shadow else ()))
    return table


def _today(decision: Decision, page: Page) -> Decision:
    """Its scores in the order of the engines that there are now, by their names."""
    if not decision.scores or not decision.engines:
        return decision
    scores = dict(zip(decision.engines, decision.scores, strict=False))
    return msgspec.structs.replace(decision, scores=[scores.get(engine.name or "") for engine in page.engines])


def _decision(decision: Decision, called: dict[str, str]) -> list[RenderableType]:
    chosen = decision.engine or NONE
    known = Text().append(short(decision.matched), style="green" if decision.matched else "dim")
    known.append("/", style="dim").append(short(decision.prompt))
    return [seconds(decision.at), Text(called.get(chosen, chosen), style="bold"), known]


def _other(decision: Decision, names: Sequence[str], heads: Sequence[str]) -> list[Text]:
    """Where the shadow would have sent it."""
    other = decision.shadow
    if other is None or other == decision.engine:
        return [Text(NONE if other is None else "same", style="dim")]
    return [Text(heads[names.index(other)] if other in names else other, style="yellow")]


def _scores(decision: Decision, page: Page, heads: Sequence[str]) -> list[Text]:
    """One for each engine: the chosen one marked, the smallest standing out, those out of service faint."""
    scores = decision.scores
    if scores is None or len(scores) != len(heads):  # an engine came or went since: they are nobody's
        return [Text(NONE, style="dim") for _ in heads]
    able = [engine.state == "up" or engine.name == decision.engine for engine in page.engines]
    least = min((score for score, may in zip(scores, able, strict=True) if may and score is not None), default=None)
    cells = []
    for engine, score, may in zip(page.engines, scores, able, strict=True):
        style = "dim" if not may else "bold green" if score is not None and score == least else ""
        mark = "▸" if engine.name == decision.engine else ""
        cells.append(Text(mark + short(score), style=style))
    return cells


def _smallest(decision: Decision, page: Page, heads: Sequence[str], count: int) -> Text:
    """Of many scores the smallest, and the chosen engine's where it is not among them."""
    scores = decision.scores if decision.scores is not None and len(decision.scores) == len(heads) else []
    cells = _scores(decision, page, heads)
    able = [i for i, score in enumerate(scores) if score is not None and page.engines[i].state == "up"]
    ranked = sorted(able, key=lambda i: (scores[i] or 0.0, i))
    chosen = [i for i, engine in enumerate(page.engines) if engine.name == decision.engine and i < len(scores)]
    kept = list(dict.fromkeys([*ranked[:count], *chosen]))
    if not kept:
        return Text("the policy gave none", style="dim")
    return Text("  ").join(Text().append(f"{heads[i]}:", style="dim").append_text(cells[i]) for i in kept)


# ---------------------------------------------------------------------------------------------------- shadow


def _shadow(page: Page, shadow: ShadowReport) -> RenderableType:
    """Both policies beside each other; the better figure stands out."""
    line = Text().append("shadow ", style="dim").append(shadow.policy or NONE, style="bold magenta")
    line.append(f" agrees in {percent(shadow.agreement)} of {short(shadow.decisions)} decisions")
    if shadow.errors:
        line.append(f" and failed in {short(shadow.errors)}", style="red")
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
    return Group(_one_line(line), table)


def _canary(canary: CanaryReport) -> list[RenderableType]:
    """Whose traffic it is, and what follows so far."""
    line = Text().append("canary ", style="dim").append(canary.policy or NONE, style="bold yellow")
    line.append(f" decides about {percent(canary.share)}: {short(canary.requests)} requests")
    line.append(f" beside {short(canary.requests_usual)}")
    return [_one_line(line), _one_line(Text("       " + (canary.verdict or NONE)))]


def _lately(page: Page) -> list[RenderableType]:
    """Who asks most, and which engines changed: a line each, where there is more than one tenant, or a change."""
    lines: list[RenderableType] = []
    if page.tenants and len(page.tenants) > 1:
        named = (f"{t.tenant or '(none)'} {short(t.requests)}" for t in page.tenants[:6])
        lines.append(_one_line(Text().append("tenants  ", style="dim").append("   ".join(named))))
    if page.changes:
        told = (f"{c.engine} {c.to} {seconds(c.at)} ago" for c in reversed(page.changes[-4:]))
        lines.append(_one_line(Text().append("changes  ", style="dim").append("   ".join(told))))
    return lines
