"""Small executions: that all are there, and that each has the properties it shows."""

from __future__ import annotations

import pytest

from assay.protocols.judges import lattice
from assay.protocols.lcc import executions
from assay.protocols.lcc.definitions import DEFINITIONS
from assay.protocols.lcc.executions import Execution, Shape, signature


def execution(process: str, objects: str, views: list[str], orders: list[str | None]) -> Execution:
    """Events as strings: process digits, object digits (- for a look), views and orders as digits of events."""
    shape = Shape(tuple(map(int, process)), tuple(None if one == "-" else int(one) for one in objects))
    masks = tuple(sum(1 << int(event) for event in view) for view in views)
    past = executions._past(shape, masks)
    assert past is not None
    told = tuple(None if order is None else tuple(map(int, order)) for order in orders)
    return Execution(shape, masks, past, told)


class TestWhatAnExecutionShows:
    def test_a_look_that_misses_its_own_write_breaks_own_only(self) -> None:
        found = signature(execution("00", "0-", [""], [""]))
        assert "own" not in found
        assert {"mono", "mw", "wfr", "object", "single"} <= found

    def test_a_look_that_forgets_breaks_mono(self) -> None:
        found = signature(execution("002", "--0", ["2", ""], ["2", ""]))
        assert "mono" not in found
        assert "appends" not in found

    def test_an_effect_without_its_cause_breaks_wfr_and_no_order_mends_it(self) -> None:
        # process 0 looks at the silent writer's write and writes; process 1 sees the second write only
        found = signature(execution("0012", "-1-0", ["3", "1"], ["3", "1"]))
        assert "wfr" not in found
        assert "refines-causality" not in found
        assert "total" in found

    def test_opposite_orders_break_agreement_but_stay_local(self) -> None:
        found = signature(execution("0122", "--00", ["23", "23"], ["23", "32"]))
        assert "local" in found
        assert "per-object" not in found

    def test_on_different_objects_opposite_orders_still_agree_per_object(self) -> None:
        found = signature(execution("0122", "--01", ["23", "23"], ["23", "32"]))
        assert "per-object" in found
        assert "total" not in found

    def test_without_an_order_there_is_no_ordering_at_all(self) -> None:
        found = signature(execution("022", "-00", ["12"], [None]))
        assert not found & {"local", "total", "single", "appends", "refines-object"}

    def test_nothing_happens_before_itself(self) -> None:
        shape = Shape((0, 0, 1, 1), (None, 0, None, 0))  # each looks, then writes; each would see the other's write
        assert executions._past(shape, (0b1000, 0b0010)) is None


class TestTheEnumeration:
    def test_shapes_are_all_there_up_to_names(self) -> None:
        found = list(executions.shapes(3))
        assert len(found) == len(set(found))
        assert all(shape.looks and shape.writes for shape in found)
        assert Shape((0, 1, 2), (None, None, 0)) in found
        assert Shape((0, 0, 2), (0, None, 1)) in found

    def test_two_events_make_the_four_executions_that_one_can_write_down(self) -> None:
        # a process writes and looks (sees it or not); it looks and writes; a look at another's write (seen or not)
        kinds = [(one.shape.process, one.shape.objects, one.views) for one in executions.executions(2)]
        assert kinds.count(((0, 0), (0, None), (0,))) == 1
        assert kinds.count(((0, 0), (0, None), (1,))) == 1
        assert kinds.count(((0, 0), (None, 0), (0,))) == 1
        assert not any(shape == (0, 0) and objects == (None, 0) and views == (2,) for shape, objects, views in kinds)


class TestTheDefinitions:
    @pytest.mark.parametrize("model", list(DEFINITIONS))
    def test_a_model_is_its_coordinates_on_every_execution_of_up_to_four_events(self, model: str) -> None:
        demands = lattice.NAMED[model].demands
        held = 0
        for size in (2, 3, 4):
            for one in executions.executions(size):
                holds = DEFINITIONS[model](one)
                held += holds
                assert holds == (demands <= signature(one)), one
        assert held > 0

    def test_every_named_model_but_the_one_with_a_clock_is_defined(self) -> None:
        assert set(lattice.NAMED) - set(DEFINITIONS) == {"linearizable"}
