"""Every verdict equals that of a brute force over all orders, and every explanation is minimal."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from assay.protocols.judges import causal, linearizable, list_append, rw_register, sequential, sessions
from assay.protocols.judges.judgement import HOLDS, UNKNOWN, VIOLATED, Judgement, cut, relax, returned
from assay.protocols.judges.lattice import STRONGER, strongest
from assay.protocols.judges.snapshots import clash
from assay.protocols.judges.specifications import SPECIFICATIONS, Specification, bank
from assay.workloads.histories import Operation
from tests.oracles import histories as oracle
from tests.protocols.judges import small


def examples(count: int) -> settings:
    return settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)


some = examples(60)
counts = pytest.mark.parametrize("count", [150, pytest.param(3_000, marks=pytest.mark.slow)])
registers = small.histories(small.register, small.read_register)


def lose(history: list[Operation]) -> list[Operation]:
    """The answers of every other operation with an effect are lost."""
    loud = [i for i, item in enumerate(history) if item.f not in ("read", "contains") and item.status != "fail"]
    return [
        item._replace(result=None, complete=math.inf, status="info") if i in loud[::2] else item
        for i, item in enumerate(history)
    ]


OBJECTS: dict[str, tuple[st.SearchStrategy[list[Operation]], str, oracle.Legal]] = {
    "register": (registers, "register", oracle.legal_register),
    "cas": (small.histories(small.busy_register, small.read_register), "cas-register", oracle.legal_register),
    "lost cas": (
        small.histories(small.busy_register, small.read_register, 7).map(lose),
        "cas-register",
        oracle.legal_register,
    ),
    "queue": (small.histories(small.queue, small.read_queue, 6), "queue", oracle.legal_queue),
    "growing set": (small.histories(small.growing_set, small.read_set), "set", oracle.legal_set),
    "set of few": (small.histories(small.set_of_few, small.read_set), "set", oracle.legal_set),
    "lost sets": (small.histories(small.set_of_few, small.read_set, 7).map(lose), "set", oracle.legal_set),
    "counter": (small.histories(small.counter, small.read_counter), "counter", oracle.legal_counter),
    "bank": (small.histories(small.bank, small.read_bank), "bank", oracle.legal_bank),
    "lists": (small.histories(small.transaction, small.read_lists, 4), "list-append", oracle.legal_lists),
}


def specification_of(name: str, history: Sequence[Operation]) -> Specification:
    if name != "bank":
        return SPECIFICATIONS[name]
    accounts = Operation(0, "read", None, None, {"a": 10, "b": 10, "c": 10}, -1.0, -0.5)
    return bank(10, [accounts, *history])


def is_order(order: Sequence[int], history: Sequence[Operation], legal: oracle.Legal, processes: bool = False) -> bool:
    operations = [history[i] for i in order]
    sure = {i for i, operation in enumerate(history) if operation.status == "ok"}
    timely = not any(b.precedes(a) for a, b in combinations(operations, 2))
    if processes:
        timely = not any(oracle.program_order(b, a) for a, b in combinations(operations, 2))
    return timely and sure <= set(order) and len(set(order)) == len(order) and legal(operations)


@counts
@pytest.mark.parametrize("name", OBJECTS)
def test_linearizability_equals_trying_all_orders(name: str, count: int) -> None:
    strategy, kind, legal = OBJECTS[name]
    seen = {HOLDS: 0, VIOLATED: 0}

    @examples(count)
    @given(strategy)
    def agrees(history: list[Operation]) -> None:
        judgement = linearizable.judge(history, specification_of(kind, history))
        assert judgement.verdict == (HOLDS if oracle.linearizable(history, legal) else VIOLATED)
        if judgement.order is not None:
            assert is_order(judgement.order, history, legal)
        seen[judgement.verdict] += 1

    agrees()
    assert min(seen.values()) > count / 20, f"the histories are one-sided: {seen}"


@counts
@pytest.mark.parametrize("name", ["register", "cas", "lost cas"])
def test_the_keys_that_fail_equal_trying_all_orders_of_each(name: str, count: int) -> None:
    strategy, kind, legal = OBJECTS[name]

    @examples(count)
    @given(strategy)
    def agrees(history: list[Operation]) -> None:
        judgement = linearizable.judge_keys(history, SPECIFICATIONS[kind])
        assert set(judgement.keys) == oracle.per_key_linearizable(history, legal)
        assert judgement.holds == (not judgement.keys) == oracle.linearizable(history, legal)

    agrees()


@counts
@pytest.mark.parametrize("name", ["register", "cas", "lost cas", "queue"])
def test_sequential_consistency_equals_trying_all_orders(name: str, count: int) -> None:
    strategy, kind, legal = OBJECTS[name]

    @examples(count)
    @given(strategy)
    def agrees(history: list[Operation]) -> None:
        judgement = sequential.judge(history, SPECIFICATIONS[kind])
        assert judgement.verdict == (HOLDS if oracle.sequential(history, legal) else VIOLATED)
        if judgement.order is not None:
            assert is_order(judgement.order, history, legal, processes=True)

    agrees()


CAUSAL: dict[str, Callable[[list[Operation]], bool]] = {
    "causal": oracle.causal,
    "causal-memory": oracle.causal_memory,
    "causal-convergent": oracle.causal_convergent,
    "pram": oracle.pram,
}


@counts
@pytest.mark.parametrize("model", CAUSAL)
def test_causal_models_equal_their_definitions(model: str, count: int) -> None:
    @examples(count)
    @given(small.histories(small.register, small.read_register, 6))
    def agrees(history: list[Operation]) -> None:
        assert causal.verdict(history, model) == (HOLDS if CAUSAL[model](history) else VIOLATED)

    agrees()


@counts
@pytest.mark.parametrize("model", sessions.MODELS)
def test_session_guarantees_equal_their_definitions(model: str, count: int) -> None:
    @examples(count)
    @given(small.histories(small.register, small.read_register, 8))
    def agrees(history: list[Operation]) -> None:
        assert sessions.verdict(history, model) == (HOLDS if oracle.session(history, model) else VIOLATED)

    agrees()


@counts
def test_isolation_levels_equal_trying_all_orders(count: int) -> None:
    @examples(count)
    @given(small.histories(small.transaction, small.read_lists, 4))
    def agrees(history: list[Operation]) -> None:
        for model, right in oracle.isolation(history).items():
            assert list_append.verdict(history, model) == (HOLDS if right else VIOLATED), model

    agrees()


def overlapping(number: int, group: str, reads: str, own: str) -> Operation:
    """A transaction that appends to a key nobody reads and to its own, and saw some keys while they were empty."""
    steps = [["append", group, number], ["append", own, number], *(["r", key, []] for key in reads)]
    asked = [[f, key, None if f == "r" else value] for f, key, value in steps]
    return Operation(number, "txn", None, asked, steps, 0.0, 1.0)


def test_two_that_follow_each_other_cannot_both_overlap_two_that_follow_each_other() -> None:
    history = [
        overlapping(0, "x", "cd", "a"), overlapping(1, "x", "cd", "b"),
        overlapping(2, "y", "ab", "c"), overlapping(3, "y", "ab", "d"),
    ]  # fmt: skip
    judgement = list_append.judge(history, "snapshot-isolation")
    assert (judgement.verdict, judgement.witness) == (VIOLATED, (0, 1, 2, 3))
    assert not oracle.snapshot_isolated(history)
    assert list_append.verdict(history[:3], "snapshot-isolation") == HOLDS


@counts
def test_snapshots_of_unread_rivals_equal_trying_all_orders(count: int) -> None:
    @examples(count)
    @given(st.lists(st.tuples(st.sets(st.sampled_from("xyz")), st.sets(st.sampled_from("0123"))), max_size=4))
    def agrees(drawn: list[tuple[set[str], set[str]]]) -> None:
        history = []
        for number, (groups, reads) in enumerate(drawn):
            steps = [["append", key, number] for key in (*sorted(groups), str(number))]
            steps += [["r", key, []] for key in sorted(reads - {str(number)})]
            asked = [[f, key, None if f == "r" else value] for f, key, value in steps]
            history.append(Operation(number, "txn", None, asked, steps, 0.0, 1.0))
        expected = HOLDS if oracle.snapshot_isolated(history) else VIOLATED
        assert list_append.verdict(history, "snapshot-isolation") == expected

    agrees()


def test_snapshots_that_the_search_does_not_find_in_time_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    history = [
        overlapping(0, "x", "cd", "a"), overlapping(1, "x", "cd", "b"),
        overlapping(2, "y", "ab", "c"), overlapping(3, "y", "ab", "d"),
    ]  # fmt: skip
    monkeypatch.setattr(list_append, "clash", partial(clash, steps=1))
    verdicts = {model: list_append.judge(history, model).verdict for model in list_append.MODELS}
    assert verdicts == {
        "read-uncommitted": HOLDS, "read-committed": HOLDS, "snapshot-isolation": UNKNOWN,
        "strong-session-snapshot-isolation": UNKNOWN, "serializable": VIOLATED,
        "strong-session-serializable": VIOLATED, "strict-serializable": VIOLATED,
    }  # fmt: skip


@some
@given(small.histories(small.register, small.read_register, 8))
def test_a_stronger_model_never_holds_without_the_weaker(history: list[Operation]) -> None:
    verdicts = {model: strongest(history)[model].verdict for model in STRONGER}
    alone = {
        **{model: causal.verdict(history, model) for model in causal.MODELS},
        **{model: sessions.verdict(history, model) for model in sessions.MODELS},
        "sequential": sequential.verdict(history, SPECIFICATIONS["register"]),
    }
    assert all(verdicts[model] == verdict for model, verdict in alone.items())


@counts
def test_sessions_of_single_steps_are_sequential_and_keep_what_sessions_are_promised(count: int) -> None:
    specification = SPECIFICATIONS["rw-register"]

    @examples(count)
    @given(small.histories(small.register, small.read_register, 6))
    def agrees(history: list[Operation]) -> None:
        steps = [["w" if item.f == "write" else "r", item.key, item.value] for item in history]
        single = [
            item._replace(
                f="txn", key=None, value=[step],
                result=[[*step[:2], item.result if step[0] == "r" else item.value]] if item.status == "ok" else None,
            )
            for item, step in zip(history, steps, strict=True)
        ]  # fmt: skip
        serial = rw_register.verdict(single, "strong-session-serializable", specification)
        assert serial == sequential.verdict(history, SPECIFICATIONS["register"])
        if rw_register.verdict(single, "strong-session-snapshot-isolation", specification) == HOLDS:
            assert all(sessions.verdict(history, model) == HOLDS for model in sessions.MODELS)

    agrees()


# ------------------------------------------------------------------------------------------ explanations


def check_minimal(history: list[Operation], judgement: Judgement, check: Callable[[list[Operation]], str]) -> None:
    """The witness alone breaks the model; without any one of its operations it does not."""
    assert judgement.witness
    assert check(relax(history, judgement.witness)) == VIOLATED
    for spared in judgement.witness:
        assert check(relax(history, [i for i in judgement.witness if i != spared])) == HOLDS


@pytest.mark.parametrize("name", OBJECTS)
def test_a_violation_of_linearizability_is_explained_by_a_minimal_witness_and_prefix(name: str) -> None:
    strategy, kind, legal = OBJECTS[name]

    @some
    @given(strategy)
    def minimal(history: list[Operation]) -> None:
        specification = specification_of(kind, history)
        judgement = linearizable.judge(history, specification)
        if judgement.verdict == HOLDS:
            assert judgement.prefix == returned(history)
            return
        check_minimal(history, judgement, lambda trial: linearizable.verdict(trial, specification))
        assert oracle.linearizable(cut(history, judgement.prefix), legal)
        assert not oracle.linearizable(cut(history, judgement.prefix + 1), legal)

    minimal()


@pytest.mark.parametrize("model", [*causal.MODELS, *sessions.MODELS, "sequential"])
def test_a_violation_of_a_weaker_model_is_explained_by_a_minimal_witness(model: str) -> None:
    def verdict(history: Sequence[Operation]) -> str:
        if model == "sequential":
            return sequential.verdict(history, SPECIFICATIONS["register"])
        return causal.verdict(history, model) if model in causal.MODELS else sessions.verdict(history, model)

    @some
    @given(small.histories(small.register, small.read_register, 8))
    def minimal(history: list[Operation]) -> None:
        judgement = strongest(history)[model]
        assert judgement.verdict == verdict(history)
        if judgement.verdict == VIOLATED:
            check_minimal(history, judgement, verdict)

    minimal()


@some
@given(small.histories(small.transaction, small.read_lists, 4), st.sampled_from(sorted(list_append.MODELS)))
def test_an_anomaly_is_explained_by_a_minimal_witness(history: list[Operation], model: str) -> None:
    judgement = list_append.judge(history, model)
    if judgement.verdict == VIOLATED:
        check_minimal(history, judgement, lambda trial: list_append.verdict(trial, model))
