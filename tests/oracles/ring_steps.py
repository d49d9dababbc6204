"""A ring in lock step, one rank's next action at a time, until nobody can move: what counters a frozen rank leaves."""

from __future__ import annotations


def frozen(ranks: int, steps: int, culprit: int, at: int, sent: bool) -> tuple[list[int], list[int]]:
    """Completed Sends and Recvs of every rank when `culprit` stops in step `at`, after its Send or before it.

    In a step a rank sends, then receives what the rank before it sent in the same step, then goes on.
    """
    sends, recvs = [0] * ranks, [0] * ranks
    moved = True
    while moved:
        moved = False
        for rank in range(ranks):
            stopped_sends, stopped_recvs = at + int(sent), at
            may_send = rank != culprit or sends[rank] < stopped_sends
            may_recv = rank != culprit or recvs[rank] < stopped_recvs
            if sends[rank] == recvs[rank] < steps and may_send:
                sends[rank] += 1
                moved = True
            elif sends[rank] > recvs[rank] and sends[(rank - 1) % ranks] > recvs[rank] and may_recv:
                recvs[rank] += 1
                moved = True
    return sends, recvs
