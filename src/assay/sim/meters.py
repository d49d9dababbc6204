"""Meters: where joules come from. A reading says which sensor gave it, and over which interval.

Two sensors at hand on ordinary machines: NVIDIA's management library for a GPU (an energy counter, instantaneous
watts, clocks, and the reasons for which the firmware holds the clock down) and Linux's RAPL files for a CPU package.
Both are often absent or locked; `probe` says so in one line instead of failing later. This module needs nothing but
the standard library, so that a measuring script may carry it to a bare machine.

>>> meter = Rapl(root="/nowhere")
>>> meter.probe()
Availability(ok=False, source='rapl', why='no package energy counter under /nowhere')
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

# NVML's bits for "the clock is not what the load asked for", by the names nvidia-smi prints.
THROTTLE = {
    "gpu_idle": 0x1,
    "clocks_setting": 0x2,
    "sw_power_cap": 0x4,
    "hw_slowdown": 0x8,
    "sync_boost": 0x10,
    "sw_thermal": 0x20,
    "hw_thermal": 0x40,
    "hw_power_brake": 0x80,
}
POWER = THROTTLE["sw_power_cap"]  # the cap acting as it should
FIRMWARE = sum(THROTTLE[name] for name in ("hw_slowdown", "sw_thermal", "hw_thermal", "hw_power_brake"))


@dataclass(frozen=True, slots=True)
class Availability:
    """Whether a meter works here, and why not."""

    ok: bool
    source: str
    why: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at a meter; None where this sensor cannot tell. `joules` counts up from an arbitrary zero."""

    t: float
    joules: float | None = None
    watts: float | None = None
    sm_clock: float | None = None  # Hz
    mem_clock: float | None = None  # Hz
    throttle: int = 0  # bits of THROTTLE
    celsius: float | None = None


class Meter(Protocol):
    """What every sensor offers."""

    source: str

    def probe(self) -> Availability:
        """Say whether it can be read here."""

    def read(self) -> Reading:
        """Read it now."""


@dataclass(frozen=True, slots=True)
class Joules:
    """Energy with its source and its interval; there is no energy without them."""

    value: float
    source: str
    seconds: float

    @property
    def watts(self) -> float:
        """The mean power over the interval.

        >>> Joules(30.0, "rapl", 2.0).watts
        15.0
        """
        return self.value / self.seconds


def spent(readings: list[Reading], source: str) -> Joules:
    """The energy between the first and the last reading: by the counter where there is one, else by trapezoids.

    >>> spent([Reading(0.0, watts=100.0), Reading(1.0, watts=200.0), Reading(3.0, watts=200.0)], "nvml")
    Joules(value=550.0, source='nvml', seconds=3.0)
    """
    if len(readings) < 2:
        raise ValueError(f"energy needs two readings or more, not {len(readings)}")
    first, last = readings[0], readings[-1]
    if first.joules is not None and last.joules is not None and last.joules > first.joules:
        return Joules(last.joules - first.joules, source, last.t - first.t)
    total = 0.0
    for a, b in pairwise(readings):
        if a.watts is None or b.watts is None:
            raise ValueError(f"'{source}' gave neither an energy counter nor watts at {b.t:.3f} s")
        total += 0.5 * (a.watts + b.watts) * (b.t - a.t)
    return Joules(total, source, last.t - first.t)


# ------------------------------------------------------------------------------------------------ CPU


@dataclass
class Rapl:
    """The CPU packages' energy counters, in /sys/class/powercap; they wrap around, and usually only root may read."""

    root: str = "/sys/class/powercap"
    source: str = "rapl"
    clock: Callable[[], float] = time.perf_counter
    _last: dict[str, int] = field(default_factory=dict)
    _total: float = 0.0

    def _packages(self) -> list[Path]:
        found = sorted(Path(self.root).glob("intel-rapl:*"))
        return [p for p in found if p.name.count(":") == 1 and (p / "energy_uj").exists()]

    def probe(self) -> Availability:
        """Say whether a package counter is there and readable."""
        packages = self._packages()
        if not packages:
            return Availability(False, self.source, f"no package energy counter under {self.root}")
        try:
            (packages[0] / "energy_uj").read_text()
        except OSError as error:
            return Availability(False, self.source, f"{packages[0] / 'energy_uj'}: {error.strerror}")
        return Availability(True, self.source)

    def read(self) -> Reading:
        """All packages together, unwrapped."""
        for package in self._packages():
            now = int((package / "energy_uj").read_text())
            before = self._last.get(package.name, now)
            span = int((package / "max_energy_range_uj").read_text()) if now < before else 0
            self._total += (now - before + span) * 1e-6
            self._last[package.name] = now
        return Reading(self.clock(), joules=self._total)


# ------------------------------------------------------------------------------------------------ GPU

_SM, _MEM = 1, 2  # NVML's clock domains
_POWER_INSTANT = 186  # a field id: watts now; the plain call averages over a second on recent boards


class _Value(ctypes.Structure):
    _fields_ = (
        ("field", ctypes.c_uint),
        ("scope", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latency", ctypes.c_longlong),
        ("type", ctypes.c_uint),
        ("status", ctypes.c_uint),
        ("value", ctypes.c_ulonglong),
    )


class NvmlError(RuntimeError):
    """NVML refused a call; `code` is its return value (3: not supported, 4: no permission)."""

    def __init__(self, call: str, code: int) -> None:
        super().__init__(f"{call} returned {code}")
        self.code = code


class Nvml:
    """One NVIDIA GPU through its management library, by ctypes: no package to install.

    >>> Nvml(library="libabsent.so").probe().ok
    False
    """

    def __init__(self, index: int = 0, library: str = "libnvidia-ml.so.1") -> None:
        self.source = "nvml"
        self.index = index
        self.library = library
        self._lib: Any = None
        self._handle = ctypes.c_void_p()

    def _open(self) -> None:
        if self._lib is None:
            lib = ctypes.CDLL(self.library)
            if code := lib.nvmlInit_v2():
                raise NvmlError("nvmlInit_v2", code)
            if code := lib.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(self.index), ctypes.byref(self._handle)):
                raise NvmlError("nvmlDeviceGetHandleByIndex_v2", code)
            self._lib = lib

    def probe(self) -> Availability:
        """Say whether the library, the GPU and its power sensor answer."""
        try:
            self._open()
            self.number("nvmlDeviceGetPowerUsage")
        except (OSError, NvmlError) as error:
            return Availability(False, self.source, str(error))
        return Availability(True, self.source)

    def number(self, call: str, *arguments: int, kind: Any = ctypes.c_uint) -> int:
        """One NVML query that fills one number, e.g. number("nvmlDeviceGetClockInfo", 1)."""
        self._open()
        value = kind()
        code = getattr(self._lib, call)(self._handle, *map(ctypes.c_uint, arguments), ctypes.byref(value))
        if code:
            raise NvmlError(call, code)
        return int(value.value)

    def text(self, call: str, device: bool = True) -> str:
        """One NVML query that fills a string, e.g. text("nvmlDeviceGetName")."""
        self._open()
        buffer = ctypes.create_string_buffer(96)
        head = (self._handle,) if device else ()
        code = getattr(self._lib, call)(*head, buffer, ctypes.c_uint(96))
        if code:
            raise NvmlError(call, code)
        return buffer.value.decode()

    def command(self, call: str, *arguments: int) -> str:
        """One NVML call that changes a setting; '' if it was done, else why not. Only for a GPU that is yours."""
        self._open()
        try:
            code = getattr(self._lib, call)(self._handle, *map(ctypes.c_uint, arguments))
        except AttributeError:
            return f"{call} is not in this driver"
        return "" if code == 0 else f"{call} returned {code}"

    def _instant(self) -> float:
        value = _Value(field=_POWER_INSTANT)
        code = self._lib.nvmlDeviceGetFieldValues(self._handle, ctypes.c_int(1), ctypes.byref(value))
        if code or value.status:
            return self.number("nvmlDeviceGetPowerUsage") / 1e3
        return int(value.value & 0xFFFFFFFF) / 1e3

    def read(self) -> Reading:
        """Energy counter, instantaneous watts, clocks and the reasons for a held-down clock."""
        self._open()
        joules = self._maybe("nvmlDeviceGetTotalEnergyConsumption", kind=ctypes.c_ulonglong)
        reasons = self._maybe("nvmlDeviceGetCurrentClocksThrottleReasons", kind=ctypes.c_ulonglong)
        sm, mem = self._maybe("nvmlDeviceGetClockInfo", _SM), self._maybe("nvmlDeviceGetClockInfo", _MEM)
        celsius = self._maybe("nvmlDeviceGetTemperature", 0)
        return Reading(
            t=time.perf_counter(),
            joules=None if joules is None else joules / 1e3,
            watts=self._instant(),
            sm_clock=None if sm is None else sm * 1e6,
            mem_clock=None if mem is None else mem * 1e6,
            throttle=reasons or 0,
            celsius=None if celsius is None else float(celsius),
        )

    def _maybe(self, call: str, *arguments: int, kind: Any = ctypes.c_uint) -> int | None:
        try:
            return self.number(call, *arguments, kind=kind)
        except (NvmlError, AttributeError):
            return None


# ------------------------------------------------------------------------------------------- sampling


class Sampler:
    """Reads a meter in the background, `rate` times a second, while a block of code runs.

    >>> class Steady:
    ...     source = "steady"
    ...     def probe(self): return Availability(True, "steady")
    ...     def read(self): return Reading(time.perf_counter(), watts=50.0)
    >>> with Sampler(Steady(), rate=200.0) as sampler:
    ...     time.sleep(0.05)
    >>> round(sampler.joules().watts, 6), len(sampler.readings) > 3
    (50.0, True)
    """

    def __init__(self, meter: Meter, rate: float = 50.0) -> None:
        self.meter = meter
        self.rate = rate
        self.readings: list[Reading] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, daemon=True)

    def _loop(self) -> None:
        while not self._stop.is_set():
            self.readings.append(self.meter.read())
            self._stop.wait(1.0 / self.rate)

    def __enter__(self) -> Sampler:
        self.readings.append(self.meter.read())
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
        self.readings.append(self.meter.read())

    def joules(self) -> Joules:
        """What was spent from the first sample to the last."""
        return spent(self.readings, self.meter.source)


def valid(readings: list[Reading]) -> list[Reading]:
    """The samples in which the firmware did not hold the clock down for heat or supply; a power cap is no fault.

    >>> [r.t for r in valid([Reading(0.0), Reading(1.0, throttle=0x40), Reading(2.0, throttle=POWER)])]
    [0.0, 2.0]
    """
    return [reading for reading in readings if not reading.throttle & FIRMWARE]
