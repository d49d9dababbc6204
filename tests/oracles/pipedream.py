"""PipeDream's slots and delays, spelled out with sets and a history of every update."""

from __future__ import annotations


def slots(stages: int, microbatches: int, most: int) -> list[list[tuple[str, int] | None]]:
    went: dict[tuple[int, int], int] = {}
    came: dict[tuple[int, int], int] = {}
    rows: list[list[tuple[str, int] | None]] = []
    while len(came) < stages * microbatches:
        slot, row = len(rows), []
        before_f, before_b = dict(went), dict(came)  # what earlier slots have finished
        for s in range(stages):
            back = [m for m in range(microbatches) if (m, s) not in came and (m, s) in before_f]
            ready = [m for m in back if s == stages - 1 or (m, s + 1) in before_b]
            fresh = [m for m in range(microbatches) if (m, s) not in went]
            on_the_way = len([m for m in range(microbatches) if (m, s) in went and (m, s) not in came])
            may = fresh and (on_the_way < most if s == 0 else (fresh[0], s - 1) in before_f)
            if ready and ready[0] == back[0]:
                came[ready[0], s] = slot
                row.append(("B", ready[0]))
            elif may:
                went[fresh[0], s] = slot
                row.append(("F", fresh[0]))
            else:
                row.append(None)
        rows.append(row)
    return rows


def delays(rows: list[list[tuple[str, int] | None]]) -> dict[tuple[int, int], int]:
    """For each update: how many updates, of any block, lie between it and the oldest read behind it."""
    updates, read, found = 0, {}, {}
    for row in rows:
        for stage, op in enumerate(row):
            if op and op[0] == "F":
                read.setdefault(op[1], updates)  # the first stage reads first
            elif op:
                found[op[1], stage] = updates - read[op[1]]
                updates += 1
    return found
