"""What PyTorch records becomes a trace that survives the round trip and replays in the time that was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from assay.observe.chakra import record as et_record
from assay.observe.chakra import trials
from assay.observe.graphs import link
from assay.observe.graphs.events import Args, Event, Profile
from assay.observe.graphs.generate import device, generate
from assay.observe.graphs.link import linked
from assay.observe.graphs.replay import Link, Network, Plan, critical_path, longest_chain, replay
from assay.record import catalogue
from assay.record.lab import Lab
from assay.record.types import NotMeasured, Verdict
from assay.record.verdicts import judge
from assay.workloads import chakra, chakra_json
from assay.workloads.chakra import COLL, Graph


def event(name: str, ts: float, dur: float, cat: str = "cpu_op", tid: int = 1, **args: Any) -> Event:
    return Event("X", cat, name, ts, dur, 0, tid, Args(**args))


# ------------------------------------------------------------------------------------------------ a real job


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, et_record.Window]:
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("recorded")
    return folder, et_record.record(et_record.Job(steps=2), [None], keep=folder)[0]


def test_a_trace_of_our_own_torch_job_survives_the_round_trip(
    job: tuple[Path, et_record.Window], tmp_path: Path
) -> None:
    folder, _ = job
    for rank in range(2):
        graph = link.link(folder / f"device.0.{rank}.json", folder / f"host.0.{rank}.json")
        assert graph.rank == rank
        for name in (f"job.{rank}.et", f"job.{rank}.et.gz", f"job.{rank}.json"):
            chakra.write(graph, tmp_path / name)
            again = chakra.read(tmp_path / name)
            assert chakra.encode(again) == chakra.encode(graph) or name.endswith(".json")
            assert [again.attributes(i) for i in range(len(again))] == [graph.attributes(i) for i in range(len(graph))]
            assert again.data_deps == graph.data_deps and again.ctrl_deps == graph.ctrl_deps


def test_every_collective_of_the_job_has_a_producer_a_size_and_a_reader(job: tuple[Path, et_record.Window]) -> None:
    _, window = job
    for recorded, host in zip(window.profiles, window.hosts, strict=True):
        graph = linked(recorded, host)
        collectives = np.flatnonzero(graph.type == COLL)
        assert len(collectives) >= 2  # at least one bucket a step
        for at in collectives.tolist():
            assert len(graph.data_deps[at]) >= 1
            assert graph.attributes(at)["comm_size"] > 0
            assert (graph.data_deps.values == graph.id[at]).any()


@pytest.mark.parametrize("bare", [False, True])
def test_the_jobs_replay_takes_the_measured_time(job: tuple[Path, et_record.Window], bare: bool) -> None:
    """Replayed under its own parameters; both times come from the same recording, so load on the machine is in both."""
    _, window = job
    graphs = [linked(p, None if bare else h) for p, h in zip(window.profiles, window.hosts, strict=True)]
    measured = max(trials._span(recorded) for recorded in window.profiles)
    outcome = replay(graphs)
    assert longest_chain(graphs) <= outcome.makespan * (1 + 1e-9)
    assert critical_path(outcome)["seconds"].sum() == pytest.approx(outcome.makespan)
    assert outcome.makespan == pytest.approx(measured, rel=0.5)  # a tenth on a quiet machine: see below


@pytest.mark.timed
def test_on_a_quiet_machine_the_replay_is_within_a_tenth_of_the_measured_step() -> None:
    pytest.importorskip("torch")
    rows = trials.recorded(windows=5, steps=5, seed=0).values()
    table = pl.from_dicts([row for row in rows if row["experiment"] == "step"], infer_schema_length=None)
    errors = table.filter(pl.col("method") == "replay").group_by("late").agg(pl.col("error").mean())
    assert dict(errors.rows())[False] <= 0.10
    assert dict(errors.rows())[True] <= 0.10


# ------------------------------------------------------------------------------------------------ the study


@pytest.mark.traces
def test_the_published_samples_replay_and_say_what_they_lack() -> None:
    rows = trials.samples(seed=0)
    works = {(row["source"], row["method"]): row["works"] for row in rows.values()}
    for use in ("store", "analyse", "replay", "simulate", "generate"):
        assert works["sample chakra.0.et", use]
    assert not works["sample chakra.0.json", "simulate"]  # no sizes of collectives are in that layout's samples


@pytest.mark.parametrize("seed", [0, 1000, 77_123])
def test_a_drawn_jobs_step_falls_with_bandwidth_and_stays_above_its_longest_chain(seed: int) -> None:
    plan = Plan.of(generate(trials.drawn(16, seed), device("h100")))
    networks = [trials.NETWORK.scaled(bandwidth=factor) for factor in (0.25, 1.0, 4.0)]
    steps = [replay(plan, network).makespan for network in networks]
    assert steps == sorted(steps, reverse=True) and steps[0] > steps[-1]
    assert all(s >= longest_chain(plan, net) * (1 - 1e-9) for s, net in zip(steps, networks, strict=True))


def test_a_generated_job_serves_every_use_and_is_another_for_another_seed() -> None:
    rows = trials.generated(ranks=16, seed=77_000)
    assert sum(row["works"] for row in rows.values() if row["experiment"] == "use") == 5
    assert len({trials.drawn(16, seed) for seed in (5, 6, 1000, 77_000)}) > 1


def test_uses_are_checks_that_can_fail() -> None:
    silent = Graph.of([1, 2], ["a", "all_reduce"], [4, COLL], data_deps=[[], []], duration_micros=[1, 1])
    assert not trials._simulates([silent])
    assert trials._stores([silent]) and trials._replays([silent])


def test_a_store_that_loses_an_attribute_or_a_name_is_no_store(monkeypatch: pytest.MonkeyPatch) -> None:
    columns: dict[str, Any] = {"id": [1, 2], "type": [4, 4], "data_deps": [[], [1]], "duration_micros": [5, 7]}
    graph = Graph.of(name=["a", "b"], attributes={"tid": [1, 2]}, **columns)
    assert trials._stores([graph])
    for lossy in (
        Graph.of(name=["a", "b"], **columns),
        Graph.of(name=["a", ""], attributes={"tid": [1, 2]}, **columns),
    ):
        text = chakra_json.encode(lossy)
        monkeypatch.setattr(trials.chakra_json, "encode", lambda _, text=text: text)
        assert not trials._stores([graph])
        monkeypatch.undo()


def test_a_plan_is_made_once_for_many_networks() -> None:
    rows = Graph.of([1, 2], ["a", "all_reduce"], [4, COLL], data_deps=[[], [1]], duration_micros=[5, 1],
                    attributes={"comm_type": [None, 0], "comm_size": [None, 10**6]})  # fmt: skip
    plan = Plan.of(rows)
    times = [replay(plan, Network(Link(0.0, bandwidth), ranks=4)).makespan for bandwidth in (1e9, 2e9)]
    assert (times[0] - 5e-6) / (times[1] - 5e-6) == pytest.approx(2)


def _uses(**vendors: str | None) -> pl.DataFrame:
    rows = [{"experiment": "use", "layout": "protobuf", "source": source.replace("_", " "), "method": use, "seed": 3,
             "works": True, "vendor": vendor}
            for source, vendor in vendors.items() for use in ("store", "simulate")]  # fmt: skip
    return pl.DataFrame(rows, schema_overrides={"vendor": pl.String})


def test_claims_say_what_is_missing_where_it_is() -> None:
    from assay.observe import chakra as paper

    table = _uses(generated=None)
    with pytest.raises(NotMeasured, match="assay traces get chakra"):
        paper.serves(table)
    with pytest.raises(NotMeasured, match="extra torch"):
        paper.times_the_error("timeline")(table)


def test_traces_of_one_vendor_say_nothing_of_several() -> None:
    from assay.observe import chakra as paper

    with pytest.raises(NotMeasured, match="of NVIDIA alone"):
        paper.vendors(_uses(a="NVIDIA", b="NVIDIA", generated=None))
    with pytest.raises(NotMeasured, match="none is at hand"):
        paper.vendors(_uses(generated=None))
    both = paper.vendors(_uses(a="NVIDIA", b="AMD", generated=None))
    assert (both.value, both.n) == (1.0, 4)


def test_one_use_that_fails_is_a_counterexample_and_is_named() -> None:
    from assay.observe import chakra as paper

    table = _uses(torch_job=None, generated=None).vstack(
        _uses(a="NVIDIA").with_columns(source=pl.lit(paper.SOURCES[1]))
    )
    sentence = next(one for one in catalogue.paper("chakra").claims if one.id == "one-format")
    assert judge(sentence, paper.serves(table)).verdict is Verdict.REPRODUCED
    fails = table.with_columns(works=(pl.col("source") != "generated") | (pl.col("method") != "simulate"))
    found = paper.serves(fails.vstack(table))  # under another seed it worked
    assert judge(sentence, found).verdict is Verdict.NOT_REPRODUCED
    assert found.cases == "generated does not serve to simulate"


def test_the_prediction_delays_the_ranks_that_were_late_in_the_steps_in_which_they_were() -> None:
    marks = [event(f"ProfilerStep#{n}", 100 * n, 100, "user_annotation") for n in range(2)]
    window = et_record.Window(None, tuple(Profile(marks, {"rank": rank}) for rank in range(2)), ())
    spent = [Graph.of([1, 2], ["a", "b"], 4, data_deps=[[], []], start_micros=[0, 100],
                      duration_micros=[10, 20], attributes={"tid": [1, 1]}, rank=rank)
             for rank in range(2)]  # fmt: skip
    made = trials._delayed(spent, window, et_record.Late((1, 0), (0.03, 0.02)))
    assert [graph.duration_micros.tolist() for graph in made] == [[10, 20_020], [30_010, 20]]


def test_a_rival_is_judged_beside_the_replay_on_late_windows_only() -> None:
    from assay.observe import chakra as paper

    errors = {(False, "timeline"): 0.9, (False, "replay"): 0.01, (True, "timeline"): 0.05, (True, "replay"): 0.05,
              (True, "end-to-end"): 0.3}  # fmt: skip
    rows = [
        {"experiment": "step", "late": late, "method": method, "run": f"{run} {method}", "seed": seed, "error": error}
        for (late, method), error in errors.items()
        for run in range(3)
        for seed in (7, 1000)
    ]
    asked = {claim.id: claim for claim in paper.claims}
    found = {id: asked[id].measure(pl.DataFrame(rows)) for id in ("end-to-end", "timeline")}
    verdicts = [judge(asked[id].question, estimate).verdict for id, estimate in found.items()]
    assert verdicts == [Verdict.REPRODUCED, Verdict.NOT_REPRODUCED]
    assert found["timeline"].n == 6


@pytest.mark.parametrize("size", ["quick", "full"])
def test_both_sizes_replay_the_job_whose_speed_is_claimed(size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from assay.observe import chakra as paper

    asked: list[Any] = []

    def run(lab: Lab, function: Any, cases: list[dict[str, Any]], per: str) -> pl.DataFrame:
        asked.extend(case.get("ranks") for case in cases)
        return pl.DataFrame([{**case, "seed": 7} for case in cases])

    monkeypatch.setattr(Lab, "run", run)
    paper.study(Lab("chakra", size=size))
    assert 128 in asked


def test_in_every_late_window_each_rank_is_late_as_often(monkeypatch: pytest.MonkeyPatch) -> None:
    planned: list[Any] = []

    def record(job: et_record.Job, windows: list[Any]) -> None:
        planned.extend(windows)
        raise NotMeasured("nothing is recorded here")

    monkeypatch.setattr(et_record, "record", record)
    for seed in (0, 1000, 31_337):
        with pytest.raises(NotMeasured):
            trials.recorded(windows=5, steps=4, seed=seed)
    late = [window for window in planned if window is not None]
    assert len(late) == 15 == len(planned) - 15
    assert all(sum(second > 0 for second in one.of(rank)) == 2 for one in late for rank in range(2))
    assert len({tuple(one.of(0)) for one in late}) == 15  # drawn anew


def test_every_sentence_of_the_paper_is_answered() -> None:
    from assay.observe import chakra as paper

    assert {claim.id for claim in paper.claims if not claim.asks} == {c.id for c in catalogue.paper("chakra").claims}
