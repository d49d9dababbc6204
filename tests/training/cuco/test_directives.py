"""Directives: what must wait for what, what compiles, and that the safe version is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.training.cuco.program import Stage, Uncompilable, dependences, hazards, host, knobs, lower, safe
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
