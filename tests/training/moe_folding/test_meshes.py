"""Two meshes over the same ranks: groups as Megatron-core forms them, costs that follow from where they lie."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.record.errors import BadInput
from assay.sim.models import model
from assay.training.engine.cluster import Nccl, read
from assay.training.engine.costs import check, stage_costs
from assay.training.engine.search import divisors, layouts
from assay.training.interface import Job, Layout, Plan
from tests.oracles import meshes

SIZES = st.sampled_from([1, 2, 3, 4])
DENSE = (("tp",), ("cp",), ("dp",), ("pp",), ("cp", "dp"), ("tp", "cp"), ("tp", "cp", "dp"), ("tp", "pp"))
SPARSE = (("etp",), ("ep",), ("edp",), ("pp",), ("etp", "ep"), ("etp", "ep", "pp"))


@st.composite
def folded(draw: st.DrawFn) -> Layout:
    """Any two meshes over the same ranks."""
    tp, cp, dp, pp = (draw(SIZES) for _ in range(4))
    etp = draw(st.sampled_from(divisors(tp * cp * dp, 64)))
    ep = draw(st.sampled_from(divisors(tp * cp * dp // etp, 64)))
    return Layout(tp, cp, pp, dp, ep, etp=etp)


@given(folded())
def test_groups_are_those_of_megatron_core(layout: Layout) -> None:
    """Innermost first, pipeline outermost; checked besides against RankGenerator of megatron-core 0.14 itself."""
    for names in DENSE:
        want = meshes.groups({"tp": layout.tp, "cp": layout.cp, "dp": layout.dp, "pp": layout.pp}, *names)
        assert layout.attention.groups(*names).tolist() == want
    mesh = {"etp": layout.etp, "ep": layout.ep, "edp": layout.edp, "pp": layout.pp}
    for names in SPARSE:
        assert layout.experts.groups(*names).tolist() == meshes.groups(mesh, *names)


@given(folded())
def test_both_meshes_have_the_same_stages(layout: Layout) -> None:
    assert layout.attention.ranks == layout.experts.ranks == layout.ranks
    assert layout.attention.groups("pp").tolist() == layout.experts.groups("pp").tolist()


def test_without_folding_experts_follow_attention() -> None:
    """Experts are dealt to data-parallel ranks, each slice of a sequence has its own copies."""
    layout = Layout(tp=2, cp=2, dp=4, ep=2, etp=2, ecp=2)
    assert not layout.folded
    assert layout.experts.groups("etp").tolist() == layout.attention.groups("tp").tolist()
    dealt = {tuple(group) for group in layout.attention.groups("dp").tolist()}
    assert all(any(set(group) <= set(whole) for whole in dealt) for group in layout.experts.groups("ep").tolist())
    assert replace(layout, ecp=1).folded
    assert replace(layout, etp=1).folded


def test_expert_gradients_are_reduced_over_other_ranks_than_those_of_attention() -> None:
    layout = Layout(tp=2, dp=8, ep=8)
    assert layout.attention.groups("cp", "dp").shape == (2, 8)
    assert layout.experts.groups("ecp", "edp").tolist() == [[rank, rank + 8] for rank in range(8)]
    shape, cluster, job = model("mixtral-8x22b"), read("16xh100"), Job(16, 4096)
    folded, apart = (stage_costs(shape, cluster, Plan(cut), job) for cut in (layout, replace(layout, ep=2)))
    assert folded.reduce.sum() < apart.reduce.sum()  # an eighth of the experts a rank, and one copy elsewhere


def test_near_experts_exchange_faster_than_far_ones() -> None:
    """Eight ranks of one node, or eight ranks of eight nodes; as many experts a rank, as many copies."""
    shape, job = model("qwen2-57b-a14b"), Job(64, 32_768)
    near, far = Layout(cp=8, dp=8, ep=8), Layout(cp=8, dp=8, ep=8, ecp=8)
    for collectives in (None, Nccl.of(read("64xh100"))):
        cluster = replace(read("64xh100"), collectives=collectives)
        seconds = [stage_costs(shape, cluster, Plan(cut), job).wires_forward.sum() for cut in (near, far)]
        assert seconds[0] < 0.5 * seconds[1]


def test_slices_of_experts_are_gathered_and_hold_less() -> None:
    shape, cluster, job = model("mixtral-8x22b"), read("8xh100"), Job(8, 4096)
    whole, cut = (stage_costs(shape, cluster, Plan(Layout(dp=8, ep=2, etp=etp)), job) for etp in (1, 2))
    assert cut.gradient_bytes.sum() == pytest.approx(0.5 * whole.gradient_bytes.sum(), rel=0.1)  # but for attention
    assert cut.wires_forward.sum() > whole.wires_forward.sum()
    assert cut.forward.sum() == pytest.approx(whole.forward.sum(), rel=0.1)  # twice the rows, half as wide


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        (Layout(dp=8, ep=8, etp=2), "etp2 should divide"),
        (Layout(dp=8, etp=3), "etp3 should divide"),
        (Layout(dp=8, ep=2, ecp=2), "ecp2 with etp1"),
        (Layout(dp=8, etp=0), "etp is 0"),
    ],
)
def test_meshes_that_cannot_be_say_why(layout: Layout, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        check(model("mixtral-8x22b"), read("8xh100"), Plan(layout), Job(8, 4096))


def test_a_model_without_experts_has_one_mesh() -> None:
    with pytest.raises(BadInput, match="has no experts"):
        check(model("llama-3-8b"), read("8xh100"), Plan(Layout(dp=8, etp=2)), Job(8, 4096))
    assert all(cut.etp == cut.ecp == 1 for cut in layouts(model("llama-3-8b"), read("8xh100"), Job(8, 16_384)))


def test_the_search_has_folded_layouts_and_such_as_follow_attention() -> None:
    found = list(layouts(model("mixtral-8x22b"), read("16xh100"), Job(16, 16_384)))
    assert len(set(found)) == len(found)
    assert Layout(tp=2, cp=2, dp=4, ep=8) in found
    assert Layout(tp=2, cp=2, dp=4, ep=4, etp=2, ecp=2) in found
    assert Layout(tp=1, dp=16, ep=8, etp=2) in found
    for cut in found:
        check(model("mixtral-8x22b"), read("16xh100"), Plan(cut), Job(16, 16_384))
        assert np.prod([size for _, size in cut.experts.axes]) == 16
