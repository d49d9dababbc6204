"""Directives: what must wait for what, what compiles, and that the safe version is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.training.cuco.program import Lowered, Stage, Uncompilable, dependences, hazards, host, knobs, lower, safe
from assay.training.cuco.targets import TARGETS
from tests.oracles import slot_races


class Chain:
    """Eight tiles there and nothing else."""

    tiles = 8
    stages = (
        Stage("make", reads=("x",), writes=("y",)),
        Stage("move", reads=("y",), writes=("got",), wire=True),
        Stage("use", reads=("got",)),
    )


@given(st.sampled_from(knobs(Chain)["chunk"]), st.integers(1, 8), st.sampled_from(knobs(Chain)["scope"]))
def test_a_directive_has_a_hazard_if_some_interleaving_reads_a_wrong_chunk(chunk: int, depth: int, scope: str) -> None:
    directive = safe(Chain) | {"chunk": chunk, "depth": depth, "scope": scope}
    chunks = 8 // chunk
    assert bool(hazards(Chain, directive)) == slot_races.races(chunks, min(depth, chunks), scope)


@given(st.fixed_dictionaries({name: st.sampled_from(values) for name, values in knobs(Chain).items()}))
def test_directives_build_one_program_only_where_they_differ_in_what_it_never_looks_at(one: dict[str, Any]) -> None:
    try:
        low = lower(Chain, one)
    except Uncompilable:
        return
    alike = {
        name for name in one for other in knobs(Chain)[name] if other != one[name] and _same(one | {name: other}, low)
    }
    unread = {"order"} if one["placement"] == "after" else set()  # a stage at a time: which is first is the program's
    unread |= {"grain"} if one["chunk"] == 1 else set()
    if one["depth"] >= low.chunks:
        unread |= {"depth"} if sum(depth >= low.chunks for depth in knobs(Chain)["depth"]) > 1 else set()
        unread |= {"scope"} if one["scope"] in ("chunk", "arrival") else set()  # room for all of it is not asked for
    assert alike == unread and bool(hazards(Chain, one)) == bool(hazards(Chain, vars(low)))


def _same(directive: dict[str, object], low: Lowered) -> bool:
    try:
        return lower(Chain, directive) == low
    except Uncompilable:
        return False


@pytest.mark.parametrize("target", TARGETS)
def test_the_fast_path_hands_over_inside_and_leaves_nothing_to_luck(target: str) -> None:
    program = TARGETS[target]()
    found = safe(program)
    assert found["placement"] == "inside" and found["chunk"] < program.tiles
    assert hazards(program, found) == [] == hazards(program, host(program))
    assert lower(program, found).chunks > 1
    assert host(program)["placement"] == "after" and host(program)["chunk"] == program.tiles


def test_dependences_of_two_wires_are_both_found() -> None:
    found = {(one.first, one.then, one.kind) for one in dependences(TARGETS["moe"].stages)}
    assert {("dispatch", "expert", "flow"), ("expert", "combine", "flow"), ("combine", "add", "flow")} <= found
    assert {("expert", "dispatch", "reuse"), ("add", "combine", "reuse")} <= found
    assert not any("own" in one[:2] for one in found)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"chunk": 3}, "none of 8, 4, 2, 1"), ({"depth": True}, "none of"), ({"scope": "some"}, "none of"),
        ({"placement": "after", "chunk": 1, "depth": 2}, "room for fewer"), ({"colour": "red"}, "nothing else"),
    ],
)  # fmt: skip
def test_what_cannot_be_built_says_why(change: dict[str, object], why: str) -> None:
    with pytest.raises(Uncompilable, match=why):
        lower(Chain, safe(Chain) | change)
