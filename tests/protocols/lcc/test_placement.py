"""Placing a history, and what a store can know by what it keeps."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.protocols.judges import lattice
from assay.protocols.judges.lattice import judge
from assay.protocols.lcc import placement
from assay.protocols.lcc.placement import JUDGED, place
from assay.protocols.nodes.stores import Write
from assay.workloads import planted_histories as planted
from assay.workloads.histories import Operation


class TestPlacing:
    @pytest.mark.parametrize("name", list(planted.PLANTS))
    def test_a_planted_anomaly_breaks_exactly_what_the_lattice_puts_above_it(self, name: str) -> None:
        history, _ = planted.plant(planted.registers(40, seed=3), name, seed=3)
        found = place(history)
        assert not found.unknown
        broken = planted.PLANTS[name].breaks
        above = {m for m in JUDGED if any(lattice.le(JUDGED[one], JUDGED[m]) for one in broken)}
        assert found.holds == set(JUDGED) - above
        assert {judgement.model for judgement in found.broken} <= above

    def test_a_clean_history_is_at_the_top(self) -> None:
        found = place(planted.registers(60, seed=1))
        assert list(found.strongest) == ["linearizable"]
        assert found.broken == ()

    def test_the_strongest_are_not_below_one_another(self) -> None:
        history, _ = planted.plant(planted.registers(30, seed=2), "back-and-forth", seed=2)
        chosen = list(place(history).strongest.values())
        assert not any(lattice.le(a, b) for a in chosen for b in chosen if a is not b)

    def test_real_time_is_told_by_intervals_and_by_nothing_that_a_process_sees(self) -> None:
        before = Operation(0, "write", "x", 1, None, 0.0, 1.0)
        late, early = (Operation(1, "read", "x", None, None, at, at + 1) for at in (5.0, 0.5))
        assert judge([before, late], "linearizable").verdict == "violated"
        assert judge([before, early], "linearizable").verdict == "holds"
        for model in set(JUDGED) - {"linearizable"}:
            assert judge([before, late], model).verdict == judge([before, early], model).verdict == "holds"

    @pytest.mark.slow
    def test_a_hundred_thousand_operations_are_placed(self) -> None:
        history, _ = planted.plant(planted.registers(100_000, keys=16, seed=1), "divergence", seed=1)
        assert "causal-memory" in place(history).strongest


@st.composite
def writes(draw: st.DrawFn) -> list[Write]:
    """Writes of three replicas, each of which had seen a growing part of the others', with clocks gone wrong."""
    counts = [0, 0, 0]
    seen = [[0, 0, 0] for _ in range(3)]
    made: list[Write] = []
    for at in range(draw(st.integers(1, 12))):
        who = draw(st.integers(0, 2))
        for other in range(3):
            seen[who][other] = draw(st.integers(seen[who][other], counts[other]))
        for write in made:  # what it has seen, it has seen with its causes
            if write.id[1] <= seen[who][write.id[0]] and write.deps is not None:
                seen[who] = [max(a, b) for a, b in zip(seen[who], write.deps, strict=True)]
        counts[who] += 1
        seen[who][who] = counts[who] - 1
        name, clock = (who, counts[who]), draw(st.floats(0, 100))
        made.append(Write(name, draw(st.sampled_from("xy")), at, tuple(seen[who]), at + 1, clock))
        seen[who][who] = counts[who]
    return made


class TestWhatAStoreKeeps:
    @settings(max_examples=150, deadline=None)
    @given(writes(), st.sampled_from(placement.KEEPS))
    def test_what_it_can_prove_is_true_and_could_have_been_prevented(self, made: list[Write], keeps: str) -> None:
        truth = placement.inverted(made, placement.stamps(made))
        proved = placement.detected(made, keeps)
        assert proved <= truth
        assert proved <= placement.prevented(made, keeps)

    @settings(max_examples=100, deadline=None)
    @given(writes())
    def test_who_keeps_everything_proves_and_prevents_everything(self, made: list[Write]) -> None:
        truth = placement.inverted(made, placement.stamps(made))
        assert placement.detected(made, "causes") == placement.prevented(made, "causes") == truth

    @settings(max_examples=50, deadline=None)
    @given(writes())
    def test_who_keeps_nothing_knows_nothing(self, made: list[Write]) -> None:
        assert not placement.detected(made, "nothing")
        assert not placement.prevented(made, "nothing")

    def test_an_unknown_kind_is_refused(self) -> None:
        with pytest.raises(ValueError, match="no kind of metadata 'some'"):
            placement.edges([], "some")
