"""What the model says of grids of their own beside one layout, and `assay compare hetpar` on the user's two grids."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner

from assay.cli.compare import command
from assay.sim.encoders import vision
from assay.training import hetpar
from assay.training.engine.costs import USABLE
from assay.training.hetpar import pace
from assay.training.interface import Layout


def flops(pair: str, context: int, kind: str, **shares: float) -> float:
    work, on = hetpar.workload(pair, context)
    on = replace(on, efficiency=replace(on.efficiency, **shares))
    found = pace.fastest(work, on, kind, on.ranks, work.images(0))
    assert found is not None
    assert found.fits
    return found.flops


def over_single(pair: str, context: int, kind: str) -> float:
    return flops(pair, context, kind) / max(flops(pair, context, one) for one in hetpar.SINGLE)


def test_on_shared_gpus_a_grid_of_its_own_ties_with_the_best_single_layout_of_a_small_encoder() -> None:
    """With the shares that were measured of the chip it is half a percent ahead at 128 K, and behind at 4 K."""
    assert over_single("small", 4096, "colocated") == pytest.approx(1.0, abs=0.02)
    assert 1.0 < over_single("small", 131072, "colocated") < 1.02
    assert flops("small", 131072, "colocated") > 1.03 * flops("small", 131072, "one layout")


def test_how_far_a_grid_of_its_own_is_ahead_of_one_layout_hangs_on_what_the_chip_attains() -> None:
    """5 % with the shares of products and attention that were assumed before any were measured; 4 % with those."""
    often_assumed = {"matrix": 0.83, "attention": 0.55}
    one, own = (flops("small", 131072, kind, **often_assumed) for kind in ("one layout", "colocated"))
    assert own > 1.05 * one


def test_gpus_of_its_own_suit_a_large_encoder_only() -> None:
    assert over_single("small", 131072, "separate") < 1
    assert over_single("large", 32768, "separate") > 1.05


def test_closed_forms_rank_as_the_engines_graph_does() -> None:
    work, on = hetpar.workload("small", 131072)
    for kind in pace.KINDS:
        for choice in pace.best(work, on, kind, on.ranks)[:2]:
            step, memory = pace.search_of(work, on).rough(choice)
            solved = pace.measure(work, on, choice, work.images())
            assert solved.step == pytest.approx(step, rel=0.05)
            assert solved.memory == pytest.approx(memory, rel=0.05)


def test_a_layout_that_does_not_fit_is_no_answer() -> None:
    work, on = hetpar.workload("small", 131072)
    roomy = pace.best(work, on, "colocated", on.ranks)
    half = replace(on, device=replace(on.device, mem_bytes=on.device.mem_bytes / 2))
    for choice in pace.best(work, half, "colocated", on.ranks):
        assert pace.measure(work, half, choice, work.images()).memory <= USABLE * half.device.mem_bytes
    assert not pace.measure(work, half, roomy[0], work.images()).fits


def test_on_shared_gpus_the_activations_of_all_images_wait_for_the_language_model_unless_they_are_recomputed() -> None:
    work, on = hetpar.workload("small", 32768)
    of = {
        how: pace.Choice("colocated", Layout(cp=8, dp=4), Layout(dp=32), 1, "none", how) for how in ("none", pace.WHOLE)
    }
    kept, again = (pace.measure(work, on, choice, work.images()) for choice in of.values())
    images, layers, width = work.images().sum() / 32, 24, 1024
    least = (images - pace.CHUNK) * 576 * layers * 8 * width * 2  # at least eight vectors of every layer and token
    assert kept.memory - again.memory > least
    assert again.step > kept.step


def test_copies_that_share_an_encoder_wait_for_all_of_its_images() -> None:
    work, on = hetpar.workload("small", 32768)
    took = []
    for dp in (4, 8, 16):
        choice = pace.Choice("separate", Layout(cp=3, dp=8), Layout(dp=dp), 1, "full", "full")
        took.append(pace.measure(work, on, choice, work.images()).encoder)
    assert took[0] > 1.8 * took[1] > 1.8**2 * took[2]


def test_the_users_two_grids_stand_beside_the_best_of_every_kind() -> None:
    answer = ask("--encoder", "dp8", "--llm", "tp2 cp4", "--context", "32768")
    assert {row["kind"] for row in answer["table"]} == {"yours", "one layout", "images cut", "colocated"}
    assert answer["boundary"]["forward"] < answer["boundary"]["gathered"] / 7
    assert "Your grids take" in answer["why"]
    assert "model" in answer["trust"]
    apart = ask("--encoder", "dp8", "--llm", "tp2 cp4", "--apart")
    assert "separate" in {row["kind"] for row in apart["table"]}


def ask(*options: str) -> dict[str, Any]:
    found = CliRunner().invoke(command, ["hetpar", *options, "--json"])
    assert found.exit_code == 0, found.output
    answer: dict[str, Any] = json.loads(found.stdout)
    return answer


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--encoder", "dp8", "--llm", "tp4"], "on the same GPUs they are equally many"),
        (["--encoder", "dp4 pp2", "--llm", "tp8"], "on shared GPUs an encoder is one stage"),
        (["--encoder", "dp3", "--llm", "dp2", "--apart"], "one should be a multiple of the other"),
        (["--encoder", "tp3", "--llm", "cp3"], "tp3 does not divide 16 heads"),
        (["--encoder", "dp2", "--llm", "pp2 dp"], "'dp' is not understood"),
        (["--encoder", "dp64", "--llm", "pp64"], "pp64 is more than 32 layers"),
        (["--encoder", "dp8", "--llm", "dp8", "--batch", "9"], "--batch 9 is not a multiple of dp8"),
        (["--encoder", "dp8", "--llm", "tp8", "--vision", "clap"], "unknown encoder 'clap'"),
    ],
)
def test_grids_that_cannot_be_get_one_line(options: list[str], says: str) -> None:
    found = CliRunner().invoke(command, ["hetpar", *options])
    assert found.exit_code == 2 or isinstance(found.exception, Exception)
    assert says in (found.output + str(found.exception))


def test_the_large_pair_has_the_size_it_is_named_for() -> None:
    assert hetpar.LARGE.params == pytest.approx(120e9, rel=0.05)
    assert vision("vit-10b").shape.params == pytest.approx(10e9, rel=0.1)
