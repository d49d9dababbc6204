"""Graphs of sections, where they are cut, how many GPUs helpers get, and `assay compare maestro` on a user's graph."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from assay.cli.compare import command
from assay.record.errors import BadInput
from assay.sim.models import model
from assay.training import maestro
from assay.training.engine.cluster import read as read_cluster
from assay.training.engine.costs import USABLE
from assay.training.maestro import pace
from assay.training.maestro.graph import Node, connected, edge, read
from assay.training.maestro.wavefront import ORDERS

EXAMPLE = Path(__file__).parents[3] / "examples" / "sections.toml"


@cache
def steps(setting: str) -> dict[str, dict[str, Any]]:
    return maestro.steps(setting, "h100", 0)


def test_hidden_states_carry_less_than_logits_by_vocabulary_over_width() -> None:
    cut = edge(Node("teacher", maestro.MIXTURE, trained=False), Node("student", model("qwen3-32b")))
    assert cut.moved
    assert cut.logits / cut.nbytes == maestro.MIXTURE.vocab / maestro.MIXTURE.hidden == pytest.approx(60.6, abs=0.1)


def test_sections_get_more_of_a_gpu_than_one_layout_where_an_encoder_goes_before() -> None:
    assert 1.1 < steps("vlm-80b")["wavefront"]["per_gpu"] < 1.5


def test_in_a_distillation_orders_do_not_tie() -> None:
    """Texts packed to one length were alike: four orders took the same seconds, in every seed."""
    found = steps("distillation-8b")
    assert len({round(found[order]["seconds"], 6) for order in ORDERS}) > 2
    assert found["arrival"]["seconds"] > 1.2 * found["wavefront"]["seconds"]


def test_one_layout_gets_its_samples_in_the_better_order() -> None:
    graph, on = maestro.job("distillation-8b"), maestro._cluster("distillation-8b", "h100")
    samples = maestro.drawn("distillation-8b", graph.batch, 0)
    choices = maestro.single_layouts("distillation-8b", "h100")
    longest = samples[np.argsort(-samples.tokens, kind="stable")]
    as_given, sorted_before = (pace.uniform(graph, on, each, choices).seconds for each in (samples, longest))
    assert as_given == sorted_before < min(pace._solved(graph, on, samples, each).seconds for each in choices[:20])


def test_in_wavefront_order_the_critical_section_hardly_waits_and_a_step_is_shorter_than_as_samples_come() -> None:
    found = steps("vlm-80b")
    assert found["wavefront"]["idle"] < 0.01 * found["wavefront"]["seconds"]
    assert found["arrival"]["seconds"] > 1.05 * found["wavefront"]["seconds"]


def test_a_helper_gets_the_fewest_gpus_that_keep_up_in_the_mean_with_something_to_spare() -> None:
    plan = maestro.plan_of("vlm-80b", "h100")
    (eyes,) = plan.placed
    rate = plan.graph.batch / steps("vlm-80b")["wavefront"]["seconds"]
    assert eyes.rate >= rate
    fewer = replace(plan.graph.auxiliary[0], ranks=eyes.ranks - 1)
    slower = pace.keeping_up(fewer, plan.graph, plan.on, maestro._profile("vlm-80b"), rate)
    assert pace.SPARE * slower.rate < 1.02 * rate


def test_everything_fits_into_memory() -> None:
    plan = maestro.plan_of("vlm-80b", "h100")
    assert plan.memory <= USABLE * plan.on.device.mem_bytes


def test_samples_stay_in_their_batch_and_copies_get_equally_many() -> None:
    work = np.random.default_rng(0).exponential(1.0, (64, 2))
    for even in (False, True):
        places = pace.dealt(work, 8, even=even)
        assert sorted(places.ravel().tolist()) == list(range(64))
        assert places.shape == (8, 8)
    loads = [work[pace.dealt(work, 8, even=even)].sum(axis=(1, 2)) for even in (False, True)]
    assert np.ptp(loads[1]) < 0.5 * np.ptp(loads[0])


def test_the_users_own_graph_is_compared() -> None:
    found = CliRunner().invoke(command, ["maestro", "--graph", str(EXAMPLE), "--json"])
    assert found.exit_code == 0, found.output
    answer = json.loads(found.stdout)
    assert {row["system"] for row in answer["table"]} == {"one layout", *pace.ORDERS}
    teacher, eyes = answer["sections"]
    assert (teacher["output_layer"], eyes["output_layer"]) == ("moves to student", "stays")
    assert teacher["logits"] / teacher["bytes"] == pytest.approx(151936 / 5120)
    assert "In wavefront order a step takes" in answer["why"]


TEACHER = '[[section]]\nname = "t"\nmodel = "qwen3-8b"\nmode = "forward"\nfeeds = ["s"]\n'
STUDENT = '[[section]]\nname = "s"\nmodel = "qwen3-0.6b"\nranks = 8\ncritical = true\n'


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("batch = ", "not TOML"),
        ("batch = 4", "no sections"),
        (STUDENT + TEACHER + "[extra]\n", "unknown field 'extra'"),
        (STUDENT + TEACHER.replace("forward", "sideways"), "mode 'sideways'; train or forward expected"),
        (STUDENT + TEACHER.replace('"t"', '"s"'), "section 's' is there twice"),
        (STUDENT + TEACHER.replace('["s"]', '["x"]'), "feeds 'x', which is not there"),
        (STUDENT + TEACHER.replace('feeds = ["s"]', ""), "section 't' feeds nobody"),
        (STUDENT.replace("critical = true", 'feeds = ["t"]') + TEACHER, "0 sections are critical"),
        (STUDENT + TEACHER.replace('"s"', '"u"') + TEACHER.replace('"t"', '"u"').replace('"s"', '"t"'), "in a circle"),
        (STUDENT + 'feeds = ["t"]\n' + TEACHER, "it should be the last"),
        (STUDENT.replace("qwen3-0.6b", "qwen9"), "unknown model 'qwen9'"),
        (STUDENT.replace("ranks = 8", "ranks = -1"), "ranks is -1"),
        ("batch = 0\n" + STUDENT, "batch is 0"),
        (STUDENT.replace("ranks = 8", 'vision = "clip-vit-l"'), "give either model or vision"),
    ],
)  # fmt: skip
def test_a_graph_that_cannot_be_gets_one_line(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "graph.toml"
    path.write_text(content)
    with pytest.raises(BadInput) as caught:
        read(path)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value) or "unknown model" in says


def test_a_section_that_fits_nowhere_is_told() -> None:
    graph = connected([Node("s", maestro.MIXTURE, critical=True, ranks=8)], batch=8)
    with pytest.raises(BadInput, match="does not fit on 8 ranks"):
        pace.planned(graph, read_cluster("8xh100"), pace.packed(64, 4096, 0))
