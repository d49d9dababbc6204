"""The lattice of configurations: its laws, and its rules against every small execution."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.protocols.judges import lattice
from assay.protocols.judges.lattice import NAMED, STRONGER, Configuration, Ordering
from assay.protocols.lcc import executions
from assay.protocols.lcc.placement import JUDGED

CONFIGURATIONS = lattice.configurations(realtime=True)
configurations = st.sampled_from(CONFIGURATIONS)


class TestTheLaws:
    @settings(max_examples=300, deadline=None)
    @given(configurations, configurations, configurations)
    def test_it_is_an_order(self, a: Configuration, b: Configuration, c: Configuration) -> None:
        assert lattice.le(a, a)
        if lattice.le(a, b) and lattice.le(b, a):
            assert a.demands == b.demands
        if lattice.le(a, b) and lattice.le(b, c):
            assert lattice.le(a, c)

    @settings(max_examples=300, deadline=None)
    @given(configurations, configurations, configurations)
    def test_meet_is_the_greatest_below_and_join_the_least_above(
        self, a: Configuration, b: Configuration, c: Configuration
    ) -> None:
        low, high = lattice.meet(a, b), lattice.join(a, b)
        assert lattice.le(low, a)
        assert lattice.le(low, b)
        assert lattice.le(a, high)
        assert lattice.le(b, high)
        if lattice.le(c, a) and lattice.le(c, b):
            assert lattice.le(c, low)
        if lattice.le(a, c) and lattice.le(b, c):
            assert lattice.le(high, c)

    @settings(max_examples=200, deadline=None)
    @given(configurations, configurations)
    def test_meet_and_join_are_points_of_the_lattice(self, a: Configuration, b: Configuration) -> None:
        assert lattice.close(lattice.meet(a, b)) == lattice.meet(a, b)
        assert lattice.close(lattice.join(a, b)) == lattice.join(a, b)

    def test_the_diagram_has_the_order_of_its_points_and_no_edge_too_many(self) -> None:
        points = {one.demands for one in NAMED.values()}
        reach = {one: {one} for one in points}
        edges = lattice.hasse(points)
        for _ in points:
            for low, high in edges:
                reach[low] |= reach[high]
        assert all((high in reach[low]) == (low <= high) for low in points for high in points)
        for low, high in edges:
            assert not any(low < middle < high for middle in points)

    def test_what_is_written_wrong_is_refused_with_what_would_be_right(self) -> None:
        with pytest.raises(ValueError, match="no relation 'everything'; one of own"):
            Configuration(frozenset({"everything"}))
        with pytest.raises(ValueError, match="no agreement 'most'"):
            Ordering("most")
        with pytest.raises(ValueError, match="no refinement 'time'"):
            Ordering("local", "time")
        with pytest.raises(ValueError, match="cannot refine"):
            Ordering("trivial", "object")
        with pytest.raises(ValueError, match="real time needs a single order"):
            Ordering("total", "causality", realtime=True)


class TestTheNamedModels:
    def test_the_judges_ladder_is_part_of_the_order(self) -> None:
        for model, below in STRONGER.items():
            for weaker in below:
                assert lattice.le(JUDGED[weaker], JUDGED[model]), (weaker, model)

    def test_causal_memory_and_causal_convergence_are_incomparable(self) -> None:
        memory, convergent = NAMED["causal-memory"], NAMED["causal-convergent"]
        assert not lattice.le(memory, convergent)
        assert not lattice.le(convergent, memory)

    def test_all_named_models_lie_at_different_points(self) -> None:
        assert len({one.demands for one in NAMED.values()}) == len(NAMED)

    def test_the_four_session_guarantees_together_are_causal(self) -> None:
        four = ("read-your-writes", "monotonic-reads", "monotonic-writes", "writes-follow-reads")
        assert lattice.join(*(NAMED[name] for name in four)) == NAMED["causal"].demands

    def test_only_linearizability_asks_for_real_time(self) -> None:
        assert [name for name, one in NAMED.items() if "realtime" in one.demands] == ["linearizable"]


class TestAgainstAllExecutions:
    def test_the_rules_agree_with_all_executions_of_four_events_on_every_pair(self) -> None:
        counted = executions.census(4)
        assert counted.disagreements == 0
        assert counted.pairs == len(lattice.configurations()) ** 2

    @pytest.mark.slow
    def test_five_events_change_nothing(self) -> None:
        counted = executions.census(5)
        assert (counted.executions, counted.disagreements) == (58582, 0)

    def test_the_order_splits_by_axis_exactly_where_the_ordering_inverts_every_part_of_causality(self) -> None:
        counted = executions.census(4)
        assert {name: not refines for name, refines in counted.refines.items()} == counted.split
        assert {name for name, split in counted.split.items() if split} == {"trivial", "local", "per-object", "total"}

    @pytest.mark.parametrize("rule", range(len(lattice.RULES)))
    def test_no_rule_can_be_spared(self, rule: int, monkeypatch: pytest.MonkeyPatch) -> None:
        given, then = lattice.RULES[rule]
        if "realtime" in given:  # no execution has a clock
            assert then >= {"single", "refines-causality"}
            return
        rest = lattice.RULES[:rule] + lattice.RULES[rule + 1 :]
        _, found = executions.signatures(4)
        closed = lattice.close(given, rest)
        forced = frozenset.intersection(*(has for has in found if given <= has))
        assert then <= forced
        assert not then <= closed
