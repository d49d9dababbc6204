"""Work-conserving devices against the plain version, and against the longest path where nobody has a choice."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from assay.sim.dag import Dag
from assay.sim.ready_queues import run
from tests.oracles.ready_queues import play


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, Any]:
    n = draw(st.integers(1, 12))
    edges = [(a, b) for b in range(n) for a in range(b) if draw(st.booleans())]
    numbers = st.integers(1, 6).map(float)
    return {
        "n": n, "edges": edges, "lags": [draw(st.integers(0, 3).map(float)) for _ in edges],
        "device": [draw(st.integers(0, 2)) for _ in range(n)], "seconds": [draw(numbers) for _ in range(n)],
        "priority": [draw(numbers) for _ in range(n)],
    }  # fmt: skip


@given(graphs())
def test_the_event_loop_agrees_with_the_plain_one(case: dict[str, Any]) -> None:
    dag = Dag.of(case["n"], case["edges"])
    lags = dict(zip(case["edges"], case["lags"], strict=True))
    after = np.repeat(np.arange(case["n"]), np.diff(dag.indptr))
    delay = [lags[int(p), int(v)] for p, v in zip(dag.indices, after, strict=True)]
    _, ends = run(dag, case["device"], case["seconds"], case["priority"], delay)
    plain = [(a, b, lag) for (a, b), lag in lags.items()]
    assert ends.tolist() == play(plain, case["device"], case["seconds"], case["priority"])


@given(graphs())
def test_with_a_device_each_it_is_the_longest_path(case: dict[str, Any]) -> None:
    dag = Dag.of(case["n"], case["edges"])
    starts, ends = run(dag, list(range(case["n"])), case["seconds"])
    assert (ends == dag.ends(np.array(case["seconds"]))).all()
    assert (starts == dag.starts(ends)).all()
