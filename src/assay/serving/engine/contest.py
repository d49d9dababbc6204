"""Who wins a comparison, by how much, how sure that is, and why: from the rows and the runs of the contenders."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from assay.serving.engine.lead import Drawn, Lead, drawn, lead_over
from assay.serving.engine.luck import Again, luck
from assay.serving.engine.outcome import Outcome
from assay.serving.engine.targets import Targets

Row = Mapping[str, Any]
LED = ("led_by", "led_by_low", "led_by_high")


def measure_of(targets: Targets | None, find: bool) -> str:
    """What decides: capacity where it is searched for, goodput where there are targets, else the time to first token.

    >>> measure_of(None, find=False)
    'ttft_mean'
    """
    return "capacity" if find else "goodput" if targets else "ttft_mean"


def ranked(table: Sequence[Row], targets: Targets | None = None, find: bool = False) -> list[Row]:
    """The rows, best first.

    >>> [row["policy"] for row in ranked([{"policy": "a", "ttft_mean": 2.0}, {"policy": "b", "ttft_mean": 1.0}])]
    ['b', 'a']
    """
    measure = measure_of(targets, find)
    return sorted(table, key=lambda row: row[measure], reverse=measure != "ttft_mean")


def add_leads(
    table: Sequence[dict[str, Any]], outcomes: Mapping[str, Outcome], targets: Targets | None, find: bool,
    again: Again | None = None,
) -> None:  # fmt: skip
    """To each row by which share the winner leads it, and the interval: stretches of sessions, and runs made `again`.

    Of capacities the interval is what the bisections leave open, down to nothing where it is not certain that fewer
    meet their targets; `outcomes` are then everybody's runs at the winner's capacity.
    """
    best = ranked(table, targets, find)[0]
    for row in table:
        found: Lead | None = None
        if row is not best:
            found = lead_over([_drawn(outcomes, (best["policy"], row["policy"]), targets, again)])
            if find:
                found = _bracket([best], [row], certain=not found.tie)
        row |= dict(zip(LED, found or (None, None, None), strict=True))


SURE = 8.0  # a lead of so many times its spread is not asked what luck did


def _drawn(runs: Mapping[str, Outcome], pair: tuple[str, str], targets: Targets | None, again: Again | None) -> Drawn:
    """The ratio of mean times to first token, or theirs to ours of requests that met the targets."""
    best, other = (runs[policy] for policy in pair)
    if targets is None:
        found = drawn(best, other, best.ttft, other.ttft)
    else:
        found = drawn(other, best, other.met(targets).astype(float), best.met(targets).astype(float))
    if again is None or not found.ratio > 0:
        return found
    ahead = -math.log(found.ratio)
    if not 0.0 < found.spread < ahead < SURE * found.spread:  # a tie is one already
        return found

    def measure(run: Outcome) -> float:
        values = run.ttft if targets is None else run.met(targets)
        return float(values.mean()) if len(values) else 0.0

    by = luck(again, pair, (best, other), measure)
    return Drawn(found.ratio, math.hypot(found.spread, by))


def _bracket(best: Sequence[Row], other: Sequence[Row], certain: bool) -> Lead | None:
    """The lead in capacity, trace by trace, and what the ends of the bisections leave open; None: nobody has any."""

    def share(ours: str, theirs: str) -> float:
        ratios = [b[theirs] / a[ours] if a[ours] else math.inf for a, b in zip(best, other, strict=True)]
        with np.errstate(divide="ignore", invalid="ignore"):
            return float(1 - np.exp(np.mean(np.log(ratios))))

    if not all(row["capacity"] for row in best):
        return None
    low = share("capacity", "capacity_above")
    return Lead(share("capacity", "capacity"), low if certain else min(low, 0.0), share("capacity_above", "capacity"))


def over_all(
    tables: Sequence[Sequence[Row]], runs: Sequence[Mapping[str, Outcome]], targets: Targets | None, find: bool,
    again: Sequence[Again] = (),
) -> list[dict[str, Any]]:  # fmt: skip
    """A row a policy over several traces: the geometric mean of the measure, on how many it is first, and the lead.

    Traces differ in their load; a geometric mean lets each count as much as any other.
    """
    measure = measure_of(targets, find)
    named = [{row["policy"]: row for row in table} for table in tables]
    rows = []
    for policy in named[0]:
        values = [float(table[policy][measure]) for table in named]
        with np.errstate(divide="ignore"):
            typical = float(np.exp(np.mean(np.log(values))))
        firsts = sum(_ahead(table, policy, targets, find) for table in tables)
        rows.append({"policy": policy, measure: typical, "first": firsts})
    best = ranked(rows, targets, find)[0]["policy"]
    for row in rows:
        found: Lead | None = None
        if row["policy"] != best:
            if find:
                ours, theirs = ([table[policy] for table in named] for policy in (best, row["policy"]))
                found = _bracket(ours, theirs, certain=_told_apart(tables, best, row["policy"]))
            else:
                more: Sequence[Again | None] = again or [None] * len(runs)
                pair = (best, row["policy"])
                found = lead_over([_drawn(run, pair, targets, one) for run, one in zip(runs, more, strict=True)])
        row |= dict(zip(LED, found or (None, None, None), strict=True))
    return rows


def _told_apart(tables: Sequence[Sequence[Row]], *policies: str) -> bool:
    """Whether some trace tells two policies apart: one of them wins or ties with its winner, the other does not."""
    return any(len(set(policies) & set(leaders(table))) == 1 for table in tables)


def _winner(table: Sequence[Row]) -> str:
    """Whom nobody leads."""
    return str(next(row["policy"] for row in table if row["led_by"] is None))


def leaders(table: Sequence[Row]) -> list[str]:
    """Who is first, and who cannot be told from it.

    >>> second = {"policy": "b", "led_by": 0.1, "led_by_low": 0.0}
    >>> leaders([{"policy": "a", "led_by": None, "led_by_low": None}, second])
    ['a', 'b']
    """
    return [_winner(table), *_tied(table)]


def _ahead(table: Sequence[Row], policy: str, targets: Targets | None, find: bool) -> bool:
    """Whether a policy is first on a trace, or ties with who is."""
    best = ranked(table, targets, find)[0]
    return policy == best["policy"] or policy in _tied(table)


def _tied(table: Sequence[Row]) -> list[str]:
    """Who cannot be told from the first."""
    return [row["policy"] for row in table if row["led_by_low"] is not None and not row["led_by_low"] > 0]


def why(table: Sequence[Row], targets: Targets | None, find: bool, runs: Mapping[str, Outcome] | None = None) -> str:
    """Who wins, by how much and how sure that is, and why, from the numbers.

    The reason is read off `runs` where they are given: rows at capacity are of runs at different rates.
    """
    best, *others = ranked(table, targets, find)
    if find and not best["capacity"]:
        most = max(row["attainment_counted"] for row in table)
        return f"The capacity is zero: at the lowest rate tried at most {_percent(most)} meet the targets, not 95 %."
    if not others:
        return f"{_level(best, targets, find)}. There is nobody to compare it with."
    said, tied, last = _first(best, others, targets, find), _tied(others), others[-1]
    if len(tied) == len(others):
        return f"{said}. At this load the choice hardly matters."
    if last is not others[0] and last["policy"] not in tied:
        said += f"; {last['policy']} is last with {last[measure_of(targets, find)]:.3g}"
    if runs is not None:
        best, last = ({"policy": row["policy"]} | runs[row["policy"]].summary() for row in (best, last))
    return f"{said}. {_because(best, last)}"


def load_sentence(table: Sequence[Row], runs: Mapping[str, Outcome]) -> str:
    """What was offered and what was served while the load was steady, and who did not keep up."""
    first = runs[table[0]["policy"]].flow
    if not first.sent:  # a trace of one stroke, or of a few rows, is no load
        return ""
    offered = [runs[row["policy"]].flow.offered for row in table]
    served = [runs[row["policy"]].flow.completed for row in table]
    requests = runs[table[0]["policy"]].requests
    asked = requests.rate if requests.steady is not None and min(offered) < 0.97 * requests.rate else 0.0
    of = f" of the {asked:.3g} asked for, as who waits longer asks less often," if asked else ""
    said = f" Offered {_between(offered)} requests/s{of}"
    seconds = f"{first.seconds:,.0f}" if first.seconds >= 100 else f"{first.seconds:.3g}"
    said += f"{'' if of else ','} served {_between(served)} over {seconds} steady seconds"
    flows = {row["policy"]: runs[row["policy"]].flow for row in table}
    behind = [policy for policy, flow in flows.items() if not flow.sustained and not flow.fills]
    if not behind:
        short = any(flow.fills for flow in flows.values())
        more = f"; the trace is over before the fleet has filled up: --rate {first.offered:.2g} goes on for longer"
        return f"{said}{more if short else ''}."
    who = "every policy is" if len(behind) == len(table) > 1 else f"{', '.join(behind)} {_are(behind)}"
    return f"{said}; {who} saturated: queues grow as long as this goes on, and latencies with them."


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"


def _between(rates: Sequence[float]) -> str:
    least, most = f"{min(rates):.3g}", f"{max(rates):.3g}"
    return least if least == most else f"{least} to {most}"


def why_over_all(
    rows: Sequence[Row], tables: Sequence[Sequence[Row]], names: Sequence[str], targets: Targets | None, find: bool
) -> str:
    """Who wins over several traces, and on which it does not."""
    best, *others = ranked(rows, targets, find)
    if not others:
        return f"{_level(best, targets, find)}, the geometric mean over the traces. There is nobody to compare it with."
    if find and not best["capacity"]:
        return "Over all: on some trace no policy keeps the targets for 95 % at any rate, so there is no capacity."
    behind = [
        f"on {name} {ranked(table, targets, find)[0]['policy']} is first"
        for name, table in zip(names, tables, strict=True)
        if not _ahead(table, best["policy"], targets, find)
    ]
    where = f"It is first, or ties, on {best['first']} of {len(tables)} traces"
    exceptions = f"; {', '.join(behind)}" if behind else ""
    return f"Over all: {_first(best, others, targets, find)}. {where}{exceptions}."


def _percent(share: float) -> str:
    digits = f"{100 * share:.0f}" if abs(share) >= 0.1 else f"{100 * share:.1f}"
    return f"{digits} %".replace("-0.0", "0").replace("-", "−")


def _level(best: Row, targets: Targets | None, find: bool) -> str:
    return f"{best['policy']} has {_amount(best, targets, find)}"


def _amount(row: Row, targets: Targets | None, find: bool) -> str:
    measure = measure_of(targets, find)
    unit = {
        "capacity": "req/s at which 95 % meet the targets",
        "goodput": "requests/s within the targets",
        "ttft_mean": "s mean time to first token",
    }[measure]
    least = "at least " if find and row.get("capacity_above") == math.inf else ""
    return f"{least}{row[measure]:.3g} {unit}"


def _first(best: Row, others: Sequence[Row], targets: Targets | None, find: bool) -> str:
    """Who is first alone, or with whom it ties."""
    amount = _amount(best, targets, find)
    if tied := _tied(others):
        names = ", ".join([best["policy"], *tied[:-1]]) + f" and {tied[-1]}"
        nearest = next(row for row in others if row["policy"] == tied[0])
        return f"{names} tie at {amount}: {best['policy']} is {_lead_text(nearest, find)}, which may be nothing"
    return f"{best['policy']} wins with {amount}, {_lead_text(others[0], find)}"


def _lead_text(row: Row, find: bool) -> str:
    """By how much the winner leads a row, with the interval."""
    if row["led_by"] is None:
        return f"before {row['policy']}"
    low, high = (_percent(row[end]).removesuffix(" %").replace("inf", "∞") for end in LED[1:])
    ends = f"{low} … {high} %"
    sure = row["led_by_low"] > 0
    apart = f"the bisections leave {ends}" + ("" if sure else ", and attainment at that rate does not tell them apart")
    how = apart if find else f"95 % interval {ends}, stretches of sessions"
    return f"{_percent(row['led_by'])} ahead of {row['policy']} ({how})"


def _because(best: Row, other: Row) -> str:
    """What sets two runs apart most: the prompt tokens computed, the waiting, the decoding, or preemptions."""
    name = other["policy"]
    work, work_other = 1 - best["cached_ratio"], 1 - other["cached_ratio"]
    wait, wait_other = best["queueing_mean"], other["queueing_mean"]
    pace, pace_other = best["tpot_mean"], other["tpot_mean"]
    causes = [
        (
            work_other / max(work, 1e-9),
            f"computes {_percent(work)} of its prompt tokens where {name} computes {_percent(work_other)}",
        ),
        ((wait_other + 1e-3) / (wait + 1e-3), f"lets requests wait {wait:.2g} s for admission, not {wait_other:.2g} s"),
        (pace_other / max(pace, 1e-12), f"keeps tokens {pace:.2g} s apart, not {pace_other:.2g} s"),
    ]
    causes.sort(reverse=True)
    strong = [text for factor, text in causes if factor > 1.05][:2]
    if not strong:
        return f"It and {name} compute, wait and decode alike within 5 %."
    return f"It {' and '.join(strong)}."
