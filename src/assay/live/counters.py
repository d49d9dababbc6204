"""What the gateway counts, and how Prometheus reads it.

Counting is on the path of every token, so it is plain numbers; the exposition format is made when somebody asks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from assay.live.gateway import Gateway

_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)


class Histogram:
    """Seconds, in buckets.

    >>> times = Histogram()
    >>> times.observe(0.02); times.observe(3.0)
    >>> times.count, times.total, times.quantile(0.5)
    (2, 3.02, 0.025)
    """

    __slots__ = ("counts", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(_BOUNDS) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        """One more."""
        self.counts[bisect_left(_BOUNDS, seconds)] += 1
        self.total += seconds

    @property
    def count(self) -> int:
        """How many."""
        return sum(self.counts)

    def quantile(self, q: float) -> float:
        """An upper bound: the bucket's."""
        need, seen = q * self.count, 0
        for bound, count in zip((*_BOUNDS, float("inf")), self.counts, strict=True):
            seen += count
            if seen >= need and seen:
                return bound
        return 0.0

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative, as Prometheus wants them."""
        rows, seen = [], 0
        for bound, count in zip((*_BOUNDS, float("inf")), self.counts, strict=True):
            seen += count
            rows.append(("+Inf" if bound == float("inf") else repr(bound), float(seen)))
        return rows


class Counters:
    """The numbers of a gateway."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()  # by endpoint and status
        self.refused: Counter[int] = Counter()  # before they were understood, by status
        self.ttft = Histogram()
        self.itl = Histogram()
        self.e2e = Histogram()
        self.queueing = Histogram()
        self.policy = Histogram()
        self.retries = 0
        self.policy_errors = 0
        self.log_errors = 0
        self.prompt_tokens = 0
        self.completion_tokens = 0


class Exposition:
    """A prometheus_client collector over a gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def collect(self) -> Iterator[Any]:
        """All families."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        counters, gateway = self._gateway.counters, self._gateway
        answered = CounterMetricFamily(
            "assay_gateway_requests", "Answers, by endpoint and status", labels=["endpoint", "status"]
        )
        for (endpoint, status), count in counters.requests.items():
            answered.add_metric([endpoint, str(status)], count)
        yield answered
        refused = CounterMetricFamily("assay_gateway_refused", "Requests that could not be read", labels=["status"])
        for status, count in counters.refused.items():
            refused.add_metric([str(status)], count)
        yield refused
        for name, help_text, value in (
            ("retries", "Requests sent to another engine after one failed", counters.retries),
            ("policy_errors", "Decisions that a policy failed to make", counters.policy_errors),
            ("prompt_tokens", "Tokens of prompts", counters.prompt_tokens),
            ("completion_tokens", "Tokens of answers", counters.completion_tokens),
        ):
            yield CounterMetricFamily(f"assay_gateway_{name}", help_text, value=value)
        for name, help_text, times in (
            ("time_to_first_token_seconds", "From arrival to the first event of a stream", counters.ttft),
            ("inter_token_latency_seconds", "Between two events of a stream", counters.itl),
            ("request_seconds", "From arrival to the last byte", counters.e2e),
            ("queue_seconds", "Waiting in the gateway", counters.queueing),
            ("policy_seconds", "One decision", counters.policy),
        ):
            yield HistogramMetricFamily(
                f"assay_gateway_{name}", help_text, buckets=times.buckets(), sum_value=times.total
            )
        yield GaugeMetricFamily(
            "assay_gateway_queue", "Requests that wait in the gateway", value=gateway.placing.waiting
        )
        yield from self._engines()

    def _engines(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        fleet = self._gateway.fleet
        rows = (
            ("up", "1 where requests are sent to it", lambda e: float(e.state == "up")),
            ("aboard", "Requests sent and not answered", lambda e: e.aboard),
            ("prefill_tokens", "Prompt tokens sent and not answered", lambda e: int(fleet.prefill_tokens[e.number])),
            ("kv_tokens", "Tokens of the answers under way", lambda e: int(fleet.kv_tokens[e.number])),
            ("requests_total", "Requests it was sent", lambda e: e.requests),
            ("errors_total", "Requests it failed", lambda e: e.errors),
        )
        for name, help_text, value in rows:
            family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            found = family(f"assay_gateway_engine_{name}", help_text, labels=["engine"])
            for engine in fleet.engines:
                found.add_metric([engine.name], value(engine))
            yield found


def exposition(gateway: Gateway) -> bytes:
    """The page at /metrics."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Exposition(gateway))
    return generate_latest(registry)
