"""One picture of a watched job: where a step goes, whom to look at, every rank in every stage, who is missing.

Drawn from a summary, without touching a terminal. No colour says what a sign or a number does not say, too.

>>> from rich.console import Console
>>> Console(width=80).print(frame(Summary(expected=0, reporting=0, ranks=[]), 80, title="127.0.0.1:9099"))
... # doctest: +ELLIPSIS
assay watch · nobody reports yet ...
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from assay.live.top_frame import seconds
from assay.live.watch.summary import HANG, Named, RankRow, Summary
from assay.observe.frontier.advances import WAIT

WIDE = 112  # columns from which on everything has room
SHOWN = 3  # suspects
FELT = 0.01  # of a step
LOST = 4  # ranks that are told of one by one
COLOURS = ("blue", "cyan", "magenta", "yellow", "green", "bright_red", "bright_blue", "white")
SIGNS = {
    "reports": ("●", "green"), "behind": ("◔", "yellow"), "ended": ("■", "dim"), "silent": ("?", "red"),
    "gone": ("✗", "red"), "stopped": ("‖", "red"), "missing": ("○", "yellow"),
}  # fmt: skip
LABELS = {
    "hang": "the others wait for this rank",
    "confirmed": "this rank holds the others up",
    "shared": "all ranks are slower",
    "co-critical": "another rank is about as late",
    "seldom": "few steps are late, which may be chance",
    "device-deferred": "the device may have been late earlier",
    "role-heterogeneous": "ranks differ by design",
    "incomplete": "ranks or steps are missing",
    "unaligned": "ranks do not wait for each other where we think",
}


def frame(summary: Summary, width: int, height: int = 40, title: str = "") -> RenderableType:
    """The whole picture."""
    head = [_title(summary, width, title), *_troubles(summary)]
    if not summary.ranks:
        return Group(*head, *_how(title))
    parts: list[RenderableType] = [*(_one_line(line) for line in head)]
    used = len(head)
    if summary.steps or summary.hang:
        split = [Text(), *_split(summary, width)] if summary.steps else []
        found = _suspects(summary, width)
        parts += [*split, Text(), *found]
        used += len(split) + len(found) + 1
    parts += [Text(), _ranks(summary, width, max(height - used - 4, 3))]
    return Group(*parts)


def _one_line(text: Text) -> Text:
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _title(summary: Summary, width: int, title: str) -> Text:
    line = Text().append("assay watch", style="bold").append(" · ", style="dim")
    if not summary.ranks:
        line.append("nobody reports yet", style="yellow")
    elif summary.over:
        ended = sum(row.state == "ended" for row in summary.ranks)
        line.append(f"{ended} of {summary.expected} ranks ended", style="" if ended == summary.expected else "red")
    else:
        whole = summary.reporting == summary.expected
        line.append(f"{summary.reporting} of {summary.expected} ranks report", style="green" if whole else "red")
    if summary.over:
        line.append(" · ", style="dim").append("the job is over", style="bold")
    if summary.steps:
        line.append(" · ", style="dim").append(f"step {summary.last_step:,}")
        line.append(" · ", style="dim").append(f"{seconds(summary.step)} a step", style="bold")
    gap = width - line.cell_len - len(title)
    if title and gap >= 2:
        line.append(" " * gap).append(title, style="dim")
    return line


def _how(place: str) -> list[Text]:
    """What to do where nobody reports yet."""
    return [
        Text(),
        Text("in the job's environment   ", style="dim").append(f"export ASSAY_WATCH={place}", style="bold"),
        Text("in the job                 ", style="dim").append("from assay.live import monitor", style="bold"),
        Text(" " * 27).append("model, optimizer, loader = monitor.wrap(model, optimizer, loader)", style="bold"),
    ]


# ---------------------------------------------------------------------------------------------------- troubles


def _troubles(summary: Summary) -> list[Text]:
    lost = [row for row in summary.ranks if row.state in ("gone", "stopped", "silent")]
    lines = _stuck(summary) + [Text(f"✗ {_lost(row)}", style="red") for row in lost[:LOST]]
    if len(lost) > LOST:
        lines.append(Text(f"✗ and {listed([row.rank for row in lost[LOST:]])}", style="red"))
    for state, said in (("missing", "never reported"), ("behind", "far behind the others")):
        ranks = [row.rank for row in summary.ranks if row.state == state]
        if ranks:
            lines.append(Text(f"{SIGNS[state][0]} {listed(ranks)}: {said}", style="yellow"))
    if restarted := [row for row in summary.ranks if row.restarts]:
        most = max(row.restarts for row in restarted)
        times = "once" if most == 1 else f"up to {most} times" if len(restarted) > 1 else f"{most} times"
        lines.append(Text(f"↻ {listed([row.rank for row in restarted])}: restarted {times}", style="yellow"))
    if dropped := sum(row.dropped for row in summary.ranks):
        lines.append(Text(f"… {dropped:,} steps could not be sent by their ranks", style="dim"))
    if summary.refused:
        said = ", ".join(f"{count:,} {why}" for why, count in sorted(summary.refused.items()))
        lines.append(Text(f"… left aside: {said}", style="dim"))
    return lines


def _lost(row: RankRow) -> str:
    known = f"last at step {row.last_step:,}" if row.last_step >= 0 else "before it finished a step"
    about = f"{known}{f' in {row.stage}' if row.stage else ''}: {row.host}, process {row.pid}"
    match row.state:
        case "gone":
            return f"rank {row.rank} died {seconds(row.quiet)} ago, {about}"
        case "stopped":
            return f"rank {row.rank} was frozen {seconds(row.quiet)} ago, {about}"
    return f"rank {row.rank} silent for {seconds(row.quiet)}, {about}"


def _stuck(summary: Summary) -> list[Text]:
    """A job that hangs: which ranks sit where."""
    if not summary.stuck:
        return []
    places: dict[str, list[int]] = {}
    for row in summary.ranks:
        if row.state in ("reports", "behind", "stopped"):
            places.setdefault(row.stage or "no stage", []).append(row.rank)
    if not places:
        return []
    said = "; ".join(f"{listed(ranks)} in {stage}" for stage, ranks in sorted(places.items(), key=lambda p: len(p[1])))
    return [Text(f"✗ no step was finished for {seconds(summary.idle)}: {said}", style="bold red")]


def listed(ranks: Sequence[int]) -> str:
    """Ranks in words.

    >>> listed([3]), listed([0, 1, 2, 5])
    ('rank 3', 'ranks 0–2, 5')
    """
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and runs[-1][-1] + 1 == rank:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    words = [str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs]
    more = f" and {len(words) - 6} more" if len(words) > 6 else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(words[:6])}{more}"


# ---------------------------------------------------------------------------------------------------- the step


def _split(summary: Summary, width: int) -> list[Text]:
    """A bar as long as the line, cut among the stages by what each adds to the group's step."""
    told = "the ranks' first steps" if summary.compared == "reference" else "one another"
    head = Text("where a step goes", style="bold")
    head.append(f"   steps {summary.first_step:,}–{summary.last_step:,}, ranks compared with {told}", style="dim")
    shares = [(name, summary.accounting.get(name, 0.0) / summary.total) for name in summary.stages if summary.total]
    bar, legend, used, spent = Text(), [Text()], 0, 0.0
    for (name, share), colour in zip(shares, _colours(shares), strict=True):
        spent += share
        cells = round(spent * width) - used
        used += cells
        bar.append(name[:cells].ljust(cells) if cells > 2 else " " * cells, style=f"black on {colour}")
        if share >= 0.0005:
            entry = f"{name} {seconds(share * summary.step)} {share:.0%}"
            if legend[-1].cell_len + len(entry) + 5 > width:
                legend.append(Text())
            legend[-1].append("   " if legend[-1] else "").append("■ ", style=colour).append(entry)
    return [_one_line(head), bar, *legend]


def _colours(stages: Iterable[object]) -> list[str]:
    return [COLOURS[i % len(COLOURS)] for i, _ in enumerate(stages)]


def _suspects(summary: Summary, width: int) -> list[Text]:
    if not summary.suspects and summary.hang:
        return [_one_line(Text("✗ the job hangs", style="bold red").append(f": {summary.why}", style="dim"))]
    if not summary.suspects:
        line = Text("✓ ", style="green").append("nobody stands out", style="bold")
        return [_one_line(line.append(f": {summary.why}" if summary.why else "", style="dim"))]
    lines = [Text("look at", style="bold")]
    shown = worth(summary)
    for place, one in enumerate(shown, 1):
        lines += _suspect(place, one, width)
    if rest := len(summary.suspects) - len(shown):
        lines.append(Text(f"   … and {rest} weaker {'ones' if rest > 1 else 'one'}", style="dim"))
    return [_one_line(line) for line in lines]


def worth(summary: Summary) -> list[Named]:
    """The suspects worth a line: the first, and the next ones as far as a person would feel them."""
    first = summary.suspects[:SHOWN]
    return [one for place, one in enumerate(first) if not place or one.share >= FELT or one.label == HANG]


def _suspect(place: int, one: Named, width: int) -> list[Text]:
    sure = one.label in ("confirmed", "shared", HANG)
    line = Text(f"{place}  ").append(f"rank {one.rank} · {one.stage}", style="bold red" if sure else "bold yellow")
    lost = f"for {seconds(one.score)}" if one.label == HANG else f"+{seconds(one.score)} a step ({one.share:.0%})"
    line.append(f"  {lost}  ")
    line.append(one.label, style="red" if sure else "yellow")
    if width >= WIDE and one.label in LABELS:
        line.append(f": {LABELS[one.label]}", style="dim")
    where = f"{one.host}, process {one.pid}: " if one.host and one.label != "shared" else ""
    lines = [line, Text(f"   → {where}{one.next}", style="dim")]
    if one.workload and one.workload_ratio is not None:
        said = "it is slow itself" if one.workload == "slow" else "its sequences explain it"
        lines.append(Text(f"   → {said}: {one.workload_ratio:.2f} times what others take for such", style="dim"))
    return lines


# ---------------------------------------------------------------------------------------------------- the ranks


def _ranks(summary: Summary, width: int, rows: int) -> RenderableType:
    shown, rest = _choose(summary, rows)
    stages = [name for name in summary.stages if any(row.stages.get(name, 0.0) > 0.0 for row in summary.ranks)]
    longest = max((max(row.stages.values(), default=0.0) for row in summary.ranks), default=0.0)
    wide = width >= 30 + 9 * len(stages)  # else the state is a sign alone
    room = (width - (30 if wide else 20)) // max(len(stages), 1)
    cell = min(max(room - 11, 0), 12)  # signs of a bar; where there is no room for one, a single sign
    blamed = {(one.rank, one.stage) for one in worth(summary)}
    stages = _columns(summary, stages, max((width - (30 if wide else 20)) // 8, 1))
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("rank", justify="right", no_wrap=True)
    table.add_column("state" if wide else "", no_wrap=True)
    table.add_column("step ", justify="right", no_wrap=True)
    for name in stages:
        table.add_column(f" {name if wide else name[:7]}", no_wrap=True, overflow="ellipsis")
    for row in shown:
        sign, colour = SIGNS.get(row.state, ("?", "yellow"))
        cells = [_cell(row, name, longest, cell, (row.rank, name) in blamed) for name in stages]
        last = f"{row.last_step:,} " if row.last_step >= 0 else "– "
        table.add_row(str(row.rank), Text(f"{sign} {row.state}" if wide else f" {sign}", style=colour), last, *cells)
    if not rest:
        return table
    fine = sum(row.state == "reports" for row in rest)
    return Group(table, Text(f"… and {len(rest):,} more ranks, {fine:,} of which report", style="dim"))


def _columns(summary: Summary, stages: Sequence[str], most: int) -> list[str]:
    """Which stages are shown where there are too many: those of suspects, then the longest; in their own order."""
    blamed = {one.stage for one in worth(summary)}
    order = sorted(stages, key=lambda name: (name not in blamed, -summary.accounting.get(name, 0.0)))
    return [name for name in stages if name in order[:most]]


def _choose(summary: Summary, rows: int) -> tuple[list[RankRow], list[RankRow]]:
    """Who is shown where there are too many: the suspects, those in trouble, then the slowest; in their own order."""
    if len(summary.ranks) <= rows + 1:
        return summary.ranks, []
    blamed = {one.rank for one in worth(summary)}
    order = sorted(
        summary.ranks,
        key=lambda row: (row.rank not in blamed, row.state in ("reports", "missing"), -sum(row.stages.values())),
    )
    kept = {row.rank for row in order[:rows]}
    return [row for row in summary.ranks if row.rank in kept], [row for row in summary.ranks if row.rank not in kept]


def _cell(row: RankRow, stage: str, longest: float, width: int, blamed: bool) -> Text:
    """A duration as a bar, with a mark where somebody is to look; waiting is nobody's work, and pale."""
    value = row.stages.get(stage)
    if value is None:
        return Text(" –", style="dim")
    share = value / longest if longest > 0.0 else 0.0
    style = "bold red" if blamed else "bright_black" if stage == WAIT else "cyan"
    bar = _eighths(share, width) if width else "▁▂▃▄▅▆▇█"[min(int(share * 8), 7)]
    said = f" {seconds(value):>6}" if width else f"{seconds(value).replace(' ', ''):>5}"
    return Text().append(f"{'▸' if blamed else ' '}{bar}", style=style).append(said, style="bold red" if blamed else "")


def _eighths(share: float, width: int) -> str:
    """A bar of at most `width` signs, eight steps in each.

    >>> _eighths(0.5, 3), _eighths(0.0, 3)
    ('█▌ ', '   ')
    """
    full, part = divmod(round(min(max(share, 0.0), 1.0) * width * 8), 8)
    return ("█" * full + " ▏▎▍▌▋▊▉"[part] * (part > 0)).ljust(width)
