"""The frontier: exact accounting, and the rank and stage where the group's delay began."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from assay.observe.frontier.diagnosis import between_syncs, diagnose, frontier, rise
from assay.record.errors import BadInput
from assay.sim.random import stream
from tests.oracles import frontier as oracle

MS = 10**6
STAGES = ("data", "forward", "backward", "sync", "optimizer", "checkpoint", "other")
BASE = np.array([4, 8, 12, 1, 3, 3, 0]) * MS
windows = arrays(
    np.int64, st.tuples(st.integers(1, 6), st.integers(1, 6), st.integers(1, 6)), elements=st.integers(0, 10**12)
)


def job(
    seed: int = 0,
    steps: int = 20,
    ranks: int = 4,
    noise: float = 0.01,
    extra: dict[tuple[int, str], float] | None = None,
) -> np.ndarray:
    """What ranks record that wait for each other in `sync`: base times, noise, and what some ranks lose where."""
    own = np.tile(BASE, (steps, ranks, 1)) * (1 + noise * np.abs(stream(seed, "job").normal(size=(steps, ranks, 7))))
    for (rank, stage), seconds in (extra or {}).items():
        own[:, rank, STAGES.index(stage)] += seconds * 1e9
    return recorded(own)


def recorded(own: np.ndarray) -> np.ndarray:
    """What ranks note that need so long for their own work and wait for each other in `sync`."""
    noted, late = [], [0] * own.shape[1]
    for step in own.astype(np.int64).tolist():
        rows, late = oracle.synchronised(step, STAGES.index("sync"), late)
        noted.append(rows)
    return np.array(noted, np.int64)


# ------------------------------------------------------------------------------------------ the accounting


@settings(deadline=None)
@given(windows, st.data())
def test_the_fast_frontier_is_the_slow_one(d: np.ndarray, data: st.DataObject) -> None:
    valid = data.draw(arrays(bool, d.shape[:2]))
    fast = frontier(d, valid)
    for w in range(len(d)):
        advances, leaders, slack = oracle.frontier(d[w].tolist(), valid[w].tolist())
        assert fast.advances[w].tolist() == advances
        assert fast.leaders[w].tolist() == leaders
        assert fast.slack[w].tolist() == slack


@settings(deadline=None)
@given(windows)
def test_advances_are_not_negative_and_add_up_to_the_slowest_rank_exactly(d: np.ndarray) -> None:
    advances = frontier(d).advances
    assert (advances >= 0).all()
    assert advances.sum(1).tolist() == d.sum(2).max(1).tolist()


@settings(deadline=None)
@given(windows)
def test_maxima_count_at_least_as_much_as_there_was(d: np.ndarray) -> None:
    assert (d.max(1).sum(1) >= frontier(d).advances.sum(1)).all()


@settings(deadline=None)
@given(windows, st.randoms(use_true_random=False))
def test_the_order_of_ranks_does_not_matter(d: np.ndarray, random: object) -> None:
    order = list(range(d.shape[1]))
    random.shuffle(order)  # type: ignore[attr-defined]
    assert np.array_equal(frontier(d[:, order]).advances, frontier(d).advances)


@settings(deadline=None)
@given(windows, st.integers(1, 1000))
def test_twice_the_time_is_twice_the_advance(d: np.ndarray, factor: int) -> None:
    assert np.array_equal(frontier(d * factor).advances, frontier(d).advances * factor)


@settings(deadline=None)
@given(windows, st.data())
def test_two_stages_in_one_have_both_their_advances(d: np.ndarray, data: st.DataObject) -> None:
    if d.shape[2] < 2:
        return
    s = data.draw(st.integers(0, d.shape[2] - 2))
    merged = np.concatenate([d[:, :, :s], d[:, :, s : s + 1] + d[:, :, s + 1 : s + 2], d[:, :, s + 2 :]], axis=2)
    apart = frontier(d).advances
    assert frontier(merged).advances[:, s].tolist() == (apart[:, s] + apart[:, s + 1]).tolist()


@settings(deadline=None)
@given(windows, st.data())
def test_a_rank_that_is_never_last_changes_nothing(d: np.ndarray, data: st.DataObject) -> None:
    ahead = data.draw(st.integers(0, d.shape[1] - 1))
    more = np.concatenate([d, d[:, ahead : ahead + 1] // 2], axis=1)
    assert np.array_equal(frontier(more).advances, frontier(d).advances)


@settings(deadline=None)
@given(windows)
def test_an_advance_is_the_longest_stage_time_that_no_entry_slack_covers(d: np.ndarray) -> None:
    advances, _, slack = frontier(d)
    entry = np.concatenate([np.zeros_like(slack[:, :, :1]), slack[:, :, :-1]], axis=2)
    assert np.array_equal((d - entry).max(1), advances)


def test_a_rank_that_did_not_report_is_left_out_and_not_taken_for_zero() -> None:
    d = np.array([[[5, 5], [9, 9]]])
    front = frontier(d, [[True, False]])
    assert front.advances.tolist() == [[5, 5]]
    assert front.slack[0, 1].tolist() == [-1, -1]


@pytest.mark.parametrize(
    ("d", "valid", "why"),
    [(np.zeros((2, 2), int), None, "axes"), (np.zeros((1, 1, 1)), None, "whole nanoseconds"),
     (np.array([[[1, -1]]]), None, "step 0, rank 0, stage 1"), (np.zeros((2, 2, 2), int), [[True]], "mask")],
)  # fmt: skip
def test_what_is_no_window_is_refused_in_one_line(d: np.ndarray, valid: object, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        frontier(d, valid)  # type: ignore[arg-type]


@pytest.mark.timed
def test_a_thousand_ranks_and_steps_take_less_than_fifty_milliseconds() -> None:
    d = stream(0, "speed").integers(0, 10**7, (1000, 1000, 6))
    frontier(d[:2])
    best = 1.0
    for _ in range(5):
        start = time.perf_counter()
        frontier(d)
        best = min(best, time.perf_counter() - start)
    assert best < 0.05


# ------------------------------------------------------------------------------------------ the diagnosis


@pytest.mark.parametrize("stage", ["data", "forward", "backward", "optimizer", "checkpoint", "other"])
@pytest.mark.parametrize("delay", [0.0015, 0.003, 0.03])
def test_a_delay_is_found_in_its_stage_and_on_its_rank_wherever_the_waiting_shows(stage: str, delay: float) -> None:
    found = diagnose(job(1, extra={(2, stage): delay}), STAGES, job(2))
    first = found.suspects[0]
    assert (first.entity, first.indicator, first.label, found.label) == ("2", stage, "confirmed", "confirmed")
    assert first.score == pytest.approx(delay, rel=0.2)
    assert "rank 2" in first.next


@pytest.mark.parametrize("stage", ["data", "forward", "backward", "optimizer", "checkpoint"])
def test_without_a_reference_ranks_are_compared_with_each_other(stage: str) -> None:
    found = diagnose(job(1, extra={(3, stage): 0.006}), STAGES)
    assert (found.suspects[0].entity, found.suspects[0].indicator) == ("3", stage)
    assert found.label == "confirmed"


@given(st.integers(0, 10**6), st.sampled_from(STAGES), st.integers(0, 3), st.floats(0, 0.05))
@settings(max_examples=30, deadline=None)
def test_the_accounting_adds_up_to_the_time_between_synchronisations(
    seed: int, stage: str, rank: int, delay: float
) -> None:
    d = job(seed, steps=8, extra={(rank, stage): delay})
    found = diagnose(d, STAGES, job(seed + 1, steps=8))
    rows = np.concatenate([d[:-1, :, 4:], d[1:, :, :4]], axis=2)
    assert sum(found.accounting.values()) == found.total == float(rows.sum(2).max(1).sum())
    assert list(found.accounting) == list(STAGES)


def test_a_delay_behind_the_synchronisation_is_not_blamed_on_those_who_wait_in_the_next_step() -> None:
    d, usual = job(1, extra={(1, "optimizer"): 0.01}), job(2)
    plain = frontier(d).advances.mean(0) - frontier(usual).advances.mean(0)
    assert STAGES[int(plain.argmax())] == "sync"  # the recorded step, as it is
    assert diagnose(d, STAGES, usual).suspects[0].indicator == "optimizer"


def test_rows_end_where_the_ranks_are_together() -> None:
    d = job(3, extra={(0, "checkpoint"): 0.02, (2, "data"): 0.01})
    rows = between_syncs(d, np.ones(d.shape[:2], bool), STAGES, ["sync"])
    assert rows.stages[-1] == "sync"
    lengths = rows.durations.sum(2)
    assert (lengths == lengths[:, :1]).all()


def test_two_ranks_that_stall_alike_in_different_stages_are_co_critical_and_both_named() -> None:
    found = diagnose(job(1, extra={(1, "data"): 0.01, (2, "forward"): 0.01}), STAGES, job(2))
    assert found.label == "co-critical"
    assert all(suspect.label != "confirmed" for suspect in found.suspects)
    assert {(s.entity, s.indicator) for s in found.suspects[:2]} == {("1", "data"), ("2", "forward")}


def test_two_ranks_that_stall_alike_in_one_stage_are_co_critical() -> None:
    found = diagnose(job(1, extra={(1, "data"): 0.01, (3, "data"): 0.01}), STAGES, job(2))
    assert found.label == "co-critical"
    assert {suspect.entity for suspect in found.suspects[:2]} == {"1", "3"}


def test_a_stage_that_is_slower_on_all_ranks_is_shared() -> None:
    found = diagnose(job(1, extra={(r, "forward"): 0.01 for r in range(4)}), STAGES, job(2))
    assert (found.label, found.suspects[0].indicator) == ("shared", "forward")


def test_a_slow_transfer_is_shared_and_asks_for_the_collective_library() -> None:
    found = diagnose(job(1, extra={(r, "sync"): 0.01 for r in range(4)}), STAGES, job(2))
    assert (found.label, found.suspects[0].indicator) == ("shared", "sync")
    assert "flight recorder" in found.suspects[0].next


def test_where_the_wait_is_part_of_backward_a_slow_backward_pass_has_no_rank_and_says_so() -> None:
    def merged(d: np.ndarray) -> np.ndarray:
        return np.concatenate([d[:, :, :2], d[:, :, 2:3] + d[:, :, 3:4], d[:, :, 4:]], axis=2)

    stages = tuple(name for name in STAGES if name != "sync")
    found = diagnose(merged(job(1, extra={(1, "backward"): 0.01})), stages, merged(job(2)))
    assert (found.label, found.suspects[0].indicator) == ("co-critical", "backward")
    unseen = diagnose(merged(job(1, extra={(1, "backward"): 0.01})), stages)
    assert not unseen.suspects and "backward holds the wait too" in unseen.why
    stalled = diagnose(merged(job(1, extra={(1, "data"): 0.01})), stages, merged(job(2)))
    assert (stalled.label, stalled.suspects[0].entity, stalled.suspects[0].indicator) == ("confirmed", "1", "data")


def test_a_healthy_window_has_no_suspects_and_still_an_accounting() -> None:
    silent = 0
    for seed in range(40):
        found = diagnose(job(2 * seed), STAGES, job(2 * seed + 1))
        silent += not found.suspects
        assert found.total is not None
        assert found.suspects or "noise" in found.why
    assert silent >= 36


@pytest.mark.parametrize(("now", "before", "most"), [(6, 6, 0.006), (6, 60, 0.015), (20, 100, 0.006)])
def test_noise_alone_is_seldom_taken_for_a_rise_however_short_the_window(now: int, before: int, most: float) -> None:
    """Two tests of one in 740 each; the median's of six samples is the rougher one."""
    noise = stream(now, "rise", str(before))
    _, loud = rise(noise.normal(size=(now, 20_000)), noise.normal(size=(before, 20_000)))
    assert loud.mean() < most


def test_a_hiccup_of_another_rank_does_not_hide_a_delay_of_every_step() -> None:
    d = job(1, extra={(2, "forward"): 0.003})
    d[7, 0, 1] += 80 * MS
    d[7, 1:, 3] += 80 * MS - 3 * MS
    found = diagnose(d, STAGES, job(2))
    assert (found.suspects[0].entity, found.suspects[0].indicator) == ("2", "forward")


def test_a_delay_now_and_then_is_found_too() -> None:
    own = {step: job(step, steps=2, extra={(1, "checkpoint"): 0.06} if step % 3 == 0 else None) for step in range(20)}
    d = np.concatenate([own[step] for step in range(20)])
    found = diagnose(d, STAGES, job(99, steps=40))
    assert ("1", "checkpoint") in [(s.entity, s.indicator) for s in found.suspects[:2]]


def now_and_then(late: range, rank: int, stage: str, delay: float, seed: int = 1, steps: int = 51) -> np.ndarray:
    """A job in which one rank is late in some steps only."""
    own = np.tile(BASE, (steps, 4, 1)) * (1 + 0.01 * np.abs(stream(seed, "few").normal(size=(steps, 4, 7))))
    own[list(late), rank, STAGES.index(stage)] += delay * 1e9
    return recorded(own)


@pytest.mark.parametrize("compared", [True, False])
@pytest.mark.parametrize("stage", ["data", "backward", "checkpoint", "other"])
@pytest.mark.parametrize(("every", "label"), [(8, "confirmed"), (15, "seldom")])
def test_one_rank_that_is_late_every_few_steps_is_the_first_suspect_and_too_few_are_called_seldom(
    every: int, label: str, stage: str, compared: bool
) -> None:
    d = now_and_then(range(4, 50, every), 2, stage, 0.2)
    found = diagnose(d, STAGES, job(2, steps=60) if compared else None)
    first = found.suspects[0]
    assert (first.entity, first.indicator, found.label) == ("2", stage, label)


def test_a_delay_of_every_step_is_not_called_seldom_however_short_and_noisy_the_window() -> None:
    windows = [job(seed, steps=7, noise=0.3, extra={(2, "forward"): 0.015}) for seed in range(40)]
    labels = [diagnose(window, STAGES, job(99, steps=40, noise=0.3)).label for window in windows]
    assert "seldom" not in labels and labels.count("confirmed") > 20


@pytest.mark.parametrize("compared", [True, False])
@pytest.mark.parametrize(("delay", "named"), [(0.01, []), (2.0, [("2", "other", "seldom")])])
def test_one_pause_is_named_where_much_of_the_time_went_there(
    delay: float, named: list[object], compared: bool
) -> None:
    d = now_and_then(range(20, 21), 2, "other", delay)
    found = diagnose(d, STAGES, job(2, steps=60) if compared else None)
    assert [(s.entity, s.indicator, s.label) for s in found.suspects[:1]] == named


@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_of_ranks_that_are_alike_nobody_is_named_for_being_the_slowest_of_a_step(ranks: int) -> None:
    """Somebody always is: the largest of a few lies above their median in every row."""
    named = sum(bool(diagnose(job(seed, steps=50, ranks=ranks, noise=0.05), STAGES).suspects) for seed in range(40))
    assert named <= 4


def test_a_trouble_that_goes_from_rank_to_rank_is_named_and_nobody_confirmed() -> None:
    own = np.tile(BASE, (48, 4, 1)) * (1 + 0.01 * np.abs(stream(5, "turns").normal(size=(48, 4, 7))))
    for step in range(48):
        own[step, step // 12, 1] += 20 * MS
    found = diagnose(recorded(own), STAGES)
    assert {(s.entity, s.indicator) for s in found.suspects[:4]} == {(str(rank), "forward") for rank in range(4)}
    assert "confirmed" not in {s.label for s in found.suspects}


def test_only_one_rank_is_confirmed_in_a_stage() -> None:
    d = job(1, steps=40, noise=0.2, extra={(2, "forward"): 0.004})
    labels = {s.entity: s.label for s in diagnose(d, STAGES, job(2, steps=40, noise=0.2)).suspects}
    assert labels == {"2": "confirmed", "0": "co-critical"}  # rank 0 led a few steps


def test_hiccups_of_any_rank_confirm_nobody() -> None:
    """Heavy tails on all ranks alike; a rank may have a few in one stage, and is then not called sure."""
    confirmed = seldom = 0
    for seed in range(60):
        noise = stream(seed, "hiccups")
        own = np.tile(BASE, (50, 4, 1)).astype(float)
        own += (noise.random(own.shape) < 0.01) * np.minimum(noise.pareto(1.5, own.shape) * 3 * MS, 500 * MS)
        label = diagnose(recorded(own), STAGES).label
        confirmed, seldom = confirmed + (label == "confirmed"), seldom + (label == "seldom")
    assert (confirmed, seldom <= 5) == (0, True)


@given(st.integers(0, 10**6), st.sampled_from(["checkpoint", "other"]), st.integers(0, 3), st.floats(0.05, 1.0))
@settings(max_examples=30, deadline=None)
def test_what_a_rank_does_before_a_steps_first_batch_is_counted_once_and_is_its_own(
    seed: int, stage: str, rank: int, delay: float
) -> None:
    """An evaluation or a checkpoint between two epochs: noted by the step that begins, waited for in its `sync`."""
    behind, at = now_and_then(range(6, 50, 8), rank, stage, delay, seed), STAGES.index(stage)
    noted, spent = behind.copy(), int(delay * 1e9)
    for step in range(6, 50, 8):  # the same job; only the loop's mark lies before the pause instead of after it
        noted[step, rank, at] -= spent
        noted[step + 1, rank, at] += spent
    found, truth = diagnose(noted, STAGES), diagnose(behind, STAGES)
    assert found.total == pytest.approx(truth.total, rel=0.01)
    assert [(s.entity, s.indicator) for s in found.suspects[:1]] == [(str(rank), stage)]
    assert sum(found.accounting.values()) == found.total


def test_ranks_whose_steps_do_not_end_together_are_unaligned() -> None:
    d, usual = np.tile(BASE, (20, 4, 1)), np.tile(BASE, (20, 4, 1))
    d[:, 2, 0] += 20 * MS  # nobody waits for rank 2
    found = diagnose(d, STAGES, usual)
    assert found.label == "unaligned"
    assert all(suspect.label == "unaligned" for suspect in found.suspects)


def test_ranks_that_differ_by_design_are_told_apart_from_a_fault() -> None:
    usual = job(1, extra={(r, "forward"): 0.02 for r in (2, 3)})
    now = job(2, extra={(2, "forward"): 0.03, (3, "forward"): 0.02})
    assert diagnose(now, STAGES, usual).label == "role-heterogeneous"
    found = diagnose(now, STAGES, usual, roles=["a", "a", "b", "b"])
    assert (found.label, found.suspects[0].entity, found.suspects[0].indicator) == ("confirmed", "2", "forward")
    alone = diagnose(now, STAGES, roles=["a", "a", "b", "b"])
    assert (alone.suspects[0].entity, alone.suspects[0].indicator) == ("2", "forward")


def test_work_that_is_only_launched_is_device_deferred() -> None:
    found = diagnose(job(1, extra={(1, "backward"): 0.01}), STAGES, job(2), deferred=["forward"])
    assert found.label == "device-deferred"
    assert diagnose(job(1, extra={(1, "data"): 0.01}), STAGES, job(2), deferred=["forward"]).label == "confirmed"


def test_missing_steps_are_incomplete_and_do_not_change_who_leads() -> None:
    d, usual = job(1, extra={(2, "data"): 0.01}), job(2)
    valid = np.ones((20, 4), bool)
    valid[::5, 0] = False
    d[~valid] = 0
    found = diagnose(d, STAGES, usual, valid=valid)
    assert (found.label, found.suspects[0].entity, found.suspects[0].indicator) == ("incomplete", "2", "data")
    nothing = diagnose(d, STAGES, usual, valid=np.zeros((20, 4), bool))
    assert (nothing.label, nothing.suspects) == ("incomplete", ())
    assert nothing.why


def test_a_lone_step_and_a_lone_rank_get_an_answer_and_no_error() -> None:
    one_step = diagnose(job(1, steps=1), STAGES)
    assert sum(one_step.accounting.values()) == one_step.total
    one_rank = diagnose(job(1, ranks=1), STAGES, job(2, ranks=1))
    assert sum(one_rank.accounting.values()) == one_rank.total


def test_ranks_go_by_the_names_they_were_given() -> None:
    found = diagnose(job(1, extra={(2, "data"): 0.01}), STAGES, job(2), ranks=[8, 9, 10, 11])
    assert found.suspects[0].entity == "10"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [({"stages": ("data",)}, "stages are named"), ({"reference": job(0, ranks=3)}, "reference"),
     ({"synchronising": ["nothing"]}, "no stage 'nothing'"), ({"deferred": ["nothing"]}, "no stage 'nothing'")],
)  # fmt: skip
def test_what_does_not_fit_together_is_refused_in_one_line(arguments: dict[str, object], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        diagnose(job(0), **({"stages": STAGES} | arguments))  # type: ignore[arg-type]


@given(windows, st.booleans())
@settings(max_examples=100, deadline=None)
def test_any_durations_give_a_diagnosis_whose_accounting_adds_up(d: np.ndarray, compared: bool) -> None:
    found = diagnose(d, STAGES[: d.shape[2]], d[::-1] if compared else None)
    assert sum(found.accounting.values()) == found.total
    assert all(np.isfinite(suspect.score) for suspect in found.suspects)


@given(st.integers(0, 10**6), st.sampled_from(["data", "forward", "optimizer"]), st.integers(0, 3))
@settings(max_examples=25, deadline=None)
def test_what_noise_may_explain_is_ranked_only_where_asked_and_never_above_what_it_does_not(
    seed: int, stage: str, rank: int
) -> None:
    quiet, late = job(seed), job(seed + 1, extra={(rank, stage): 0.006})
    assert all(suspect.label != "unsure" for suspect in diagnose(late, STAGES, quiet).suspects)
    found = diagnose(late, STAGES, quiet, unsure=True)
    assert (found.suspects[0].entity, found.suspects[0].indicator) == (str(rank), stage)
    sure = [suspect for suspect in found.suspects if suspect.label != "unsure"]
    assert tuple(sure) == diagnose(late, STAGES, quiet).suspects == found.suspects[: len(sure)]


@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("stage", ["data", "optimizer"])
def test_what_a_rank_costs_the_group_does_not_depend_on_how_many_there_are(ranks: int, stage: str) -> None:
    """Of two ranks the middle lies halfway: half of the loss would be told."""
    rng = np.random.default_rng(4)
    own = rng.normal(20e6, 0.2e6, (40, ranks, 4)).astype(np.int64)
    names = ["data", "forward", "sync", "optimizer"]
    own[:, :, 2] = 1_000_000
    own[:, ranks - 1, names.index(stage)] += 30_000_000
    entry = own[:, :, :2].sum(2) + (np.roll(own[:, :, 3], 1, axis=0))
    own[:, :, 2] += entry.max(1, keepdims=True) - entry  # all leave the synchronisation together
    first = diagnose(own, names).suspects[0]
    assert (first.entity, first.indicator, first.label) == (str(ranks - 1), stage, "confirmed")
    assert first.score == pytest.approx(0.03, rel=0.03)


def test_two_equal_ranks_are_seldom_blamed_for_their_noise() -> None:
    blamed = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        own = rng.normal(20e6, 1e6, (30, 2, 3)).astype(np.int64)
        own[:, :, 2] = 1_000_000
        entry = own[:, :, :2].sum(2)
        own[:, :, 2] += entry.max(1, keepdims=True) - entry
        blamed += diagnose(own, ["data", "forward", "sync"]).label == "confirmed"
    assert blamed <= 2
