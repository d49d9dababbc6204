"""The store under the replicated logs: deterministic, and each request is executed once."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from assay.protocols.nodes.kv import Command, Store, is_command

asks = st.one_of(
    st.tuples(st.just("read"), st.sampled_from("xy"), st.none()),
    st.tuples(st.just("write"), st.sampled_from("xy"), st.integers(0, 3)),
    st.tuples(st.just("cas"), st.sampled_from("xy"), st.tuples(st.integers(0, 3), st.integers(0, 3))),
    st.tuples(st.just("append"), st.sampled_from("z"), st.integers(0, 3)),
)
commands = st.lists(st.tuples(st.integers(4, 5), asks), max_size=12).map(
    lambda pairs: [
        (client, sum(other == client for other, _ in pairs[: at + 1]), *ask) for at, (client, ask) in enumerate(pairs)
    ]
)


@given(commands, st.data())
def test_repeated_requests_change_nothing(sequence: list[Command], data: st.DataObject) -> None:
    plain, noisy = Store(), Store()
    for at, command in enumerate(sequence):
        expected = plain.apply(command)
        assert noisy.apply(command) == expected
        again = sequence[data.draw(st.integers(0, at))]
        noisy.apply(again)
        assert noisy.apply(command) == expected or plain.answers[command[0]][0] != command[1]
    assert noisy.snapshot() == plain.snapshot()


@given(commands)
def test_a_snapshot_restores_the_state(sequence: list[Command]) -> None:
    store, other = Store(), Store()
    for command in sequence:
        store.apply(command)
    other.restore(store.snapshot())
    assert other.snapshot() == store.snapshot()
    assert other.apply((9, 1, "read", "x", None)) == store.values.get("x")


def test_compare_and_set_says_whether_it_took_place() -> None:
    store = Store()
    answers = [store.apply((4, number, "cas", "x", pair)) for number, pair in enumerate([(None, 1), (2, 3), (1, 4)], 1)]
    assert answers == [True, False, True] and store.values["x"] == 4


@given(st.one_of(st.none(), st.integers(), st.text(), st.tuples(), st.tuples(st.integers(), st.text())))
def test_nothing_but_a_command_has_the_shape_of_one(value: Any) -> None:
    assert not is_command(value)
