"""What a run measured: every request's times, every instance's work, and the figures people compare by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from assay.serving.engine import state
from assay.serving.engine.flow import Flow
from assay.serving.fleet import FleetSpec
from assay.serving.interface import SLO
from assay.workloads.prefixes import turns
from assay.workloads.requests import Requests

if TYPE_CHECKING:
    from assay.serving.engine.simulator import Simulation

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Outcome:
    """Every request's times, exactly; and the span table, from which everything between tokens follows."""

    requests: Requests
    fleet: FleetSpec
    served: NDArray[np.bool_]  # which requests fitted somewhere; the others were refused
    records: state.Records
    instances: state.Records
    caches: state.Records
    spans: state.Records
    sim_seconds: float
    policy_seconds: float
    decisions: int
    loop: str = "open"  # closed: later turns were sent when the one before had ended; open: at the trace's arrivals

    @classmethod
    def of(cls, simulation: Simulation, seconds: float) -> Outcome:
        """Gather what a finished simulation holds."""
        w = simulation.world
        return cls(
            simulation.requests, simulation.fleet, simulation.fits, w.requests, w.instances, w.caches,
            w.spans[: w.counts[state.SPANS]], seconds, simulation.policy_seconds, simulation.decisions,
            "open" if simulation.requests.after is None else "closed",
        )  # fmt: skip

    @cached_property
    def asked(self) -> NDArray[np.bool_]:
        """Which requests the figures are of: those sent while the load was what it should be, else all."""
        if self.requests.steady is None:
            return np.ones(len(self.served), np.bool_)
        start, stop = self.requests.steady
        sent = np.where(self.served, self.records["arrival"], self.requests.arrival)
        return np.asarray((sent >= start) & (sent < stop))

    @cached_property
    def judged(self) -> NDArray[np.bool_]:
        """Those of them that were served: one value each in `ttft`, `tpot`, `e2e`, `queueing` and `met`."""
        return self.served & self.asked

    def _of(self, name: str) -> Floats:
        return np.asarray(self.records[name][self.judged], dtype=np.float64)

    @cached_property
    def flow(self) -> Flow:
        """What came and what went in the steady window."""
        return Flow.of(self)

    @property
    def offered(self) -> float:
        """Requests a second that were sent while sessions began; what long sessions still send afterwards is left out.

        In a closed loop this hangs on the answers: who waits longer asks less often.
        """
        if self.requests.steady is not None:
            return self.flow.offered
        sent, after = self._of("arrival"), self.requests.after
        begun = sent if after is None else sent[after[self.served] < 0]
        if not len(begun) or begun.max() == begun.min():
            return float("inf")
        return float((sent <= begun.max()).sum() / (begun.max() - begun.min()))

    @property
    def early(self) -> float:
        """Share of the later turns that were sent before the turn they continue had ended; none in a closed loop."""
        before = turns(self.requests) if self.requests.after is None else self.requests.after
        later = np.flatnonzero((before >= 0) & self.served & self.served[before])
        if not len(later):
            return 0.0
        return float((self.records["arrival"][later] < self.records["finish"][before[later]]).mean())

    @property
    def ttft(self) -> Floats:
        """Sent to first token."""
        return self._of("first") - self._of("arrival")

    @property
    def tpot(self) -> Floats:
        """Mean time between the tokens of a request; 0 where it has one token."""
        gaps = np.maximum(self._of("output") - 1, 1)
        return (self._of("finish") - self._of("first")) / gaps

    @property
    def e2e(self) -> Floats:
        """Sent to last token."""
        return self._of("finish") - self._of("arrival")

    @property
    def queueing(self) -> Floats:
        """Sent to first admission."""
        return self._of("admitted") - self._of("arrival")

    @property
    def table(self) -> pl.DataFrame:
        """One row per served request."""
        names = ("prompt", "output", "instance", "cached", "preemptions")
        return pl.DataFrame(
            {"request": np.flatnonzero(self.judged), "arrival": self._of("arrival")}
            | {name: self.records[name][self.judged] for name in names}
            | {"ttft": self.ttft, "tpot": self.tpot, "e2e": self.e2e, "queueing": self.queueing}
        )

    @property
    def cached_ratio(self) -> float:
        """Share of prompt tokens that came from a cache."""
        return float(self._of("cached").sum() / max(self._of("prompt").sum(), 1))

    @property
    def makespan(self) -> float:
        """First request sent to last token; of a steady load, its window."""
        return self.span if self.requests.steady is None else self.requests.steady[1] - self.requests.steady[0]

    @property
    def span(self) -> float:
        """First request sent to last token, steady or not."""
        records = self.records[self.served]
        return float(records["finish"].max() - records["arrival"].min()) if len(records) else 0.0

    @property
    def joules(self) -> float:
        """Energy of the fleet over the makespan: idling, and work above it."""
        idle = sum(spec.cost.energy.idle_watts for spec in self.fleet.instances if spec.cost.energy is not None)
        share = 1.0 if self.requests.steady is None else self.flow.share
        return float(self.instances["joules"].sum()) * share + idle * self.makespan

    @property
    def imbalance(self) -> float:
        """Share of their time that members of lock-step groups wait for the slowest."""
        busy = float(self.instances["busy"].sum())
        return float(self.instances["gap"].sum()) / busy if busy else 0.0

    def met(self, slo: SLO | Mapping[str, SLO]) -> NDArray[np.bool_]:
        """Which served requests met their targets.

        A mapping gives each tier its own; "" stands for the other tiers, and for requests without one.
        """
        ttft, tpot, e2e = slo if isinstance(slo, SLO) else self._by_tier(slo)
        return np.asarray((self.ttft <= ttft) & (self.tpot <= tpot) & (self.e2e <= e2e))

    def _by_tier(self, slo: Mapping[str, SLO]) -> Floats:
        """The targets of each served request, a row a measure."""
        others, tier = slo.get("", SLO()), self.requests.tier
        # The last row is found by -1, the code of a request without a tier.
        limits = np.array([*(slo.get(name, others) for name in self.requests.tiers), others])
        codes = np.full(len(self.served), -1) if tier is None else tier
        return np.asarray(limits[codes[self.judged]].T)

    def goodput(self, slo: SLO | Mapping[str, SLO]) -> float:
        """Requests a second that met all their targets; of a steady load, those sent in its window."""
        return float(self.met(slo).sum()) / self.makespan if self.makespan else 0.0

    def attainment(self, slo: SLO | Mapping[str, SLO], counted: NDArray[np.bool_] | None = None) -> float:
        """Share of all requests, or of those counted, that met their targets; refused ones did not."""
        met, asked = self.met(slo), self.asked
        if counted is not None:
            met, asked = met[counted[self.judged]], asked & counted
        return float(met.sum()) / max(int(asked.sum()), 1)

    def itl(self, quantiles: Any = (0.5, 0.9, 0.99)) -> Floats:
        """Quantiles of the time between two tokens, over all tokens, from the span table.

        A span of m iterations with b decodes holds b copies of an arithmetic progression; those that are longer than
        a value are counted in closed form, so the quantile is found by bisection without listing any.
        """
        rows = self.spans[self.spans["decodes"] > 0]
        if self.requests.steady is not None:
            start, stop = self.requests.steady
            rows = rows[(rows["start"] >= start) & (rows["start"] < stop)]
        if not len(rows):
            return np.full(len(np.atleast_1d(quantiles)), np.nan)
        first = rows["alpha"] + rows["stall"]
        alpha, gamma, b = rows["alpha"] + rows["gamma"], rows["gamma"], rows["decodes"].astype(float)
        rest = (rows["iterations"] - 1).astype(float)
        total = float((b * rows["iterations"]).sum())

        def at_most(x: float) -> float:
            steep = gamma > 0
            inside = np.where(
                steep, np.floor((x - alpha) / np.where(steep, gamma, 1.0)) + 1, np.where(alpha <= x, rest, 0)
            )
            return float((b * ((first <= x) + np.clip(inside, 0, rest))).sum())

        top = float(np.maximum(first, alpha + gamma * np.maximum(rest - 1, 0)).max())
        return np.array([_bisect(at_most, float(q) * total, top) for q in np.atleast_1d(quantiles)])

    def summary(self, slo: SLO | Mapping[str, SLO] | None = None) -> dict[str, Any]:
        """The figures people compare by; None where nobody was served to tell.

        >>> from assay.serving import parse, simulate, RoundRobin
        >>> refused = simulate(Requests.of([0.0], [5_000_000], [9]), parse("1xh200:qwen3-8b"), RoundRobin()).summary()
        >>> refused["refused"], refused["goodput"], refused["ttft_mean"]
        (1, 0.0, None)
        """
        ttft, tpot, e2e = self.ttft, self.tpot[self._of("output") > 1], self.e2e
        if not len(tpot):
            tpot = np.zeros(len(ttft))
        tokens = self.flow.tokens / self.makespan if self.requests.steady else self._of("output").sum() / max(
            self.makespan, 1e-12)  # fmt: skip
        row = {
            "requests": int(self.judged.sum()), "refused": int((self.asked & ~self.served).sum()),
            "offered": self.offered, "completed": self.flow.completed,
            "ttft_mean": _mean(ttft), "ttft_p50": _quantile(ttft, 0.5), "ttft_p99": _quantile(ttft, 0.99),
            "tpot_mean": _mean(tpot), "tpot_p50": _quantile(tpot, 0.5), "tpot_p99": _quantile(tpot, 0.99),
            "e2e_mean": _mean(e2e), "e2e_p99": _quantile(e2e, 0.99), "queueing_mean": _mean(self.queueing),
            "itl_p99": self.itl(0.99)[0] if len(ttft) else None, "cached_ratio": self.cached_ratio,
            "goodput": self.goodput(slo or SLO()), "attainment": self.attainment(slo or SLO()),
            "tokens_per_second": tokens, "preemptions": int(self.records["preemptions"].sum()),
            "joules_per_request": self.joules / max(len(ttft), 1), "imbalance": self.imbalance,
            "sim_seconds": self.sim_seconds,
        }  # fmt: skip
        return {name: value if value is None or isinstance(value, int) else float(value) for name, value in row.items()}


def _mean(values: Floats) -> float | None:
    return float(values.mean()) if len(values) else None


def _quantile(values: Floats, share: float) -> float | None:
    return float(np.quantile(values, share)) if len(values) else None


def _bisect(count: Any, wanted: float, top: float) -> float:
    """The smallest x with count(x) >= wanted, to nine digits."""
    low, high = 0.0, top
    while high - low > 1e-9 * top:
        middle = 0.5 * (low + high)
        if count(middle) >= wanted:
            high = middle
        else:
            low = middle
    return high
