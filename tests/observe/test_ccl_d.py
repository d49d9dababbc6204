"""CCL-D: the right class and the right rank, from counts and durations alone."""

from __future__ import annotations

import time
from typing import Any
from unittest.mock import Mock

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.observe import ccl_d
from assay.observe.ccl.detect import Symptom, Watch
from assay.observe.ccl.locate import CLASSES, H1, H2, H3, S1, S2, S3, hang, locate, share, slow
from assay.observe.ccl.probe import SENDS, WORDS, Probe, Records, channel_at
from assay.observe.ccl_d import baselines, lab, trials
from assay.observe.ccl_d.job import RingJob
from assay.observe.ccl_d.model import modelled
from assay.observe.interface import Diagnosis, Suspect
from assay.record.lab import Lab
from assay.record.tables import joined
from assay.record.types import Claim, NotMeasured
from assay.sim.random import stream
from tests.observe.test_ring import wait_for
from tests.oracles.ring_steps import frozen

KIND = "all_reduce"


def blamed(diagnosis: Diagnosis) -> tuple[str, list[int]]:
    return diagnosis.label, [int(suspect.entity) for suspect in diagnosis.suspects]


def records_of(n: int, calls: Any) -> Records:
    """Records after `calls(probe, rank)` wrote on every rank."""
    words = np.zeros((n, WORDS), np.int64)
    for rank in range(n):
        calls(Probe(words[rank].data, rank, n), rank)
    return Records.of(words)


# -------------------------------------------------------------------------------------------------------- hangs


@given(n=st.integers(3, 12), data=st.data())
def test_a_rank_frozen_inside_has_sent_least_wherever_it_stopped(n: int, data: st.DataObject) -> None:
    culprit, at = data.draw(st.integers(0, n - 1)), data.draw(st.integers(0, 3 * n))
    sends, recvs = frozen(n, 4 * n, culprit, at, data.draw(st.booleans()))

    def calls(probe: Probe, rank: int) -> None:
        probe.enter(KIND, 0, 64, now=rank)
        for _ in range(sends[rank]):
            probe.sent(0, 8, 1, now=1)
        for _ in range(recvs[rank]):
            probe.received(0, 1, now=1)

    label, suspects = blamed(hang(records_of(n, calls)))
    assert label == H3 and suspects[0] == culprit


@pytest.mark.parametrize("killed", range(4))
def test_the_rank_before_a_killed_one_is_not_blamed_for_what_it_could_not_send(killed: int) -> None:
    # As left by a SIGKILL inside a reduce-scatter: the rank before had received once more than it could pass on.
    left = {killed: (43, 42), (killed + 1) % 4: (44, 43), (killed + 2) % 4: (45, 44), (killed + 3) % 4: (43, 44)}

    def calls(probe: Probe, rank: int) -> None:
        probe.enter(KIND, 0, 64, now=0)
        for _ in range(left[rank][0]):
            probe.sent(0, 8, 1, now=1)
        for _ in range(left[rank][1]):
            probe.received(0, 1, now=1)

    assert blamed(hang(records_of(4, calls))) == (H3, [killed])


def test_who_has_not_called_is_named() -> None:
    def calls(probe: Probe, rank: int) -> None:
        probe.enter(KIND, 0, 64, 0)
        probe.leave(5)
        if rank not in (2, 5):
            probe.enter(KIND, 0, 64, 10)

    label, suspects = blamed(hang(records_of(8, calls)))
    assert (label, sorted(suspects)) == (H1, [2, 5])


@pytest.mark.parametrize("odd", [("all_gather", 64), (KIND, 32)])
def test_who_called_something_else_is_named_even_when_it_ran_ahead(odd: tuple[str, int]) -> None:
    def calls(probe: Probe, rank: int) -> None:
        kind, count = odd if rank == 3 else (KIND, 64)
        probe.enter(kind, 0, count, 0)
        if rank == 3:  # its smaller call is over, and it waits in the next: all others look late
            probe.leave(1)
            probe.enter(KIND, 0, 64, 2)

    assert blamed(hang(records_of(6, calls))) == (H2, [3])


def test_without_a_majority_nobody_is_cleared() -> None:
    def calls(probe: Probe, rank: int) -> None:
        probe.enter(KIND, 0, 64 + rank, 0)

    assert blamed(hang(records_of(2, calls))) == (H2, [0, 1])


def test_an_operation_that_still_moves_is_slow_and_not_stuck() -> None:
    records, symptom, culprits = modelled(16, H3, seed=0)
    earlier = Records(records.words.copy())
    assert locate(records, symptom, earlier).label == H3
    earlier.words[:, channel_at(0) + SENDS] -= 1
    assert blamed(locate(records, symptom, earlier)) == (S2, culprits)


def test_where_nothing_is_under_way_nobody_is_blamed() -> None:
    assert hang(records_of(4, lambda probe, rank: None)).why == "no operation is under way"


# --------------------------------------------------------------------------------------------------- slow-downs


@given(n=st.integers(2, 16), base=st.floats(1e-3, 10), late=st.floats(0, 10), transfer=st.floats(0, 10), data=st.data())
def test_the_share_is_lateness_over_lateness_plus_transfer(
    n: int, base: float, late: float, transfer: float, data: st.DataObject
) -> None:
    culprit = data.draw(st.integers(0, n - 1))
    took = [base + transfer + (0 if rank == culprit else late) for rank in range(n)]
    if late + transfer > 1e-6 * base:
        assert share(took, base) == pytest.approx(late / (late + transfer), abs=1e-6)


@given(fault=st.sampled_from(CLASSES), n=st.integers(4, 200), seed=st.integers(0, 10_000))
def test_modelled_faults_of_any_size_are_classified_and_located(fault: str, n: int, seed: int) -> None:
    records, symptom, culprits = modelled(n, fault, seed)
    label, suspects = blamed(locate(records, symptom, records))
    assert label == fault
    assert sorted(suspects) == sorted(culprits)


@given(fault=st.sampled_from(CLASSES), seed=st.integers(0, 100), shift=st.integers(-(10**15), 10**15))
def test_no_rank_s_clock_matters(fault: str, seed: int, shift: int) -> None:
    records, symptom, _ = modelled(12, fault, seed)
    moved = Records(records.words.copy())
    skew = np.arange(12) * shift
    for word in (8, 9, *(channel_at(channel) + last for channel in range(4) for last in (5, 6))):
        moved.words[:, word] += skew  # every absolute time of the record
    assert locate(moved, symptom, moved) == locate(records, symptom, records)


def test_the_accounting_of_a_slow_round_adds_up() -> None:
    records, symptom, _ = modelled(8, S3, seed=1)
    found = locate(records, symptom)
    assert sum(found.accounting.values()) == pytest.approx(found.total)
    assert set(found.accounting) == {"late", "transfer"}


def test_two_late_ranks_are_both_named() -> None:
    def calls(probe: Probe, rank: int) -> None:
        for operation, took in enumerate([50] * 5 + [150] * 4):
            late = took == 150 and rank in (1, 4)
            probe.enter(KIND, 0, 64, 1000 * operation)
            probe.leave(1000 * operation + (50 if late else took))

    label, suspects = blamed(slow(records_of(6, calls), base=50e-9))
    assert (label, sorted(suspects)) == (S1, [1, 4])


# ---------------------------------------------------------------------------------------------------- detection


def alarms(durations: list[int], **settings: Any) -> list[Symptom]:
    words = np.zeros(WORDS, np.int64)
    probe, watch, found = Probe(words.data, 0, 1), Watch(**settings), []
    for index, took in enumerate(durations):
        probe.enter(KIND, 0, 64, now=10**6 * index)
        probe.leave(now=10**6 * index + took)
        found += [symptom] if (symptom := watch.look(words, now=float(index))) else []
    return found


def test_three_slow_rounds_in_a_row_raise_one_alarm_and_two_none() -> None:
    assert alarms([100] * 10 + [200] * 2 + [100] * 5) == []
    assert [symptom.operation for symptom in alarms([100] * 10 + [200] * 6)] == [13]


@given(st.integers(0, 50))
def test_jitter_on_one_round_in_twenty_raises_alarms_only_when_one_round_is_enough(seed: int) -> None:
    late = stream(seed, "jitter test").random(200) < 0.05
    late[:8] = False
    runs = np.convolve(late, [1, 1, 1]).max() >= 3
    durations = [200 if hit else 100 for hit in late]
    assert bool(alarms(durations)) == bool(runs)
    assert bool(alarms(durations, repeats=1)) == bool(late.any())


def test_rounds_that_scatter_widely_ask_for_a_slower_round() -> None:
    noisy = [60, 140, 70, 130, 100, 65, 135, 100, 75, 125]
    assert alarms([100] * 10 + [170] * 3) != []
    assert alarms(noisy + [170] * 3) == []
    assert alarms(noisy + [500] * 3) != []


def test_a_lasting_fault_does_not_become_what_is_usual() -> None:
    words = np.zeros(WORDS, np.int64)
    probe, watch = Probe(words.data, 0, 1), Watch()
    for index in range(100):
        probe.enter(KIND, 0, 64, now=10**6 * index)
        probe.leave(now=10**6 * index + (100 if index < 10 else 300))
        watch.look(words, now=float(index))
    assert watch.base() == pytest.approx(100e-9)


def test_a_hang_is_reported_once_after_its_time_and_not_before() -> None:
    words = np.zeros(WORDS, np.int64)
    probe, watch = Probe(words.data, 0, 1), Watch(hang_after=5.0)
    probe.enter(KIND, 0, 64, now=0)
    seen = [watch.look(words, now=t) for t in (0.0, 4.9, 5.1, 9.0)]
    assert [symptom.kind if symptom else None for symptom in seen] == [None, None, "hang", None]


# --------------------------------------------------------------------------------------------- on real processes


def standing(job: RingJob, seconds: float = 1.0) -> Records:
    """The records once nothing has moved for so long."""
    last, since, end = job.records(), time.monotonic(), time.monotonic() + 60
    while time.monotonic() - since < seconds:
        assert time.monotonic() < end, "the job never stood still"
        time.sleep(0.02)
        now = job.records()
        if (now.words != last.words).any():
            last, since = now, time.monotonic()
    return last


def test_real_hangs_are_located_not_entered_mismatched_stopped_and_killed() -> None:
    with RingJob(4, seed=5) as job:
        for number, fault in enumerate((H1, H2, H3)):
            kind = "all_reduce"
            job.start(kind, lab.count_for(kind, 4), rounds=100_000)
            wait_for(lambda: job.rounds >= 3)
            truth = lab.inject(job, fault, kind, stream(number, "test"), lab.WIRE_SECONDS, 0.05)
            assert blamed(hang(standing(job))) == (fault, list(truth.culprits)), truth
            job.abort()
        job.start("all_gather", lab.count_for("all_gather", 4), rounds=100_000)
        wait_for(lambda: job.rounds >= 3)
        lab._signal(job, 2, "SIGKILL")
        assert blamed(hang(standing(job))) == (H3, [2])


def test_a_late_rank_and_a_throttled_sender_are_told_apart_on_real_processes() -> None:
    with RingJob(3, seed=6) as job:
        for fault in (S1, S2):
            job.start("all_reduce", lab.count_for("all_reduce", 3), rounds=100_000)
            wait_for(lambda: job.rounds >= 6)
            usual = float(np.median([job.records().past(k)["duration"] for k in job.records().common(5)])) / 1e9
            if fault == S1:
                job.late(1, 0.6)  # far more than a busy machine adds by itself
            else:
                job.throttle(1, job.rate / 25)
            begun = job.rounds
            wait_for(lambda begun=begun: job.rounds >= begun + 5)
            assert blamed(slow(job.records(), usual)) == (fault, [1])
            job.abort()
            job.heal()


def test_tools_that_do_not_look_inside_miss_what_is_inside() -> None:
    with RingJob(4, seed=7) as job:
        job.start("all_reduce", lab.count_for("all_reduce", 4), rounds=100_000)
        wait_for(lambda: job.rounds >= 3)
        lab._signal(job, 1, "SIGSTOP")
        scene = baselines.Scene(job, Symptom("hang", 0, 4), standing(job))
        named = {name: [s.entity for s in tool(scene).suspects] for name, tool in baselines.TOOLS.items()}
        assert named["state poll"] == named["flight recorder"] == named["validation"] == []
        assert named["connection statistics"] == named["stacks"] == ["1"]
        job.abort()
        job.throttle(2, job.rate / 25)
        scene = baselines.Scene(job, Symptom("slow", 0, 4, 0.05), scene.records)
        assert [s.entity for s in baselines.bisection(scene).suspects] == ["2"]
        assert [s.entity for s in baselines.validation(scene).suspects] == ["2"]


def test_the_host_half_sees_a_rank_that_does_not_call_and_admits_what_it_cannot_see() -> None:
    def calls(probe: Probe, rank: int) -> None:
        probe.enter(KIND, 0, 64, 0)

    everybody = records_of(3, calls)
    assert hang(everybody).suspects == () and "nothing has moved" in hang(everybody).why


# ------------------------------------------------------------------------------------------------ trials and claims


def sighting(named: int, **measured: Any) -> lab.Sighting:
    """A hang of rank 2, blamed on the rank `named`."""
    records, _, _ = modelled(4, H1, seed=0)
    truth = lab.Injected(H1, (2,), KIND, "", 0.0)
    found = Diagnosis((Suspect(str(named), None, 1.0),), label=H1)
    seen: dict[str, Any] = {"delay": 0.9, "pulled": 0.05, "locating": 0.06, "false_alarms": 0, "queued": 0.0} | measured
    return lab.Sighting(truth, Symptom("hang", 0, 4), found, records=records, **seen)


@pytest.mark.parametrize(("named", "after"), [(2, pytest.approx(0.16)), (1, None)])
def test_only_a_hang_whose_rank_was_named_counts_as_named_in_so_many_seconds(
    monkeypatch: pytest.MonkeyPatch, named: int, after: float | None
) -> None:
    monkeypatch.setattr(lab, "incident", lambda *_, **__: sighting(named))
    monkeypatch.setattr(baselines, "TOOLS", {})
    rows = trials._incident(Mock(RingJob), H1, seed=0, turn=0, hang_after=0.8)
    assert rows[f"incident/{H1}/{trials.OURS}/0"]["after_timeout"] == after


def test_a_tool_that_reads_the_same_records_has_them_no_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lab, "incident", lambda *_, **__: sighting(2, pulled=5.0))
    monkeypatch.setattr(baselines, "TOOLS", {name: lambda scene: Diagnosis() for name in baselines.TOOLS})
    rows = trials._incident(Mock(RingJob), H1, seed=0, turn=0, hang_after=0.8)
    waited = {name for name in baselines.TOOLS if rows[f"incident/{H1}/{name}/0"]["seconds"] >= 5.0}
    assert waited == {"state poll", "connection statistics", "flight recorder"}


def incidents(*rows: tuple[str, str, int, bool, float]) -> pl.DataFrame:
    """Rows of (method, fault, turn, named, seconds)."""
    columns = ["method", "fault", "turn", "named", "seconds"]
    table = pl.DataFrame(list(rows), schema=columns, orient="row")
    ours = pl.when(pl.col("method") == trials.OURS).then(0.05)  # only of ours it is known how long ranks waited
    table = table.with_columns(queued=ours, right=pl.col("named"))
    return table.with_columns(experiment=pl.lit("incident"), seed=7, after_timeout=pl.lit(None, pl.Float64))


def answer(name: str) -> Claim:
    return next(claim for claim in ccl_d.claims if claim.id == name)


def test_where_no_hang_is_named_rightly_the_seconds_are_not_measured() -> None:
    table = incidents((trials.OURS, H1, 0, False, 0.1), ("bisection", H1, 0, True, 0.1))
    with pytest.raises(NotMeasured, match="no hang was named"):
        ccl_d.total(table)
    with pytest.raises(NotMeasured):
        answer("sooner").measure(table)


def test_the_papers_own_time_out_is_no_measurement() -> None:
    assert "own time-out" in answer("seconds").construction
    hangs = incidents(*((trials.OURS, H1, turn, True, 0.1) for turn in range(3))).with_columns(after_timeout=0.2)
    assert answer("after-timeout").measure(hangs).value == pytest.approx(0.2)  # what is left without it
    assert answer("seconds").measure(hangs).value == pytest.approx(300.2)


def test_sooner_than_existing_tools_means_sooner_than_each_of_them() -> None:
    ours = [(trials.OURS, S2, turn, True, 1.0) for turn in range(4)]
    slow_tool = [("bisection", S2, turn, True, 50.0) for turn in range(4)]
    quick_tool = [("stacks", S2, turn, turn < 3, 0.5) for turn in range(4)]  # fails once: that one does not count
    found = answer("sooner").measure(incidents(*ours, *slow_tool, *quick_tool))
    assert (found.value, found.n, found.cases) == (0.5, 3, "stacks, of 2 cases")


def test_coverage_is_compared_with_the_tool_that_names_most_on_the_same_incidents() -> None:
    rows = [(trials.OURS, S1, turn, True, 1.0) for turn in range(6)]
    named = {"bisection": 1, "stacks": 4}
    rows += [(name, S1, turn, turn < named.get(name, 0), 1.0) for name in baselines.TOOLS for turn in range(6)]
    found = answer("beyond-tools").measure(incidents(*rows))
    assert (found.value, found.n, found.cases) == (pytest.approx(2 / 6), 6, "stacks, of 6 tools")


@pytest.mark.parametrize("name", ["coverage", "beyond-tools"])
@pytest.mark.parametrize("named", [True, False])
def test_incidents_on_a_crowded_machine_count_neither_for_nor_against(name: str, named: bool) -> None:
    rows = [(method, S1, turn, named, 1.0) for method in (trials.OURS, *baselines.TOOLS) for turn in range(6)]
    assert answer(name).measure(incidents(*rows)).n == 6
    crowded = incidents(*rows).with_columns(pl.col("queued") * 4)
    with pytest.raises(NotMeasured, match=r"too busy \(ranks waited 20% of the time for a processor"):
        answer(name).measure(crowded)


def test_one_alarm_in_a_round_without_a_fault_is_a_counterexample() -> None:
    rows = {"experiment": "quiet", "method": ["1 in a row", "3 in a row"], "rounds": 40, "seed": 7, "queued": 0.03}
    calm = pl.DataFrame(rows | {"false_alarms": [3, 0]})
    assert answer("quiet").measure(calm).value == 1.0
    found = answer("quiet").measure(calm.with_columns(false_alarms=1))
    assert found.value < 1.0 and found.cases == "1 alarms in 40 rounds"
    for alarms in (0, 1):  # whatever was seen
        with pytest.raises(NotMeasured, match=r"too busy \(ranks waited 20% of the time"):
            answer("quiet").measure(calm.with_columns(false_alarms=alarms, queued=0.2))


@pytest.mark.parametrize(("queued", "kept"), [([0.05], 0), ([0.3, 0.05], 1), ([0.3, 0.2, 0.25], 1)])
def test_quiet_rounds_are_watched_again_while_ranks_wait_for_a_processor(
    queued: list[float], kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = [{"row": {"queued": share, "false_alarms": number}} for number, share in enumerate(queued)]
    again = iter(tries[1:])
    monkeypatch.setattr(trials, "_quiet", lambda job, seed, rounds: next(again))
    assert trials._calmest(tries[0], None, seed=3, rounds=40) == tries[kept]  # type: ignore[arg-type]
    assert list(again) == []


def test_rounds_that_scatter_as_much_as_what_was_injected_tell_no_split() -> None:
    rows = {"experiment": "split", "share_error": [0.01, 0.30], "seed": [7, 1000]}
    assert answer("split").measure(pl.DataFrame(rows | {"noise": 0.01})).value == pytest.approx(0.155)
    with pytest.raises(NotMeasured, match=r"too busy \(rounds scatter by 20% of what was injected\)"):
        answer("split").measure(pl.DataFrame(rows | {"noise": [0.01, 0.2]}))


@pytest.mark.parametrize(
    ("noises", "kept"), [([0.01], 0.01), ([0.2, 0.02], 0.02), ([0.3, 0.1, 0.2], 0.1)], ids=["calm", "again", "never"]
)
def test_the_steadiest_split_counts_whatever_it_found(
    noises: list[float], kept: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = list(noises)
    monkeypatch.setattr(lab, "split", lambda job, seed, turn, rounds: lab.Split(1 - left[0], 0.06, 0.06, left.pop(0)))
    (row,) = trials._split(None, seed=3, turn=0).values()  # type: ignore[arg-type]
    assert not left and row["noise"] == kept
    assert row["share_error"] == pytest.approx(abs((1 - kept) / 0.5 - 1))


def test_a_team_meets_every_fault_once_and_the_one_a_rank_may_die_of_comes_last() -> None:
    assert sorted(fault for job in trials.SHARED for fault in job) == sorted(CLASSES)
    assert next(job for job in trials.SHARED if H3 in job)[-1] == H3


@pytest.mark.parametrize("seeds", [(12345, 7, 99), (1000,)])
def test_the_given_seeds_are_the_ones_that_run(monkeypatch: pytest.MonkeyPatch, seeds: tuple[int, ...]) -> None:
    ran = []

    def launch(seed: int, **case: Any) -> dict[str, dict[str, Any]]:
        ran.append(seed)
        return {f"incident/{H1}/{trials.OURS}/{turn}": {"named": True} for turn in range(2)}

    launch.__module__, launch.__qualname__ = trials.__name__, "launch"
    monkeypatch.setattr(trials, "launch", launch)
    job = Lab("ccl-d", seeds=seeds)
    table = joined(ccl_d.study(job))
    assert tuple(ran) == seeds[:1] and job.used == set(seeds[:1])
    assert table.select("experiment", "fault", "method", "turn", "seed").row(0)[:4] == ("incident", H1, "ccl-d", "0")


def test_waiting_for_more_rounds_is_part_of_locating_and_not_of_noticing(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []

    def settle(job: RingJob, symptom: Symptom, real: Any = lab._settle) -> None:
        begin = time.perf_counter()
        real(job, symptom)
        waited.append(time.perf_counter() - begin)

    monkeypatch.setattr(lab, "_settle", settle)
    with RingJob(3, seed=8) as job:
        seen = lab.incident(job, H1, seed=8, hang_after=0.8)
        job.abort()
    assert seen.symptom is not None and 0 < waited[0] <= seen.locating


@pytest.mark.timed
def test_a_decision_over_4000_ranks_takes_less_than_150_ms() -> None:
    for fault in CLASSES:
        records, symptom, _ = modelled(4_000, fault, seed=0)
        begin = time.perf_counter()
        locate(records, symptom, records)
        assert time.perf_counter() - begin < 0.15


@pytest.mark.slow
def test_six_classes_on_eight_ranks_are_right_in_nineteen_of_twenty() -> None:
    classes = ranks = total = 0
    for seed in range(10):
        with RingJob(8, seed=seed) as job:
            for fault in sorted(CLASSES, key=lambda name: name == H3):
                seen = lab.incident(job, fault, seed, hang_after=4.0, wire=0.06)
                classes, ranks, total = classes + seen.classified, ranks + seen.named, total + 1
                job.abort()
                job.heal()
    assert total == 60
    assert classes / total >= 0.95 and ranks / total >= 0.95


@pytest.mark.slow
def test_ten_minutes_without_a_fault_raise_no_alarm() -> None:
    with RingJob(4, seed=0) as job:
        assert lab.quiet(job, seed=0, rounds=7_500, jitter=0.0, wire=0.06)[3] == 0
