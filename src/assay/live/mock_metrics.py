"""The metrics page of the mock engine, under vLLM's names."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

# vLLM's own bounds, in seconds.
_FIRST = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_BETWEEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_REQUEST = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0)
_LATE = (1e-4, 2e-4, 3e-4, 5e-4, 7.5e-4, 1e-3, 1.5e-3, 2e-3, 3e-3, 5e-3, 1e-2, 2e-2, 5e-2)


class Histogram:
    """Counts by upper bound.

    >>> times = Histogram((0.1, 1.0))
    >>> times.add(0.5)
    >>> print("\\n".join(times.lines("t", 'a="b"')))
    t_bucket{a="b",le="0.1"} 0
    t_bucket{a="b",le="1.0"} 1
    t_bucket{a="b",le="+Inf"} 1
    t_sum{a="b"} 0.5
    t_count{a="b"} 1
    """

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """One more value, or several equal ones."""
        self._counts[bisect_left(self._bounds, value)] += times
        self._sum += value * times

    def lines(self, name: str, labels: str) -> Iterator[str]:
        """The samples of a page."""
        total = 0
        for bound, count in zip((*self._bounds, "+Inf"), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{{labels},le="{bound}"}} {total}'
        yield f"{name}_sum{{{labels}}} {self._sum!r}"
        yield f"{name}_count{{{labels}}} {total}"


class Steps(NamedTuple):
    """Iterations and the tokens in all of them: a histogram of which only the sum and the count are known."""

    tokens: int = 0
    iterations: int = 0

    def lines(self, name: str, labels: str) -> Iterator[str]:
        """The samples of a page."""
        yield f'{name}_bucket{{{labels},le="+Inf"}} {self.iterations}'
        yield f"{name}_sum{{{labels}}} {self.tokens}"
        yield f"{name}_count{{{labels}}} {self.iterations}"


class Metrics:
    """What is counted by request; times in seconds of the wall clock."""

    def __init__(self) -> None:
        self.ttft = Histogram(_FIRST)
        self.itl = Histogram(_BETWEEN)
        self.e2e = Histogram(_REQUEST)
        self.queue = Histogram(_REQUEST)
        self.prefill = Histogram(_REQUEST)
        self.decode = Histogram(_REQUEST)
        self.lateness = Histogram(_LATE)
        self.ended: Counter[str] = Counter({"stop": 0, "length": 0, "abort": 0})
        self.faults: Counter[str] = Counter()

    def page(
        self,
        model: str,
        gauges: dict[str, float],
        counters: dict[str, float],
        config: Mapping[str, object],
        steps: Steps,
    ) -> bytes:
        """The page. `gauges`, `counters` and `steps` are the instance's own; `config` describes its cache."""
        labels = f'engine="0",model_name="{_escaped(model)}"'
        lines: list[str] = []
        for name, value in gauges.items():
            lines += _family(name, "gauge", [f"vllm:{name}{{{labels}}} {value!r}"])
        told = ",".join(f'{name}="{_escaped(str(value))}"' for name, value in config.items())
        lines += _family("cache_config_info", "gauge", [f'vllm:cache_config_info{{engine="0",{told}}} 1.0'])
        for name, value in counters.items():
            lines += _family(name, "counter", [f"vllm:{name}_total{{{labels}}} {value!r}"])
        ended = [
            f'vllm:request_success_total{{{labels},finished_reason="{reason}"}} {count}'
            for reason, count in self.ended.items()
        ]
        lines += _family("request_success", "counter", ended)
        for name, histogram in self._histograms():
            lines += _family(name, "histogram", histogram.lines(f"vllm:{name}", labels))
        lines += _family("iteration_tokens_total", "histogram", steps.lines("vllm:iteration_tokens_total", labels))
        late = self.lateness.lines("assay:token_lateness_seconds", labels)
        lines += _family("token_lateness_seconds", "histogram", late, "assay")
        met = [f'assay:faults_total{{{labels},kind="{kind}"}} {count}' for kind, count in self.faults.items()]
        lines += _family("faults", "counter", met, "assay")
        return "\n".join([*lines, ""]).encode()

    def _histograms(self) -> Iterator[tuple[str, Histogram]]:
        yield "time_to_first_token_seconds", self.ttft
        yield "inter_token_latency_seconds", self.itl
        yield "e2e_request_latency_seconds", self.e2e
        yield "request_queue_time_seconds", self.queue
        yield "request_prefill_time_seconds", self.prefill
        yield "request_decode_time_seconds", self.decode


_HELP = {
    "num_requests_running": "Requests in the batch.",
    "num_requests_waiting": "Requests in the queue.",
    "kv_cache_usage_perc": "Share of the KV cache that running requests hold; 1 is all.",
    "cache_config_info": "How the KV cache is laid out.",
    "prefix_cache_queries": "Prompt tokens looked for in the prefix cache.",
    "prefix_cache_hits": "Prompt tokens found in the prefix cache.",
    "num_preemptions": "Requests that lost their place in the batch.",
    "prompt_tokens": "Prompt tokens computed or found.",
    "generation_tokens": "Tokens generated.",
    "request_success": "Requests that ended, by the reason.",
    "time_to_first_token_seconds": "From a request's arrival to its first token.",
    "inter_token_latency_seconds": "Between two tokens of a request.",
    "e2e_request_latency_seconds": "From a request's arrival to its last token.",
    "request_queue_time_seconds": "From a request's arrival to its place in the batch.",
    "request_prefill_time_seconds": "From a request's place in the batch to its first token.",
    "request_decode_time_seconds": "From a request's first token to its last.",
    "iteration_tokens_total": "Tokens of one iteration; how they spread is not told.",
    "token_lateness_seconds": "How much later than simulated the last token of an iteration was written.",
    "faults": "Requests that met a fault.",
}


def _family(name: str, kind: str, samples: Iterable[str], prefix: str = "vllm") -> list[str]:
    full = f"{prefix}:{name}" + ("_total" if kind == "counter" else "")
    return [f"# HELP {full} {_HELP[name]}", f"# TYPE {full} {kind}", *samples]


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
