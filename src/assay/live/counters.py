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

OTHERS = "(others)"
_LONGEST = 100  # letters of a name
_MODELS = 200  # names of them
_SERIES = 5000  # of a counter
_HISTOGRAMS = 500  # of one kind: each has twenty series
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


class Names:
    """Names that metrics tell apart. Clients can make up as many as they like: those beyond the first are one.

    >>> names = Names(1)
    >>> names.of("qwen3-8b"), names.of("x"), names.of("qwen3-8b")
    ('qwen3-8b', '(others)', 'qwen3-8b')
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: dict[str, str] = {}  # what is asked for, and what it is called: something long is cut

    def of(self, name: str) -> str:
        """What it is called."""
        known = self._known.get(name)
        if known is None:
            if len(self._known) >= self._limit or len(name) > _LONGEST:
                return OTHERS
            known = self._known[name] = name
        return known


class Counters:
    """The numbers of a gateway."""

    def __init__(self) -> None:
        self.answers: Counter[tuple[str, int, str, str]] = Counter()  # by endpoint, status, model and tenant
        self.first: dict[tuple[str, str, str], Histogram] = {}  # times to first tokens, by model, tenant and engine
        self.tokens: dict[tuple[str, str, str], list[int]] = {}  # of prompts and of answers, likewise
        self.models = Names(_MODELS)
        self.refused: Counter[int] = Counter()  # before they were understood, by status
        self.itl = Histogram()
        self.e2e = Histogram()
        self.queueing = Histogram()
        self.policy = Histogram()
        self.retries = 0
        self.policy_errors = 0

    @property
    def requests(self) -> Counter[tuple[str, int]]:
        """Answers by endpoint and status."""
        found: Counter[tuple[str, int]] = Counter()
        for (endpoint, status, _, _), count in self.answers.items():
            found[endpoint, status] += count
        return found

    @property
    def ttft(self) -> Histogram:
        """Times to first tokens, all of them."""
        found = Histogram()
        for times in self.first.values():
            found.counts = [a + b for a, b in zip(found.counts, times.counts, strict=True)]
            found.total += times.total
        return found

    @property
    def prompt_tokens(self) -> int:
        """Of all prompts."""
        return sum(prompt for prompt, _ in self.tokens.values())

    @property
    def completion_tokens(self) -> int:
        """Of all answers."""
        return sum(output for _, output in self.tokens.values())

    def of_tenants(self) -> dict[str, tuple[int, int]]:
        """Tokens of prompts and answers by tenant."""
        found: dict[str, tuple[int, int]] = {}
        for (_, tenant, _), (prompt, output) in self.tokens.items():
            before = found.get(tenant, (0, 0))
            found[tenant] = before[0] + prompt, before[1] + output
        return found

    def answered(self, endpoint: str, status: int, model: str, tenant: str) -> None:
        """A request is over."""
        named = endpoint, status, model, tenant
        count = self.answers.get(named, 0)
        if not count and len(self.answers) >= _SERIES:
            named = endpoint, status, model, OTHERS
            count = self.answers[named]
        self.answers[named] = count + 1

    def began(self, seconds: float, model: str, tenant: str, engine: str) -> None:
        """The first token of a stream came."""
        times = self.first.get((model, tenant, engine))
        if times is None:
            named = (model, tenant if len(self.first) < _HISTOGRAMS else OTHERS, engine)
            times = self.first.setdefault(named, Histogram())
        times.observe(seconds)

    def used(self, prompt: int, output: int, model: str, tenant: str, engine: str) -> None:
        """Tokens that an engine computed."""
        both = self.tokens.get((model, tenant, engine))
        if both is None:
            named = (model, tenant if len(self.tokens) < _SERIES else OTHERS, engine)
            both = self.tokens.setdefault(named, [0, 0])
        both[0] += prompt
        both[1] += output


class Exposition:
    """A prometheus_client collector over a gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def collect(self) -> Iterator[Any]:
        """All families."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        counters, gateway = self._gateway.counters, self._gateway
        answered = CounterMetricFamily(
            "assay_gateway_requests",
            "Answers, by endpoint and status",
            labels=["endpoint", "status", "model", "tenant"],
        )
        for (endpoint, status, model, tenant), count in counters.answers.items():
            answered.add_metric([endpoint, str(status), model, tenant], count)
        yield answered
        refused = CounterMetricFamily("assay_gateway_refused", "Requests that could not be read", labels=["status"])
        for status, count in counters.refused.items():
            refused.add_metric([str(status)], count)
        yield refused
        for name, help_text, value in (
            ("retries", "Requests sent to another engine after one failed", counters.retries),
            ("policy_errors", "Decisions that a policy failed to make", counters.policy_errors),
            ("log_lost", "Lines that the access log had no room for", gateway.log.lost),
        ):
            yield CounterMetricFamily(f"assay_gateway_{name}", help_text, value=value)
        yield from self._by_tenant()
        yield from self._by_key()
        for name, help_text, times in (
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

    def _by_tenant(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily

        counters, labels = self._gateway.counters, ["model", "tenant", "engine"]
        for i, (name, what) in enumerate((("prompt", "prompts"), ("completion", "answers"))):
            tokens = CounterMetricFamily(
                f"assay_gateway_{name}_tokens", f"Tokens of {what} that engines computed", labels=labels
            )
            for named, both in counters.tokens.items():
                tokens.add_metric(named, both[i])
            yield tokens
        first = HistogramMetricFamily(
            "assay_gateway_time_to_first_token_seconds", "From arrival to the first event of a stream", labels=labels
        )
        for named, times in counters.first.items():
            first.add_metric(named, times.buckets(), times.total)
        yield first

    def _by_key(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        labels, now = ["tenant", "key", "of"], self._gateway.now()
        limits = GaugeMetricFamily("assay_gateway_key_limit", "What a key may use", labels=labels)
        used = GaugeMetricFamily("assay_gateway_key_used", "What it uses, or has used of it", labels=labels)
        refused = CounterMetricFamily("assay_gateway_key_refused", "Requests that it may not make", labels=labels)
        for purse in self._gateway.quotas.purses:
            uses = purse.uses(now)
            for of in purse.allowance.__dataclass_fields__:
                if limit := getattr(purse.allowance, of):
                    named = [purse.tenant, purse.name, of]
                    limits.add_metric(named, limit)
                    used.add_metric(named, uses[of])
                    refused.add_metric(named, purse.refused[of])
        yield from (limits, used, refused)

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
