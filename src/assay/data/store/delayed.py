"""A store as slow as another: latencies by kind of request, bandwidth, and a limit of requests a second.

Profiles are approximate and public; `assay data probe URL` fits one to your own store. A request waits
`lognormal(median, p99) + bytes / bandwidth`. Above a prefix's rate the store answers 503 and the client asks again
later, as every SDK does; the profile's limit is a token bucket of one second.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np

from assay.data.interface import Store
from assay.data.store.wrappers import Op, Wrapper, answered
from assay.record.errors import BadInput, unreadable
from assay.record.store import write_whole
from assay.sim.clock import Clock, VirtualClock
from assay.sim.streams import stream

T = TypeVar("T")
_BLOCK = 4096  # latencies drawn at a time
_Z99 = 2.3263478740408408  # a normal variable is below this in 99 of 100 cases


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds to the first byte: lognormal, given by its middle and what 1 in 100 exceeds.

    >>> round(Latency(0.03, 0.2).sigma, 3)
    0.815
    """

    median: float
    p99: float

    @property
    def sigma(self) -> float:
        """The spread of the logarithm."""
        return math.log(max(self.p99, self.median) / self.median) / _Z99 if self.median > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Profile:
    """How slow a store is."""

    name: str
    get: Latency
    put: Latency
    bandwidth: float = math.inf  # bytes/s of a connection
    puts: float = math.inf  # a second and prefix; listing and deleting count among them
    gets: float = math.inf
    source: str = "approximate public figures"


NO_TIME = Latency(0.0, 0.0)
PROFILES = {
    profile.name: profile
    for profile in (
        Profile("zero", NO_TIME, NO_TIME, source="no delay at all"),
        Profile("s3-standard", Latency(0.030, 0.200), Latency(0.060, 0.400), 90e6, 3500, 5500),
        Profile("s3-express", Latency(0.005, 0.020), Latency(0.005, 0.020), 200e6, 100_000, 200_000),
        Profile("minio-lan", Latency(0.001, 0.008), Latency(0.003, 0.020), 500e6),
        Profile("local", Latency(0.0001, 0.001), Latency(0.002, 0.010), 2e9),
    )
}


def profile(name: str) -> Profile:
    """A profile by name, or from a file that `assay data probe --out` wrote.

    >>> profile("s3-standard").put.median
    0.06
    """
    if name in PROFILES:
        return PROFILES[name]
    if not name.endswith(".toml"):
        raise BadInput(f"no latency profile is called '{name}'; there are {', '.join(PROFILES)}, or a file .toml")
    try:
        return msgspec.toml.decode(Path(name).read_bytes(), type=Profile)
    except OSError as error:
        raise unreadable(name, error) from error
    except msgspec.DecodeError as error:
        raise BadInput(
            f"{name} is no latency profile: {error}; 'assay data probe URL --out FILE' writes one"
        ) from error


def write_profile(profile: Profile, path: Path) -> None:
    """Keep a profile in a file, whole or not at all."""
    lines = [f"name = {json.dumps(profile.name)}", f"source = {json.dumps(profile.source)}"]
    lines += [f"{name} = {getattr(profile, name)!r}" for name in ("bandwidth", "puts", "gets")]
    for op, latency in (("get", profile.get), ("put", profile.put)):
        lines.append(f"{op} = {{ median = {latency.median!r}, p99 = {latency.p99!r} }}")
    write_whole(path, "\n".join([*lines, ""]).encode())


class Delayed(Wrapper):
    """Makes every request take the time it would take elsewhere; on a virtual loop that costs nothing.

    >>> from assay.data.store.memory import MemStore
    >>> from assay.sim.clock import run_virtual
    >>> async def four_puts() -> float:
    ...     store = Delayed(MemStore(VirtualClock()), PROFILES["s3-standard"], seed=1)
    ...     for i in range(4):
    ...         await store.put(f"k{i}", bytes(9_000_000))  # 0.1 s each on the wire
    ...     return VirtualClock().now()
    >>> 0.4 < run_virtual(four_puts()) < 2.0
    True
    """

    def __init__(self, inner: Store, profile: Profile, *, clock: Clock | None = None, seed: int = 0) -> None:
        super().__init__(inner)
        self.profile, self.clock = profile, clock or VirtualClock()
        self.refused = 0  # how often a request met a 503
        self._random = stream(seed, "latency", profile.name)
        self._normals: list[float] = []
        self._slots: dict[tuple[bool, str], float] = {}  # when a prefix's bucket is empty again

    async def around(self, op: Op, call: Callable[[], Awaitable[T]]) -> T:
        """Half of the wait lies before the effect, half behind it: others may come between effect and answer."""
        profile, changes = self.profile, op.changes
        reading = op.name in ("get", "head")
        if not math.isinf(profile.gets if reading else profile.puts):
            await self._admitted(op.key, reading)
        half = self._first_byte(profile.get if reading else profile.put) / 2
        if (sending := half + (op.nbytes / profile.bandwidth if changes else 0.0)) > 0.0:
            await self.clock.sleep(sending)
        found = await call()
        if (answering := half + (0.0 if changes else answered(found, op) / profile.bandwidth)) > 0.0:
            await self.clock.sleep(answering)
        return found

    def _first_byte(self, latency: Latency) -> float:
        if latency.median == 0.0:
            return 0.0
        if not self._normals:
            self._normals = self._random.standard_normal(_BLOCK).tolist()
        return latency.median * math.exp(latency.sigma * self._normals.pop())

    async def _admitted(self, key: str, reading: bool) -> None:
        rate = self.profile.gets if reading else self.profile.puts
        bucket = (reading, key.rpartition("/")[0])
        pause = 0.1
        while True:
            now = self.clock.now()
            # `full` is when this request's token would come: within a second is a burst, later a 503.
            full = max(self._slots.get(bucket, -math.inf), now - 1.0) + 1.0 / rate
            if full <= now + 1e-12:
                self._slots[bucket] = full
                return
            self.refused += 1
            await self.clock.sleep(pause * float(self._random.uniform(0.5, 1.5)))
            pause = min(pause * 2, 5.0)


def fitted(name: str, seconds: dict[str, list[float]], bandwidth: float, source: str) -> Profile:
    """A profile from measured seconds of small gets and puts.

    >>> fitted("mine", {"get": [0.01, 0.01, 0.05], "put": [0.02, 0.02, 0.1]}, 1e8, "3 requests").get.median
    0.01
    """
    found = {op: Latency(float(np.median(took)), float(np.quantile(took, 0.99))) for op, took in seconds.items()}
    return Profile(name, found["get"], found["put"], bandwidth, source=source)
