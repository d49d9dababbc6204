"""Every anomaly that the judges name, hidden where all else is well: found, and blamed on no model that allows it."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from click.testing import CliRunner

from assay.cli.check import command
from assay.protocols.judges import lattice, rw_register
from assay.protocols.judges.judgement import HOLDS, UNKNOWN, VIOLATED, relax
from assay.protocols.judges.specifications import SPECIFICATIONS, beginning
from assay.record.errors import BadInput
from assay.workloads import histories
from assay.workloads.histories import Operation
from tests.oracles import histories as oracle
from tests.oracles import litmus, register_transactions

SESSIONS = ("read-your-writes", "monotonic-reads", "monotonic-writes", "writes-follow-reads")


@cache
def broken(name: str) -> frozenset[str]:
    """The models that a few operations on registers break, by definition."""
    few = litmus.planted(litmus.REGISTERS[name], 0)
    holds = {
        "linearizable": oracle.linearizable(few, oracle.legal_register),
        "per-key-linearizable": not oracle.per_key_linearizable(few, oracle.legal_register),
        "sequential": oracle.sequential(few, oracle.legal_register),
        "causal-memory": oracle.causal_memory(few), "causal-convergent": oracle.causal_convergent(few),
        "causal": oracle.causal(few), "pram": oracle.pram(few),
        **{model: oracle.session(few, model) for model in SESSIONS},
    }  # fmt: skip
    return frozenset(model for model, fine in holds.items() if not fine)


def judge_registers(seed: int) -> tuple[str, int]:
    """One history; what was planted, and how many models nobody knows about."""
    name = sorted(litmus.REGISTERS)[seed % len(litmus.REGISTERS)]
    history = litmus.mixed(litmus.background(seed, litmus.THINGS[0]), litmus.planted(litmus.REGISTERS[name], seed))
    found = {row.model: row.verdict for row in lattice.strongest(history).rows}
    for model, verdict in found.items():
        if verdict != UNKNOWN:
            assert (verdict == VIOLATED) == (model in broken(name)), (seed, name, model)
    return name, sum(verdict == UNKNOWN for verdict in found.values())


def judge_transactions(seed: int) -> str:
    """One history of transactions, on lists or registers."""
    lists = seed % 2 == 0
    table = litmus.LISTS if lists else litmus.ACCESSES
    name = sorted(table)[seed // 2 % len(table)]
    level, few = table[name]
    history = litmus.mixed(litmus.transactions(seed, lists), litmus.planted_transactions(few, seed))
    found = {row.model: row.verdict for row in lattice.strongest(history).judgements}
    for place, model in enumerate(litmus.LEVELS):
        expected = VIOLATED if level is not None and place >= litmus.LEVELS.index(level) else HOLDS
        assert found[model] in (expected, UNKNOWN), (seed, name, model, found)
    assert UNKNOWN not in found.values() or level is None, (seed, name, found)
    return f"{'lists' if lists else 'registers'}: {name}"


def judge_things(seed: int) -> tuple[str, str]:
    """One history of another object, with or without an answer that it never gives."""
    thing = litmus.THINGS[seed % len(litmus.THINGS)]
    wrong = seed // len(litmus.THINGS) % 2 == 1
    history = litmus.background(seed, thing)
    if wrong:
        history = litmus.mixed(history, litmus.planted(thing.wrong, seed))
    verdict = lattice.judge(history, "linearizable", SPECIFICATIONS[thing.name]).verdict
    assert verdict in (VIOLATED if wrong else HOLDS, UNKNOWN), (seed, thing.name)
    return thing.name, verdict


def judged(count: int) -> None:
    """So many histories of each of the three kinds: no wrong answer, and next to no doubt."""
    registers = [judge_registers(seed) for seed in range(count)]
    assert {name for name, _ in registers} == set(litmus.REGISTERS)
    kinds = {judge_transactions(seed) for seed in range(count)}
    assert len(kinds) == len(litmus.LISTS) + len(litmus.ACCESSES)
    verdicts = [judge_things(seed)[1] for seed in range(count)]
    assert verdicts.count(UNKNOWN) <= count // 20


def test_every_anomaly_is_found_and_blamed_on_no_model_that_allows_it() -> None:
    judged(60)


@pytest.mark.slow
def test_ten_thousand_histories_bring_no_wrong_answer() -> None:
    judged(3400)


def transaction(process: int, at: float, *done: tuple[str, str, object]) -> Operation:
    own = [list(step) for step in done]
    return Operation(process, "txn", None, [[f, k, None if f == "r" else v] for f, k, v in own], own, at, at + 1.0)


def by_definition(history: list[Operation]) -> dict[str, bool]:
    return {
        "read-uncommitted": register_transactions.uncommitted(history),
        "read-committed": register_transactions.committed(history),
        "snapshot-isolation": register_transactions.snapshot_isolated(history),
        "strong-session-snapshot-isolation": register_transactions.snapshot_isolated(history, sessions=True),
        "serializable": register_transactions.serializable(history),
        "strong-session-serializable": register_transactions.serializable(history, sessions=True),
        "strict-serializable": register_transactions.serializable(history, strict=True),
    }


def compared(seed: int, most: int) -> tuple[bool, ...]:
    """Every level of a few random transactions, judged and by definition."""
    history = register_transactions.written(seed, most)
    holds = by_definition(history)
    for model, expected in holds.items():
        found = rw_register.judge(history, model)
        assert found.verdict == (HOLDS if expected else VIOLATED), (seed, model, history)
    return tuple(holds.values())


def test_levels_of_transactions_on_registers_are_what_they_are_by_definition() -> None:
    kinds = {compared(seed, 3) for seed in range(150)}
    assert len(kinds) >= 5


def compared_by_state(seed: int) -> int:
    """Values that several write: the levels that are searched for, judged and by definition; how many hold."""
    history = register_transactions.written(seed, 3, values_of_each=2)
    searched = {model: right for model, right in by_definition(history).items() if model not in rw_register.MODELS[:2]}
    for model, right in searched.items():
        assert rw_register.judge(history, model).verdict == (HOLDS if right else VIOLATED), (seed, model, history)
    return sum(searched.values())


def test_levels_are_found_where_nobody_knows_who_wrote_a_value() -> None:
    assert len({compared_by_state(seed) for seed in range(150)}) >= 4


@pytest.mark.slow
def test_levels_of_transactions_on_registers_are_what_they_are_by_definition_at_length() -> None:
    kinds = {compared(seed, 3 if seed % 20 else 4) for seed in range(1000, 4000)}
    assert len(kinds) >= 8
    assert len({compared_by_state(seed) for seed in range(1000, 2500)}) >= 5


class TestTransactionsOnRegisters:
    def test_a_witness_says_what_cannot_be_reconciled(self) -> None:
        few = litmus.planted_transactions(litmus.ACCESSES["G2-item"][1], 1)
        history = litmus.mixed(litmus.transactions(3, lists=False), few)
        found = rw_register.judge(history, "serializable")
        assert {history[i].process for i in found.witness} == {50, 51}
        kept = SPECIFICATIONS["rw-register"]
        assert rw_register.verdict(relax(history, found.witness), "serializable", kept) == VIOLATED

    def test_what_may_not_have_happened_can_explain_a_read(self) -> None:
        lost = Operation(0, "txn", None, [["w", "x", 1]], None, 0.0, float("inf"), "info")
        for model in litmus.LEVELS:
            assert rw_register.judge([lost, transaction(1, 5.0, ("r", "x", 1))], model).verdict == HOLDS
            assert rw_register.judge([lost, transaction(1, 5.0, ("r", "x", None))], model).verdict == HOLDS

    def test_what_a_process_left_behind_binds_nothing_after_it(self) -> None:
        lost = Operation(0, "txn", None, [["w", "x", 1]], None, 2.0, float("inf"), "info")
        history = [transaction(0, 0.0, ("w", "y", 1)), lost, transaction(0, 4.0, ("r", "x", None))]
        after = [*history, transaction(1, 6.0, ("r", "x", 1), ("r", "y", None))]
        for model in rw_register.SESSIONS:
            assert rw_register.judge(history, model).verdict == HOLDS
            assert rw_register.judge(after, model).verdict == VIOLATED  # what it had written before comes before

    def test_sessions_bind_transactions_that_share_no_key(self) -> None:
        each = [("w", "x", 1), ("r", "y", None), ("w", "y", 1), ("r", "x", None)]
        history = [transaction(at // 2, 2.0 * at, step) for at, step in enumerate(each)]
        assert rw_register.judge(history, "serializable").verdict == HOLDS
        for model in rw_register.SESSIONS:
            judgement = rw_register.judge(history, model)
            assert (judgement.verdict, judgement.witness) == (VIOLATED, (0, 1, 2, 3))

    def test_a_value_with_two_authors_is_decided_by_order_or_not_at_all(self) -> None:
        twice = [transaction(0, 0.0, ("w", "x", 1)), transaction(1, 2.0, ("w", "x", 1))]
        fine = [*twice, transaction(2, 4.0, ("r", "x", 1))]
        assert {row.verdict for row in lattice.strongest(fine).judgements} == {HOLDS}
        split = [*fine, transaction(3, 6.0, ("r", "x", None), ("r", "x", 1))]
        assert lattice.judge(split, "read-committed").verdict == UNKNOWN

    def test_registers_and_lists_are_told_apart(self) -> None:
        assert lattice.guess([transaction(0, 0.0, ("r", "x", 3))]).name == "rw-register"
        assert lattice.guess([transaction(0, 0.0, ("r", "x", [3]))]).name == "list-append"
        with pytest.raises(BadInput, match=r"a transaction is a list of \[append"):
            lattice.strongest([transaction(0, 0.0, ("w", "x", 3), ("append", "y", 1))])


class TestBeginnings:
    def test_registers_begin_as_they_are_told(self) -> None:
        read = [Operation(0, "read", "x", None, 0, 0.0, 1.0), Operation(0, "write", "x", 5, None, 2.0, 3.0)]
        assert lattice.strongest(read).maximal == ()
        told = beginning(SPECIFICATIONS["register"], 0)
        assert {row.verdict for row in lattice.strongest(read, told).judgements} == {HOLDS}
        other = beginning(SPECIFICATIONS["register"], {"x": 7})
        assert {row.verdict for row in lattice.strongest(read, other).judgements} == {VIOLATED}

    @pytest.mark.parametrize(
        ("name", "given", "operation"),
        [
            ("counter", 4, Operation(0, "read", None, None, 4, 0.0, 1.0)),
            ("kv", "ab", Operation(0, "read", "k", None, "ab", 0.0, 1.0)),
            ("set", [1, 2], Operation(0, "read", None, None, [2, 1], 0.0, 1.0)),
            ("queue", [1, 2], Operation(0, "dequeue", None, None, 1, 0.0, 1.0)),
            ("mutex", True, Operation(0, "release", None, None, None, 0.0, 1.0)),
            ("rw-register", {"x": 3}, transaction(0, 0.0, ("r", "x", 3), ("r", "y", None))),
            ("multi-register", 0, transaction(0, 0.0, ("r", "x", 0), ("r", "y", 0))),
        ],
    )
    def test_other_objects_too(self, name: str, given: object, operation: Operation) -> None:
        plain = SPECIFICATIONS[name]
        assert lattice.judge([operation], "linearizable", plain).verdict == VIOLATED
        assert lattice.judge([operation], "linearizable", beginning(plain, given)).verdict == HOLDS

    def test_what_is_no_beginning_is_refused(self) -> None:
        with pytest.raises(BadInput, match="is no beginning of a counter"):
            beginning(SPECIFICATIONS["counter"], "four")
        with pytest.raises(BadInput, match="does not fit a bank"):
            beginning(SPECIFICATIONS["bank"], 4)


MUTEX = """{:type :invoke, :process 0, :f :acquire, :value nil}
{:type :ok, :process 0, :f :acquire, :value nil}
{:type :info, :process :nemesis, :f :start, :value nil}
{:type :invoke, :process 1, :f :acquire, :value nil}
{:type :ok, :process 1, :f :acquire, :value nil}
"""
MULTI = """{:type :invoke, :process 0, :f :txn, :value [[:write :x 1] [:read :y nil]]}
{:type :ok, :process 0, :f :txn, :value [[:write :x 1] [:read :y 0]]}
{:type :invoke, :process 1, :f :txn, :value [[:read :x nil]]}
{:type :ok, :process 1, :f :txn, :value [[:read :x 1]]}
"""


class TestFiles:
    def run(self, tmp_path: Path, text: str, *options: str) -> tuple[int, str]:
        path = tmp_path / "history.edn"
        path.write_text(text)
        ended = CliRunner().invoke(command, [str(path), *options])
        return ended.exit_code, ended.output

    def test_a_lock_that_two_hold_is_found(self, tmp_path: Path) -> None:
        code, shown = self.run(tmp_path, MUTEX, "--model", "linearizable")
        assert (code, "✗ linearizable: violated" in shown) == (1, True)
        freed = MUTEX.replace("{:type :info", "{:type :invoke, :process 0, :f :release}\n{:type :info")
        assert self.run(tmp_path, freed, "--model", "linearizable")[0] == 0

    def test_registers_of_one_transaction_are_read(self, tmp_path: Path) -> None:
        assert self.run(tmp_path, MULTI, "--model", "linearizable", "--initial", "0")[0] == 0
        assert self.run(tmp_path, MULTI, "--spec", "multi-register", "--initial", '{"x": 0, "y": 0}')[0] == 0
        assert self.run(tmp_path, MULTI, "--model", "serializable")[0] == 1
        assert self.run(tmp_path, MULTI, "--initial", "zero")[0] == 1  # BadInput; two from the command line

    def test_a_history_of_the_nemesis_alone_is_read(self, tmp_path: Path) -> None:
        only = "\n".join(
            f"{{:type :info, :process :nemesis, :f :{f}, :value nil, :time {i}}}" for i, f in enumerate("ab")
        )
        code, shown = self.run(tmp_path, only)
        assert code == 0
        assert "no client did anything" in shown
        path = tmp_path / "only.json"
        path.write_text(json.dumps([{"type": "info", "process": "nemesis", "f": "kill", "value": None}]))
        assert histories.read(path) == []
