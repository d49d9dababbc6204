"""Two real processes with samples put off train as one process does."""

from __future__ import annotations

from collections import Counter

import pytest

pytest.importorskip("torch")

from assay.training.entrain import live


def test_gradients_and_weights_are_those_of_one_process_and_every_sample_runs_once() -> None:
    found = live.same(seed=0)
    assert found["apart"] < 1e-12
    assert found["moved"] > 0
    encoder, language = found["events"]
    for step, deal in enumerate(found["deals"]):
        everyone = set(range(len(deal.encoder)))
        mine = [(what, sample) for at, what, sample in encoder if at == step]
        trained = [sample for at, _, sample in language if at == step]
        assert sorted(trained) == sorted(everyone)
        for kind in ("encoded", "gone backward"):
            assert Counter(sample for what, sample in mine if what == kind) == Counter(everyone)
        for sample in everyone:
            assert mine.index(("encoded", sample)) < mine.index(("gone backward", sample))
