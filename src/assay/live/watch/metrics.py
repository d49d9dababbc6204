"""The watcher's summary as a page of metrics in Prometheus' text format, on loopback unless told otherwise."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer

import msgspec

from assay.live.watch.summary import Summary
from assay.record.errors import AssayError

STATES = ("reports", "behind", "ended", "silent", "gone", "stopped", "missing")
_PATIENCE = 2.0  # seconds for a reader's request

Samples = Iterable[tuple[Mapping[str, object], float]]


def page(summary: Summary) -> str:
    """All metrics of a summary.

    >>> text = page(Summary(expected=2, reporting=1, ranks=[], steps=4, step=0.5, accounting={"data": 2.0}, total=2.0))
    >>> [line for line in text.splitlines() if line.startswith("assay_stage_advance")]
    ['assay_stage_advance_seconds{stage="data"} 0.5']
    """
    steps = max(summary.steps, 1)
    ranks = summary.ranks
    state = [({"rank": row.rank, "state": name}, float(row.state == name)) for row in ranks for name in STATES]
    spent = [({"rank": row.rank, "stage": name}, value) for row in ranks for name, value in row.stages.items()]
    blamed = [({"rank": one.rank, "stage": one.stage}, one.score) for one in summary.suspects]
    heard = [row for row in ranks if row.state != "missing"]
    parts = [
        _metric("assay_ranks_expected", "gauge", "Ranks of the job.", [({}, summary.expected)]),
        _metric("assay_ranks_reporting", "gauge", "Ranks that report.", [({}, summary.reporting)]),
        _metric("assay_step_seconds", "gauge", "Mean step of the window.", [({}, summary.step)]),
        _metric("assay_stage_advance_seconds", "gauge", "What a stage adds to the group's step; they sum to it.",
                [({"stage": name}, value / steps) for name, value in summary.accounting.items()]),
        _metric("assay_stage_seconds", "gauge", "Mean time of a rank in a stage, waiting included.", spent),
        _metric("assay_suspect_score", "gauge", "Seconds a step that the group loses to this rank and stage.", blamed),
        _metric("assay_rank_last_step", "gauge", "Last step that a rank finished.",
                [({"rank": row.rank}, row.last_step) for row in heard if row.last_step >= 0]),
        _metric("assay_rank_state", "gauge", "1 for the state that a rank is in.", state),
        _metric("assay_rank_quiet_seconds", "gauge", "Since a rank's last word.",
                [({"rank": row.rank}, row.quiet) for row in heard]),
        _metric("assay_rank_restarts_total", "counter", "How often a rank began anew.",
                [({"rank": row.rank}, row.restarts) for row in heard]),
        _metric("assay_rank_dropped_steps_total", "counter", "Steps that a rank could not send.",
                [({"rank": row.rank}, row.dropped) for row in heard]),
        _metric("assay_idle_seconds", "gauge", "Since any rank finished a step.", [({}, summary.idle)]),
        _metric("assay_reports_total", "counter", "Reports taken.", [({}, summary.reports)]),
        _metric("assay_reports_refused_total", "counter", "What was left aside.",
                [({"reason": why}, count) for why, count in summary.refused.items()]),
    ]  # fmt: skip
    return "".join(parts)


def _metric(name: str, kind: str, told: str, samples: Samples) -> str:
    lines = [f"# HELP {name} {told}", f"# TYPE {name} {kind}"]
    for labels, value in samples:
        named = ",".join(f'{key}="{_escaped(str(label))}"' for key, label in labels.items())
        lines.append(f"{name}{{{named}}} {value:.12g}" if named else f"{name} {value:.12g}")
    return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


class MetricsPage:
    """Serves `GET /metrics` and, as JSON, `GET /summary` in a thread; one reader at a time, and none for long."""

    def __init__(self, port: int, latest: Callable[[], Summary], host: str = "127.0.0.1") -> None:
        class Answer(BaseHTTPRequestHandler):
            timeout = _PATIENCE

            def do_GET(self) -> None:
                path, kind = self.path.split("?")[0], "text/plain; version=0.0.4; charset=utf-8"
                found = path in ("/metrics", "/summary")
                body = page(latest()).encode() if path == "/metrics" else b"GET /metrics or /summary\n"
                if path == "/summary":
                    body, kind = msgspec.json.encode(latest()), "application/json"
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing: the terminal is drawn on."""

        class Quiet(HTTPServer):
            def handle_error(self, request: object, client_address: object) -> None:
                """A reader that hangs up is no news."""

        try:
            self._server = Quiet((host, port), Answer)
        except OSError as error:
            raise AssayError(
                f"cannot serve metrics on {host}:{port}: {(error.strerror or '').lower()}; choose another port"
            ) from error
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.2,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread and give the port back."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
