"""From counts to an order: whatever could be fired in some order is fired in one."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.protocols.automata.automaton import Configuration, Rule, in_order

PLACES = ("a", "b", "c")
rules = st.lists(st.tuples(st.sampled_from(PLACES), st.sampled_from(PLACES)), min_size=1, max_size=5).map(
    lambda moves: [Rule(str(i), *move) for i, move in enumerate(moves)]
)


@given(rules, st.lists(st.integers(0, 2), min_size=3, max_size=3), st.data())
def test_the_counts_of_any_run_can_be_put_in_order_again(
    moves: list[Rule], counts: list[int], data: st.DataObject
) -> None:
    start = now = Configuration(dict(zip(PLACES, counts, strict=True)))
    fired: Counter[str] = Counter()
    for _ in range(data.draw(st.integers(0, 8))):
        enabled = [rule for rule in moves if now.enabled(rule)]
        if not enabled:
            break
        rule = data.draw(st.sampled_from(enabled))
        now = now.after(rule)
        fired[rule.name] += 1
    again = start
    order = in_order(start, [(rule, fired[rule.name]) for rule in moves])
    for rule in order:
        assert again.enabled(rule)
        again = again.after(rule)
    assert again.values == now.values
    assert Counter(rule.name for rule in order) == fired


def test_a_cycle_that_nobody_enters_cannot_be_fired() -> None:
    there, back = Rule("0", "a", "b"), Rule("1", "b", "a")
    with pytest.raises(ValueError, match="cannot be fired in any order"):
        in_order(Configuration({"a": 0, "b": 0, "c": 1}), [(there, 1), (back, 1)])
