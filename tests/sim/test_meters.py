"""Meters say whether they work and why not; energy carries its source and interval; throttled samples are told."""

import time
from pathlib import Path

import pytest

from assay.sim import meters
from assay.sim.meters import Availability, Joules, Nvml, Rapl, Reading, Sampler


def package(root: Path, joules: float, most: float = 100.0) -> Path:
    folder = root / "intel-rapl:0"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "energy_uj").write_text(str(int(joules * 1e6)))
    (folder / "max_energy_range_uj").write_text(str(int(most * 1e6)))
    (root / "intel-rapl:0:0").mkdir(exist_ok=True)  # a sub-domain, already in the package's count
    return folder


def test_rapl_counts_up_across_a_wrap(tmp_path: Path) -> None:
    times = iter([0.0, 1.0, 2.0])
    meter = Rapl(str(tmp_path), clock=lambda: next(times))
    package(tmp_path, 90.0)
    assert meter.probe() == Availability(True, "rapl")
    readings = [meter.read()]
    package(tmp_path, 97.0)
    readings.append(meter.read())
    package(tmp_path, 5.0)  # past 100 J the counter starts over
    readings.append(meter.read())
    assert meters.spent(readings, "rapl") == Joules(pytest.approx(15.0), "rapl", 2.0)  # type: ignore[arg-type]


def test_an_absent_or_locked_sensor_is_one_line(tmp_path: Path) -> None:
    assert not Rapl(str(tmp_path)).probe().ok
    assert "libabsent" in Nvml(library="libabsent.so.9").probe().why


def test_energy_needs_an_interval_and_a_sensor() -> None:
    with pytest.raises(ValueError, match="two readings"):
        meters.spent([Reading(0.0, watts=1.0)], "nvml")
    with pytest.raises(ValueError, match="neither an energy counter nor watts"):
        meters.spent([Reading(0.0), Reading(1.0)], "nvml")


def test_the_counter_is_preferred_to_samples_of_power() -> None:
    readings = [Reading(0.0, joules=10.0, watts=500.0), Reading(2.0, joules=30.0, watts=500.0)]
    assert meters.spent(readings, "nvml").watts == 10.0


def test_samples_under_firmware_throttling_are_left_out_but_a_power_cap_is_not_a_fault() -> None:
    kept = meters.valid([
        Reading(0.0, watts=300.0),
        Reading(1.0, watts=200.0, throttle=meters.THROTTLE["hw_thermal"]),
        Reading(2.0, watts=200.0, throttle=meters.THROTTLE["hw_power_brake"] | meters.POWER),
        Reading(3.0, watts=700.0, throttle=meters.POWER),
        Reading(4.0, watts=80.0, throttle=meters.THROTTLE["gpu_idle"]),
    ])  # fmt: skip
    assert [reading.t for reading in kept] == [0.0, 3.0, 4.0]


class Ramp:
    source = "ramp"

    def probe(self) -> Availability:
        return Availability(True, self.source)

    def read(self) -> Reading:
        now = time.perf_counter()
        return Reading(now, watts=100.0)


def test_a_sampler_reads_in_the_background_and_stops() -> None:
    with Sampler(Ramp(), rate=500.0) as sampler:
        time.sleep(0.1)
    assert len(sampler.readings) >= 5
    assert sampler.joules().watts == pytest.approx(100.0)
    assert sampler.joules().seconds >= 0.1
    assert not sampler._thread.is_alive()
