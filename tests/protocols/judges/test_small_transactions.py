"""Small histories of transactions on lists, all of them, beside an oracle that tries every order.

At most three transactions on two keys, with reads of a key before, between and after appends of one's own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import permutations, product

import numpy as np
import pytest

from assay.protocols.judges import list_append
from assay.protocols.judges.judgement import HOLDS, VIOLATED
from assay.protocols.judges.lattice import ISOLATION
from assay.workloads.histories import Operation
from tests.oracles import histories as oracle

SHAPES = [  # r: a read, a: an append, of the first key or the second
    *([f + k] for f, k in product("ra", "xy")),
    *([f + k, g + m] for f, k, g, m in product("ra", "xy", "ra", "xy")),
    ["rx", "ax", "rx"], ["ax", "rx", "ax"], ["rx", "ax", "ry"], ["ry", "rx", "ax"], ["ax", "ax", "rx"],
]  # fmt: skip
Layout = tuple[tuple[int, float, float], ...]
"""The process of each transaction, its begin and its end."""
LAYOUTS: dict[str, Layout] = {
    "together": ((0, 0.0, 9.0), (1, 0.0, 9.0), (2, 0.0, 9.0)),
    "in turn": ((0, 0.0, 1.0), (1, 2.0, 4.0), (2, 3.0, 5.0)),
    "two of one session": ((0, 0.0, 1.0), (0, 2.0, 3.0), (1, 0.0, 9.0)),
    "one session": ((0, 0.0, 1.0), (0, 2.0, 3.0), (0, 4.0, 5.0)),
}
laid_out = pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)


def answered(shapes: tuple[list[str], ...], layout: Layout) -> Iterator[list[Operation]]:
    """Every history of such transactions: each read answers some of the elements of its key, in some order."""
    elements: dict[str, list[int]] = {"x": [], "y": []}
    asked: list[list[list[object]]] = []
    reads: list[tuple[int, int, str]] = []
    for number, shape in enumerate(shapes):
        steps: list[list[object]] = []
        for f, key in shape:
            if f == "a":
                value = 1 + sum(map(len, elements.values()))
                elements[key].append(value)
                steps.append(["append", key, value])
            else:
                reads.append((number, len(steps), key))
                steps.append(["r", key, None])
        asked.append(steps)
    versions = {
        key: [list(order) for n in range(len(known) + 1) for order in permutations(known, n)]
        for key, known in elements.items()
    }
    for answers in product(*(versions[key] for _, _, key in reads)):
        results = [[list(step) for step in steps] for steps in asked]
        for (number, at, _), answer in zip(reads, answers, strict=True):
            results[number][at][2] = answer
        yield [
            Operation(process, "txn", None, steps, result, begin, end)
            for (process, begin, end), steps, result in zip(layout, asked, results, strict=False)
        ]


def agree(history: list[Operation]) -> tuple[bool, ...]:
    """Which levels hold, judged and by trying every order; and no level holds where one below it does not."""
    holds = oracle.isolation(history)
    judge = list_append.levels(history, prefix=False)
    for model, right in holds.items():
        assert (list_append.verdict(history, model) == HOLDS) == right, (model, history)
        assert not right or judge(model).verdict == HOLDS, (model, history)
        assert not right or all(holds[weaker] for weaker in ISOLATION[model]), (model, history)
    return tuple(holds.values())


@laid_out
def test_one_transaction_and_some_of_two_and_three_are_judged_as_by_trying_every_order(layout: Layout) -> None:
    for shape in SHAPES:
        for history in answered((shape,), layout):
            agree(history)
    random = np.random.default_rng(5)
    for several in (2, 3):
        for _ in range(20):
            chosen = tuple(SHAPES[k] for k in random.integers(0, len(SHAPES), several))
            histories = list(answered(chosen, layout))
            for at in random.integers(0, len(histories), 8):
                agree(histories[at])


@pytest.mark.parametrize(
    ("steps", "model"), [([["r", "x", [2]]], "read-uncommitted"), ([["r", "x", [2, 1]]], "read-uncommitted")]
)
def test_who_sees_a_later_append_of_a_transaction_sees_the_earlier_one_before_it(
    steps: list[list[object]], model: str
) -> None:
    two = [["append", "x", 1], ["append", "x", 2]]
    history = [
        Operation(0, "txn", None, two, two, 0.0, 1.0),
        Operation(1, "txn", None, [["r", "x", None]], steps, 0.0, 1.0),
    ]
    judgement = list_append.judge(history, model)
    assert (judgement.verdict, judgement.reason.split(":")[0]) == (VIOLATED, "incompatible-order")


def swapped(shapes: tuple[list[str], ...]) -> tuple[list[str], ...]:
    """The same with the keys exchanged."""
    return tuple([step.translate(str.maketrans("xy", "yx")) for step in shape] for shape in shapes)


@pytest.mark.slow
def test_all_of_two_and_three_short_ones_are_judged_as_by_trying_every_order() -> None:
    short = [shape for shape in SHAPES if len(shape) < 3]
    together, *others = LAYOUTS.values()
    counted = Counter[tuple[bool, ...]]()
    for shapes in (*product(SHAPES, repeat=2), *product(short, repeat=3)):
        if swapped(shapes) < shapes:
            continue  # the names of keys do not matter
        for history in answered(shapes, together):
            layouts = [together] if not oracle.read_uncommitted(history) else [together, *others]
            for layout in layouts:  # what no order explains needs no session to be wrong
                moved = [
                    item._replace(process=process, invoke=begin, complete=end)
                    for item, (process, begin, end) in zip(history, layout, strict=False)
                ]
                holds = oracle.isolation(moved)
                kinds = {anomaly.kind for anomaly in list_append.anomalies(moved)}
                assert {model: kinds.isdisjoint(list_append.forbidden(model)) for model in holds} == holds, moved
                counted[tuple(holds.values())] += 1
    print(f"{counted.total():,} histories; by the levels that hold, the weakest first: {dict(counted)}")
    assert len(counted) >= 8


@pytest.mark.parametrize("model", list_append.MODELS)
def test_nobody_reads_what_it_has_yet_to_append(model: str) -> None:
    steps = [["r", "x", [1]], ["append", "x", 1]]
    history = [Operation(0, "txn", None, [["r", "x", None], ["append", "x", 1]], steps, 0.0, 1.0)]
    judgement = list_append.judge(history, model)
    assert judgement.verdict == VIOLATED
    assert judgement.reason.startswith("internal")
