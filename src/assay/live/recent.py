"""What happened lately: latencies of the last minute, tenants, and engines that changed their state."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from assay.live.counters import OTHERS, Counters, Histogram
from assay.live.engines import UP, Engine

if TYPE_CHECKING:
    from assay.live.relay import Relay

STEP = 5.0  # seconds between two looks
WINDOW = 60.0  # seconds that "lately" means
_CHANGES = 50  # that are remembered
_TENANTS = 1000  # that are told apart: without keys, clients make up as many names as they like


@dataclass
class Tenant:
    """What one tenant has asked for."""

    requests: int = 0
    failed: int = 0


@dataclass(frozen=True)
class _Mark:
    """Where the counters stood."""

    at: float
    ttft: list[int]
    itl: list[int]
    statuses: Counter[str]
    retries: int
    engines: dict[Engine, tuple[int, int, float, float]]  # requests, errors, prompt tokens, and those found cached


class Recent:
    """The last minute of a gateway."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._before: deque[_Mark] = deque(maxlen=int(WINDOW / STEP))
        self._states: dict[Engine, str] = {}
        self.changes: deque[dict[str, Any]] = deque(maxlen=_CHANGES)
        self.tenants: dict[str, Tenant] = {}

    def tick(self, engines: list[Engine], now: float) -> None:
        """Remember where the counters stand; every `STEP` seconds."""
        self._before.append(self._mark(engines, now))

    def _mark(self, engines: list[Engine], now: float) -> _Mark:
        counters = self._counters
        ttft, itl = list(counters.ttft.counts), list(counters.itl.counts)
        return _Mark(now, ttft, itl, self.statuses(), counters.retries, {e: _stand(e) for e in engines})

    def statuses(self) -> Counter[str]:
        """Answers since the start, by status."""
        found: Counter[str] = Counter()
        for (_, status), count in self._counters.requests.items():
            found[str(status)] += count
        return found

    def look(self, engines: list[Engine], now: float) -> None:
        """Whether an engine came, went, or is no longer as it was."""
        for engine in engines:
            state = self._states.get(engine, "")
            if state != engine.state:
                self._changed(engine, state, engine.state, now)
        for engine in [engine for engine in self._states if engine.number < 0]:
            self._changed(engine, self._states[engine], "gone", now)
            del self._states[engine]

    def _changed(self, engine: Engine, old: str, new: str, now: float) -> None:
        self._states[engine] = new
        self.changes.append(
            {"engine": engine.name, "from": old, "to": new, "why": engine.note if new != UP else "", "at": now}
        )

    def ended(self, relay: Relay) -> str:
        """A request of a tenant is over; what the tenant is called."""
        if not relay.called:
            relay.called = self.name(relay.tenant)
        tenant = self.tenants[relay.called]
        tenant.requests += 1
        tenant.failed += relay.status >= 400
        return relay.called

    def name(self, tenant: str) -> str:
        """What a tenant is called here and in the metrics."""
        name = tenant[:100] if len(tenant) > 100 else tenant
        if name not in self.tenants:
            if len(self.tenants) >= _TENANTS:
                name = OTHERS
            self.tenants.setdefault(name, Tenant())
        return name

    def report(self, engines: list[Engine], now: float) -> dict[str, Any]:
        """Quantiles of the last minute, None where nothing came; the tenants with most requests; changes of state."""
        then = self._before[0] if self._before else None
        here = self._mark(engines, now)
        ttft = _since(self._counters.ttft, then.ttft if then else [])
        itl = _since(self._counters.itl, then.itl if then else [])
        statuses = here.statuses - then.statuses if then else here.statuses
        tokens = self._counters.of_tenants()
        busiest = sorted(self.tenants.items(), key=lambda item: -item[1].requests)[:20]
        return {
            "ttft_p50": _quantile(ttft, 0.5), "ttft_p99": _quantile(ttft, 0.99),
            "itl_p50": _quantile(itl, 0.5), "itl_p99": _quantile(itl, 0.99),
            "recent": {
                "seconds": now - then.at if then else None, "requests": statuses.total(), "statuses": dict(statuses),
                "retries": here.retries - (then.retries if then else 0),
            },
            "tenants": [
                {"tenant": name, "requests": t.requests, "failed": t.failed, "prompt_tokens": prompt,
                 "completion_tokens": output}
                for name, t in busiest
                for prompt, output in [tokens.get(name, (0, 0))]
            ],
            "changes": [{**change, "at": now - change["at"]} for change in self.changes],
        }  # fmt: skip

    def of(self, engine: Engine) -> dict[str, Any]:
        """The last minute of one engine; its hits are unknown where no prompt came."""
        then = self._before[0].engines.get(engine, (0, 0, 0.0, 0.0)) if self._before else (0, 0, 0.0, 0.0)
        requests, errors, prompt, hits = (a - b for a, b in zip(_stand(engine), then, strict=True))
        return {"requests": requests, "errors": errors, "hit_ratio": hits / prompt if prompt > 0 else None}


def _stand(engine: Engine) -> tuple[int, int, float, float]:
    """What an engine was sent, failed, and found in its cache: as its answers say, else as the gateway thinks."""
    prompt, hits = (engine.asked, engine.hits) if engine.asked else (engine.prompt, engine.matched)
    return engine.requests, engine.errors, float(prompt), float(hits)


def _since(times: Histogram, then: list[int]) -> Histogram:
    """What came after."""
    found = Histogram()
    found.counts = [a - b for a, b in zip(times.counts, then or [0] * len(times.counts), strict=True)]
    return found


def _quantile(times: Histogram, q: float) -> float | None:
    value = times.quantile(q) if times.count else None
    return None if value == float("inf") else value
