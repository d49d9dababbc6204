"""The unit of a trace's times: where it is said without doubt it is right, on files of many shapes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from assay.record.errors import BadInput
from assay.workloads.chat import chat
from assay.workloads.request_files import read
from assay.workloads.time_units import SCALES, WORDS, Unit, guessed

Floats = NDArray[np.float64]
SHAPES = ("poisson", "even", "bursts", "volleys", "gaps", "night", "waves", "heavy", "strokes", "chat")


def arrivals(random: np.random.Generator, shape: str, rate: float, count: int) -> tuple[Floats, NDArray[np.int32]]:
    """Seconds from zero, `rate` a second while anybody is there; and who asked."""
    if shape == "chat":
        made = chat(count, rate=rate, seed=int(random.integers(1 << 30)))
        return made.arrival, np.asarray(made.session)
    gaps = random.exponential(1 / rate, count)
    if shape == "even":
        gaps = np.full(count, 1 / rate) * random.uniform(0.95, 1.05, count)
    elif shape in ("bursts", "volleys"):  # some at once, then nothing; in a volley at the very same time
        size = int(random.integers(3, 12))
        inside = 0.0 if shape == "volleys" else 0.02
        gaps *= np.where(np.arange(count) % size == 0, size * (1 - inside), inside)
    elif shape == "gaps":
        gaps[random.integers(1, count, max(1, count // 20))] += random.uniform(600, 4000)
    elif shape == "night":
        gaps[count // 2] += 9 * 3600
    elif shape == "strokes":  # hundreds may come with one tick of a job
        size = int(random.integers(5, 60))
        gaps *= np.where(np.arange(count) % size == 0, size, 0)
    elif shape == "heavy":
        gaps = random.lognormal(-1.62, 1.8, count) / rate
    elif shape == "waves":
        gaps /= 1 + 0.9 * np.sin(np.linspace(0, 12, count))
    people = random.integers(0, max(2, count // 4), count).astype(np.int32)
    return np.cumsum(gaps) - gaps[0], people


def drawn(random: np.random.Generator, folder: Path) -> tuple[Path, str, str]:
    """A file, its unit, and what it is like."""
    unit = str(random.choice(list(SCALES)))
    shape = str(random.choice(SHAPES))
    count = int(random.choice([6, 12, 40, 150, 600]))
    rate = math.exp(random.uniform(math.log(0.05), math.log(500)))
    seconds, people = arrivals(random, shape, rate, count)
    begin = float(random.choice([0.0, 0.0, random.uniform(0, 5), 1.72e9 + random.uniform(0, 1e7)]))
    times = (seconds + begin) / SCALES[unit]
    digits = int(random.choice([0, 0, 3, 6])) if unit != "ns" else 0
    median = float(random.choice([8, 60, 250, 1500]))
    prompt = np.clip(random.lognormal(math.log(4 * median), 0.8, count), 1, 50_000).astype(int)
    output = np.clip(random.lognormal(math.log(median), 0.8, count), 1, 16_000).astype(int)
    ids, sessions = random.random(2) < 0.5
    rows = []
    for i in range(count):
        time = round(float(times[i]), digits) if digits else int(times[i])
        row: dict[str, Any] = {"timestamp": time, "input_length": int(prompt[i]), "output_length": int(output[i])}
        if ids:
            row["hash_ids"] = [int(people[i]) * 100 + block for block in range(-(-int(prompt[i]) // 512))]
        if sessions:
            row["session_id"] = f"s{people[i]}"
        rows.append(row)
    path = folder / "trace.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    told = (
        f"{count} rows of {shape}, {rate:.3g}/s, in {unit}, {digits} digits, from {begin:.0f} s, ids {ids}, {sessions}"
    )
    return path, unit, told


def counts(seed: int, files: int, folder: Path) -> tuple[dict[str, int], list[str]]:
    """How many are sure and right, in doubt with the right one said, and wrong; and which those are."""
    random = np.random.default_rng(seed)
    found = {"sure": 0, "doubt": 0, "wrong": 0}
    wrong = []
    for _ in range(files):
        path, unit, told = drawn(random, folder)
        trace = read(path)
        if not trace.seconds:  # all at once: in any unit
            continue
        read_as = next(name for name, word in WORDS.items() if trace.source.times.startswith(word))
        kind = "wrong" if unit not in (read_as, *trace.source.units) else "doubt" if trace.source.units else "sure"
        found[kind] += 1
        if kind == "wrong":
            wrong.append(f"{told}: {trace.source.times}")
    return found, wrong


@pytest.mark.parametrize("seed", [20_261, 777, 90_210])
def test_a_unit_is_never_wrong_without_a_word(seed: int, tmp_path: Path) -> None:
    found, wrong = counts(seed, 150, tmp_path)
    assert not wrong
    assert found["sure"] >= 0.2 * sum(found.values())  # doubt alone would be no answer


@pytest.mark.slow
def test_nor_on_many_more(tmp_path: Path) -> None:
    for seed in range(5000, 5012):
        _, wrong = counts(seed, 500, tmp_path)
        assert not wrong


@pytest.mark.parametrize("unit", SCALES)
@pytest.mark.parametrize("shape", ["poisson", "even", "night"])
@pytest.mark.parametrize("decimals", [False, True])
def test_what_most_traces_are_like_is_sure(unit: str, shape: str, decimals: bool) -> None:
    for seed in range(5):
        random = np.random.default_rng(seed)
        seconds, _ = arrivals(random, shape, random.uniform(2.0, 6.0), 300)
        times = seconds / SCALES[unit]
        found = guessed(times if decimals else np.floor(times), random.integers(50, 600, 300))
        assert (found.name, found.also) == (unit, ())


@pytest.mark.parametrize("unit", SCALES)
@pytest.mark.parametrize("rate", [0.02, 0.2, 500.0])
def test_dates_are_sure(unit: str, rate: float) -> None:
    found = guessed((1.75e9 + np.arange(200, dtype=np.float64) / rate) / SCALES[unit], np.full(200, 100))
    assert (found.name, found.also) == (unit, ())


def test_a_clock_that_looks_like_dates_is_in_doubt() -> None:
    """A machine's clock after half an hour, in microseconds, has the size of seconds since 1970."""
    found = guessed(1.8e9 + np.arange(200, dtype=np.float64) * 2e4, np.full(200, 100))
    assert {"s", "us"} <= {found.name, *found.also}
    found = guessed(1.8e9 + np.arange(6, dtype=np.float64) * 1.6e8, np.full(6, 100))  # nobody asks once in five years
    assert "ns" in (found.name, *found.also)


def test_what_no_unit_explains_is_in_doubt() -> None:
    found = guessed(np.arange(1000, dtype=np.float64) * 5e-6, np.full(1000, 100))  # 200,000 a second at the least
    assert found.name == "s" and found.also


def test_a_format_that_is_one_writers_alone_has_its_unit() -> None:
    times = np.arange(400, dtype=np.float64) * 20.5  # one in twenty seconds, or fifty a second
    assert guessed(times, np.full(400, 100), written="s", hint=math.inf).also == ()
    assert guessed(times, np.full(400, 100), written="s", hint=1.0).also


def test_what_is_said_names_both_and_the_option() -> None:
    said = Unit("ms", also=("s",), clues="6.1 answers under way at once").sentence()
    assert "milliseconds" in said and "; seconds are plausible too" in said and "--time-unit" in said


def test_a_unit_that_is_none_is_refused(tmp_path: Path) -> None:
    path, _, _ = drawn(np.random.default_rng(1), tmp_path)
    with pytest.raises(BadInput, match=r"--time-unit 'h': write one of s, ms, us, ns"):
        read(path, time_unit="h")
