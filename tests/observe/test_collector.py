"""What a rank records: every instant in one stage, windows that never block the job, bytes that survive the way."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.observe.frontier import collector as module
from assay.observe.frontier.collector import STAGES, Collector, Vectors, frame, gather
from assay.observe.frontier.vectors import MAX_CELLS, window_of
from assay.record.errors import BadInput


class Clock:
    """A clock that moves when told to."""

    def __init__(self) -> None:
        self.now = 1_000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "perf_counter_ns", clock)
    return clock


def row(collector: Collector) -> dict[str, int]:
    vectors = collector.take()
    assert vectors is not None
    return dict(zip(vectors.stages, vectors.durations[-1].tolist(), strict=True))


def test_what_no_stage_covers_goes_to_other_so_that_a_row_is_the_step_time(clock: Clock) -> None:
    collector = Collector(0, 1)
    clock.now += 3
    with collector.stage("data"):
        clock.now += 5
    clock.now += 7
    collector.step()
    assert row(collector) == dict.fromkeys(STAGES, 0) | {"data": 5, "other": 10}


def test_a_repeated_stage_is_summed_into_its_slot(clock: Clock) -> None:
    collector = Collector(0, 1)
    for _ in range(3):
        with collector.stage("forward"):
            clock.now += 2
    collector.step()
    assert row(collector)["forward"] == 6


def test_a_nested_stage_takes_its_time_out_of_the_one_around_it(clock: Clock) -> None:
    collector = Collector(0, 1)
    with collector.stage("backward"):
        clock.now += 10
        with collector.stage("optimizer"):
            clock.now += 4
            with collector.stage("backward"):  # the same stage again, inside
                clock.now += 1
        clock.now += 2
    collector.step()
    found = row(collector)
    assert (found["backward"], found["optimizer"], sum(found.values())) == (13, 4, 17)


def test_a_stage_left_by_an_exception_is_closed(clock: Clock) -> None:
    collector = Collector(0, 1)
    with pytest.raises(ZeroDivisionError), collector.stage("forward"):
        clock.now += 2
        raise ZeroDivisionError
    clock.now += 9
    collector.step()
    assert row(collector)["other"] == 9


def test_a_stage_begun_by_a_hook_and_never_ended_ends_with_the_one_around_it(clock: Clock) -> None:
    collector = Collector(0, 1)
    with collector.stage("backward"):
        clock.now += 2
        collector.begin(collector.index("optimizer"))
        clock.now += 3
    clock.now += 4
    collector.end(collector.index("checkpoint"))  # never begun: changes nothing
    clock.now += 5
    collector.step()
    assert row(collector) == dict.fromkeys(STAGES, 0) | {"backward": 2, "optimizer": 3, "other": 9}


def test_begins_without_ends_do_not_pile_up(clock: Clock) -> None:
    collector = Collector(0, 1)
    for _ in range(100):
        collector.begin(0)
        collector.step()
    collector.now()
    assert len(collector._open) <= 17


def test_a_stage_open_over_a_steps_end_is_split_between_the_two(clock: Clock) -> None:
    collector = Collector(0, 1)
    with collector.stage("data"):
        clock.now += 3
        collector.step()
        clock.now += 4
    collector.step()
    vectors = collector.take()
    assert vectors is not None
    assert vectors.durations[:, 0].tolist() == [3, 4]


def test_what_came_before_the_start_is_no_steps_time(clock: Clock) -> None:
    collector = Collector(0, 1)
    clock.now += 10**9
    collector.start()
    clock.now += 5
    collector.step()
    assert sum(row(collector).values()) == 5


@given(
    st.lists(st.tuples(st.sampled_from(["begin", "end", "step"]), st.integers(0, 5), st.integers(0, 99)), max_size=60)
)
def test_whatever_a_job_does_every_nanosecond_is_in_exactly_one_stage(calls: list[tuple[str, int, int]]) -> None:
    clock, patch = Clock(), pytest.MonkeyPatch()
    patch.setattr(module, "perf_counter_ns", clock)
    try:
        collector = Collector(0, 1)
        begin = last = clock.now
        for call, stage, passes in calls:
            clock.now += passes
            if call == "step":
                collector.step()
                last = clock.now
            else:
                getattr(collector, call)(stage)
        vectors = collector.take()
        assert (0 if vectors is None else int(vectors.durations.sum())) == last - begin
    finally:
        patch.undo()


@given(st.lists(st.tuples(st.sampled_from(["begin", "end", "step", "start", "take"]), st.integers(0, 5)), max_size=60))
def test_how_often_somebody_reads_changes_no_row(calls: list[tuple[str, int]]) -> None:
    clock, patch = Clock(), pytest.MonkeyPatch()
    patch.setattr(module, "perf_counter_ns", clock)
    try:
        often, once = Collector(0, 1), Collector(0, 1)
        rows: list[list[int]] = []
        for call, stage in calls:
            clock.now += 1 + stage
            if call == "take":
                assert often.now()[0] == often.steps
                rows += block.durations.tolist() if (block := often.take()) else []
                continue
            for collector in (often, once):
                getattr(collector, call)(*([stage] if call in ("begin", "end") else []))
        rows += block.durations.tolist() if (block := often.take()) else []
        whole = once.take()
        assert rows == (whole.durations.tolist() if whole else [])
        assert often.now() == once.now() and often.doing() == once.doing()
    finally:
        patch.undo()


def test_steps_come_out_once_in_order_and_as_many_as_are_asked_for(clock: Clock) -> None:
    collector = Collector(2, 4)
    for step in range(8):
        clock.now += step
        collector.step()
    taken = [collector.take(3) for _ in range(4)]
    assert [(v.first_step, v.durations[:, -1].tolist()) for v in taken if v] == [
        (0, [0, 1, 2]),
        (3, [3, 4, 5]),
        (6, [6, 7]),
    ]
    clock.now += 100
    collector.step()
    after = collector.take()
    assert after is not None
    assert (after.first_step, after.durations[:, -1].tolist()) == (8, [100])
    assert collector.take() is None


def test_steps_that_nobody_reads_in_time_are_pushed_out_whole_and_counted(clock: Clock) -> None:
    collector = Collector(0, 1)
    many = module.MARKS  # three marks a step: two of three steps are pushed out
    for _ in range(many):
        with collector.stage("data"):
            clock.now += 3
        clock.now += 4
        collector.step()
    vectors = collector.take()
    assert vectors is not None
    assert vectors.durations.tolist() == [[3, 0, 0, 0, 0, 4]] * module.STEPS
    assert vectors.first_step + len(vectors.durations) == many and collector.lost == many - module.STEPS
    with collector.stage("forward"):
        clock.now += 1
    collector.step()
    assert row(collector)["forward"] == 1 and collector.lost == many - module.STEPS


def test_one_step_with_too_many_boundaries_is_lost_alone(clock: Clock) -> None:
    collector = Collector(0, 1)
    collector.step()
    for _ in range(module.MARKS):
        with collector.stage("data"):
            clock.now += 1
    collector.step()
    clock.now += 5
    collector.step()
    first, last = collector.take(), collector.take()
    assert first is not None and (first.first_step, first.durations.sum()) == (2, 5)
    assert last is None and collector.lost == 2  # the first one's end was pushed out, too


@pytest.mark.parametrize("pause", [0.0, 1e-3])
def test_a_reader_in_another_thread_never_sees_a_torn_step(pause: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that ticks with every boundary: a whole step takes four ticks, two of them in the stage."""
    ticks = iter(range(10**9))
    monkeypatch.setattr(module, "perf_counter_ns", lambda: next(ticks))
    monkeypatch.setattr(module, "MARKS", 64)
    collector = Collector(0, 1)
    stop = threading.Event()
    bad: list[list[int]] = []
    seen = [0]

    def read() -> None:
        while not stop.is_set():
            time.sleep(pause)
            while (vectors := collector.take()) is not None:
                seen[0] += len(vectors.durations)
                bad.extend(found for found in vectors.durations.tolist() if found != [1, 1, 0, 0, 0, 3])

    collector.start()
    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(20_000):
        with collector.stage("data"):
            pass
        with collector.stage("forward"):
            pass
        collector.step()
    stop.set()
    reader.join(30)
    assert not reader.is_alive()
    left = collector.take()
    assert bad == [] and seen[0] + collector.lost + (len(left.durations) if left else 0) == 20_000


@pytest.mark.parametrize(
    "arguments",
    [{"rank": 4, "size": 4}, {"rank": -1, "size": 4}, {"stages": ()}, {"stages": ("a", "a")},
     {"stages": ("",)}, {"stages": ("x" * 65,)}],
)  # fmt: skip
def test_a_collector_that_makes_no_sense_is_refused(arguments: dict[str, object]) -> None:
    with pytest.raises(BadInput, match="collector"):
        Collector(**({"rank": 0, "size": 4} | arguments))  # type: ignore[arg-type]


@pytest.mark.timed
def test_a_stage_boundary_costs_at_most_one_and_a_half_microseconds() -> None:
    collector = Collector(0, 1)
    best = 1.0
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(2_000):
            with collector.stage("forward"):
                pass
        best = min(best, (time.perf_counter() - start) / 4_000)
    assert best <= 1.5e-6


# ------------------------------------------------------------------------------------------ on the way

blocks = st.builds(
    lambda rank, first, names, steps, seed, top: Vectors(
        rank, first, tuple(names), np.random.default_rng(seed).integers(0, top, (steps, len(names))), 0
    ),
    st.integers(0, 1000), st.integers(0, 2**40),
    st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=8, unique=True),
    st.integers(0, 9), st.integers(0, 99), st.sampled_from([1, 1000, 2**32, 2**50]),
)  # fmt: skip


@settings(deadline=None)
@given(blocks)
def test_vectors_survive_being_sent(vectors: Vectors) -> None:
    back = Vectors.from_bytes(vectors.to_bytes())
    assert (back.rank, back.first_step, back.stages, back.size) == (
        vectors.rank, vectors.first_step, vectors.stages, vectors.size,
    )  # fmt: skip
    assert back.durations.dtype == np.int64
    assert np.array_equal(back.durations, vectors.durations)


@settings(max_examples=300, deadline=None)
@given(blocks, st.data())
def test_changed_or_cut_bytes_are_refused_in_one_line(vectors: Vectors, data: st.DataObject) -> None:
    sent = vectors.to_bytes()
    place = data.draw(st.integers(0, len(sent) - 1))
    how = data.draw(st.sampled_from(["flip", "cut", "grow", "zero"]))
    changed = {
        "flip": sent[:place] + bytes([sent[place] ^ data.draw(st.integers(1, 255))]) + sent[place + 1 :],
        "cut": sent[:place],
        "grow": sent + b"\0" * (place + 1),
        "zero": sent[:place] + b"\0" * (len(sent) - place),
    }[how]
    if changed == sent:
        return
    with pytest.raises(BadInput) as refused:
        Vectors.from_bytes(changed)
    assert str(refused.value).startswith("stage vectors: ")
    assert "\n" not in str(refused.value)


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_refused_in_one_line(data: bytes) -> None:
    for sent in (data, module.Vectors(0, 0, ("a",), np.zeros((1, 1), np.int64)).to_bytes()[:15] + data):
        with pytest.raises(BadInput, match="stage vectors"):
            Vectors.from_bytes(sent)


def test_ranks_are_gathered_by_step_and_what_is_missing_is_marked() -> None:
    window = gather([
        Vectors(0, 10, ("a",), np.array([[1], [2], [3]]), size=3),
        Vectors(2, 12, ("a",), np.array([[5]]), size=3),
    ])  # fmt: skip
    assert window.steps.tolist() == [10, 11, 12]
    assert window.ranks == (0, 1, 2)
    assert window.valid.tolist() == [[True, False, False], [True, False, False], [True, False, True]]
    assert window.durations[:, :, 0].tolist() == [[1, 0, 0], [2, 0, 0], [3, 0, 5]]


def test_a_gap_that_no_rank_reported_is_a_gap_and_not_a_shorter_window() -> None:
    window = gather([Vectors(0, 0, ("a",), np.array([[1]])), Vectors(0, 3, ("a",), np.array([[1]]))])
    assert window.valid[:, 0].tolist() == [True, False, False, True]


def test_ranks_with_other_stages_or_steps_far_apart_are_refused() -> None:
    one = Vectors(0, 0, ("a",), np.array([[1]]))
    with pytest.raises(BadInput, match="must be the same"):
        gather([one, Vectors(1, 0, ("b",), np.array([[1]]))])
    with pytest.raises(BadInput, match="no one window"):
        gather([one, Vectors(1, MAX_CELLS, ("a",), np.array([[1]]))])
    with pytest.raises(BadInput, match="none were given"):
        gather([])


def test_a_frame_of_vectors_has_a_clock_for_each_rank_and_gives_the_window_back() -> None:
    durations = np.arange(24).reshape(4, 6)
    given_vectors = [Vectors(r, 5, STAGES, durations + r, 2) for r in range(2)]
    recording = frame(given_vectors)
    assert recording.clocks == ["rank 0", "rank 1"]
    window = window_of(recording)
    assert window.steps.tolist() == [5, 6, 7, 8]
    assert window.stages == STAGES
    assert np.array_equal(window.durations, gather(given_vectors).durations)
    assert window.valid.all()
