"""What the model says of Entrain and its rivals, and how many samples it takes to know the split."""

from __future__ import annotations

import numpy as np
import pytest

from assay.record.errors import BadInput
from assay.training import entrain
from assay.training.entrain.deals import Deal, in_order, together
from assay.training.entrain.steps import fits, split_of, splits_of_draws, step, works
from assay.workloads.multimodal import Samples, draw

SETUP = entrain.job("llama-3.2-1b")


@pytest.fixture(scope="module")
def charts() -> dict[str, entrain.Step]:
    found = entrain.systems(SETUP, draw("synthchartnet", SETUP.batch, 0), draw("synthchartnet", 256, 1))
    return {name: one for name, one in found.items() if one is not None}


def test_work_of_both_kinds_is_several_times_as_even_as_drawn(charts: dict[str, entrain.Step]) -> None:
    ours, drawn = charts["entrain"], charts["in order"]
    assert drawn.sight.std() >= 5 * ours.sight.std()
    assert drawn.words.std() >= 4 * ours.words.std()


def test_language_work_is_five_times_as_even_where_it_alone_is_evened_out() -> None:
    """The specification's factor of five, for sums of work, without regard to the images' backward passes."""
    samples = draw("synthchartnet", SETUP.batch, 0)
    sight, words = works(SETUP, samples)
    deal = entrain.deals.entrain(0 * sight, words, samples.image.astype(float), 4, 32, 1e9)
    drawn = together(in_order(len(samples), 4, 32))
    even, plain = (np.bincount(d.language[:, 0] * 32 + d.language[:, 1], words).std() for d in (deal, drawn))
    assert plain >= 5 * even


def test_a_step_is_shorter_than_in_the_order_drawn_and_than_disttrains(charts: dict[str, entrain.Step]) -> None:
    ours = charts["entrain"].seconds
    assert charts["in order"].seconds > 1.1 * ours
    assert charts["disttrain"].seconds > 1.02 * ours
    assert charts["disttrain"].seconds <= charts["disttrain, one profiled"].seconds
    assert all(fits(SETUP, one) for one in charts.values())
    assert charts["entrain"].deal.moved > 0


def test_where_all_samples_are_alike_nobody_is_faster() -> None:
    alike = Samples(np.full(SETUP.batch, 600), np.full(SETUP.batch, 100))
    found = entrain.systems(SETUP, alike, alike)
    one, other = found["entrain"], found["disttrain"]
    assert one is not None and other is not None
    assert one.deal.moved == 0
    assert other.seconds / one.seconds == pytest.approx(1.0, abs=0.03)


def test_draws_of_256_agree_on_the_split_and_draws_of_4_do_not() -> None:
    many = draw("blend", 100 * 256, 7)
    shares = {}
    for size in (4, 256):
        chosen = splits_of_draws(SETUP, many[: 100 * size], size)
        shares[size] = np.bincount(chosen).max() / len(chosen)
    assert shares[256] >= 0.95 > shares[4]
    assert split_of(SETUP, many) == np.bincount(splits_of_draws(SETUP, many, 256)).argmax()


def test_whole_backward_passes_wait_and_hold_more() -> None:
    samples = draw("blend", SETUP.batch, 0)
    deal = entrain.plan(SETUP, samples)
    halves, whole = (step(SETUP, samples, deal, 5, halves=how) for how in (True, False))
    assert whole.seconds > halves.seconds
    assert whole.memory > halves.memory


def test_what_is_put_off_is_held_until_it_has_gone_backward() -> None:
    samples = draw("chartqa", SETUP.batch, 0)
    places = in_order(len(samples), 4, 32)
    late = places.copy()
    late[(places[:, 1] < 16), 1] += 12
    plain, put_off = step(SETUP, samples, together(places), 5), step(SETUP, samples, Deal(places, late), 5)
    assert put_off.memory > plain.memory


def test_setups_that_cannot_be_are_refused() -> None:
    with pytest.raises(BadInput, match="24 ranks, the cluster has 64"):
        entrain.job("llama-3.2-1b", copies=4, tp=2, stages=3)
