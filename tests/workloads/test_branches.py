from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.workloads.branches import Answer, Branching, branching, generate
from assay.workloads.requests import Requests


@given(st.floats(0.0, 1.0), st.integers(0, 50), st.integers(2, 16))
def test_every_request_starts_serially_and_widths_stay_in_range(share: float, seed: int, widest: int) -> None:
    trace = generate(30, rate=2.0, share=share, seed=seed, answer=Answer(width=(2, widest)))
    assert (trace.widths[trace.stages[:-1]] == 1).all()
    assert trace.widths.max() <= widest
    assert trace.length.min() >= 1
    assert trace.tokens.sum() == trace.length.sum()
    assert (np.diff(trace.arrival) >= 0).all()


def test_the_same_seed_gives_the_same_trace_and_a_larger_share_only_turns_more_requests() -> None:
    some, more, again = (generate(200, 2.0, share, seed=1) for share in (0.2, 0.7, 0.2))
    assert np.array_equal(some.length, again.length)
    assert np.array_equal(some.arrival, more.arrival)
    assert (more.branching | ~some.branching).all()
    both = some.branching & more.branching
    assert np.array_equal(some.tokens[both], more.tokens[both])
    assert abs(more.branching.mean() - 0.7) < 0.1


def test_lengths_are_lognormal_around_their_median() -> None:
    answer = Answer(branch=200.0, branch_spread=0.5)
    trace = generate(2000, 2.0, 1.0, seed=0, answer=answer)
    parallel = np.repeat(trace.widths > 1, trace.widths)
    assert np.median(trace.length[parallel]) == pytest.approx(200, rel=0.05)
    assert np.log(trace.length[parallel]).std() == pytest.approx(0.5, rel=0.05)


def test_a_trace_keeps_its_arrivals_prompts_and_serial_outputs() -> None:
    plain = Requests.of([0.0, 1.0, 4.0], [10, 20, 30], [5, 6, 7])
    trace = branching(plain, 0.0, seed=0)
    assert trace.tokens.tolist() == [5, 6, 7]
    assert trace.prompt.tolist() == [10, 20, 30]
    assert not trace.branching.any()
    assert trace.at(3.0).rate == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (([0.0], [10], [[[3, 4]]]), "starts with a parallel stage"),
        (([0.0], [0], [[[3]]]), "no prompt token"),
        (([1.0, 0.0], [1, 1], [[[3]], [[3]]]), "sorted"),
        (([0.0], [1], [[[3], [0, 2]]]), "every branch a token"),
        (([0.0], [1], [[]]), "no stage"),
        (([0.0], [1, 2], [[[1]]]), "one length"),
    ],
)
def test_what_cannot_be_a_request_is_refused(rows: tuple[list[float], list[int], list[list[list[int]]]], message: str) -> None:  # fmt: skip  # noqa: E501
    with pytest.raises(ValueError, match=message):
        Branching.of(*rows)


def test_bad_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"width is 0\.\.4"):
        Answer(width=(0, 4))
    with pytest.raises(ValueError, match=r"share is 1\.5"):
        generate(3, 1.0, 1.5, seed=0)
