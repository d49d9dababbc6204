"""A small encoder and language model on real processes and two grids train as they do in one process."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

pytest.importorskip("torch")

from assay.training.hetpar import training_job
from assay.training.hetpar.boundary import between, side
from assay.training.hetpar.mimo import WIDTH

STEPS = 2
PAIRS = {
    "fan in, cut layers meet cut layers": (side("tp2 dp2"), side("tp4")),
    "zig-zag context": (side("dp4"), side("tp2 cp2", zigzag=True)),
    "sequence parallelism": (side("tp2 dp2"), side("tp2 cp2", tp="tokens")),
    "fan out of a cut encoder": (side("tp2 cp2", tp="tokens"), side("dp4")),
    "apart, cut on either side": (side("tp2"), side("tp2", first=2)),
    "apart, three to one": (side("dp3"), side("dp1", first=3)),
}


@cache
def outcomes() -> tuple[Any, list[Any]]:
    ((one,),) = training_job.run(1, [training_job.ONE], STEPS, seed=0)
    return one, training_job.run(4, list(PAIRS.values()), STEPS, seed=0)


@pytest.mark.parametrize("case", list(PAIRS))
def test_losses_and_weights_after_two_steps_are_those_of_one_process(case: str) -> None:
    one, every = outcomes()
    found = every[list(PAIRS).index(case)]
    for rank in found:
        assert rank["losses"] == pytest.approx(one["losses"], abs=1e-5)
    assert training_job.apart(found, PAIRS[case], one) <= 1e-5
    assert one["losses"][1] < one["losses"][0] - 0.1  # it learns: there was something to get wrong


@pytest.mark.parametrize("case", list(PAIRS))
def test_the_bytes_on_the_wires_are_those_of_the_plan(case: str) -> None:
    _, every = outcomes()
    borders = [between(*PAIRS[case], training_job.drawn(k), WIDTH) for k in range(training_job.MICROBATCHES)]
    planned = sum(4 * (border.forward + border.backward) for border in borders)
    sent = sum(rank["sent"] for rank in every[list(PAIRS).index(case)])
    assert sent == STEPS * planned
