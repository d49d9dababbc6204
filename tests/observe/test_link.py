"""What PyTorch records is linked into one graph: who waited for whom, on host and device, within a rank and across."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.observe.chakra import trials
from assay.observe.graphs import events as et_events
from assay.observe.graphs import link
from assay.observe.graphs.events import Args, Event, HostGraph, Operation, Profile, Tensors
from assay.observe.graphs.link import linked
from assay.observe.graphs.replay import replay
from assay.record.errors import BadInput
from assay.workloads import chakra, kineto_generate
from assay.workloads.chakra import COLL, RECV, SEND, Graph


def event(name: str, ts: float, dur: float, cat: str = "cpu_op", tid: int = 1, **args: Any) -> Event:
    return Event("X", cat, name, ts, dur, 0, tid, Args(**args))


def profile(*events: Event, rank: int = 0) -> Profile:
    return Profile([event("ProfilerStep#1", 0, 100, "user_annotation"), *events],
                   {"rank": rank, "pg_config": [{"pg_name": "0", "pg_size": 2}]})  # fmt: skip


def deps(graph: Graph, name: str) -> list[list[str]]:
    """Names of what each node of this name waits for."""
    names = {int(graph.id[i]): graph.names[graph.name[i]] for i in range(len(graph))}
    return [
        [names[dep] for dep in graph.data_deps[i].tolist()]
        for i in range(len(graph)) if graph.names[graph.name[i]] == name
    ]  # fmt: skip


def durations(graph: Graph) -> list[tuple[str, int]]:
    return [(graph.names[graph.name[i]], int(graph.duration_micros[i])) for i in range(len(graph))]


def test_a_callers_own_time_is_what_its_callees_leave_and_gaps_are_the_hosts() -> None:
    graph = linked(profile(event("linear", 10, 30), event("addmm", 15, 20), event("relu", 50, 10)), None)
    assert durations(graph) == [("host", 10), ("linear", 10), ("addmm", 20), ("host", 10), ("relu", 10), ("host", 40)]
    assert replay(graph).makespan * 1e6 == pytest.approx(100)


def test_a_kernel_waits_for_its_launch_and_its_stream_and_a_synchronisation_for_the_kernel() -> None:
    graph = linked(profile(
        event("cudaLaunchKernel", 0, 5, "cuda_runtime", correlation=1),
        event("cudaLaunchKernel", 5, 5, "cuda_runtime", correlation=2),
        event("a", 10, 30, "kernel", 7, correlation=1, stream=7),
        event("b", 40, 30, "kernel", 7, correlation=2, stream=7),
        event("cudaDeviceSynchronize", 10, 65, "cuda_runtime"),
    ), None)  # fmt: skip
    assert deps(graph, "a") == [["cudaLaunchKernel"]]
    assert sorted(deps(graph, "b")[0]) == ["a", "cudaLaunchKernel"]
    assert "b" in deps(graph, "cudaDeviceSynchronize")[0]
    assert ("cudaDeviceSynchronize", 5) in durations(graph)  # what is left after the kernel it waited for
    assert graph.whole_numbers("stream").max() == 7


def test_a_devices_collective_waits_for_the_kernels_before_it_and_its_readers_for_it() -> None:
    graph = linked(profile(
        launch(0, 1), launch(4, 2), event("cudaStreamWaitEvent", 8, 1, "cuda_runtime"), launch(10, 3),
        event("backward", 5, 20, "kernel", 7, correlation=1, stream=7),
        event("ncclDevKernel_AllReduce_Sum_f32_RING_LL", 25, 20, "kernel", 20, correlation=2, stream=20,
              collective="allreduce", sent=1000, received=1000, dtype="Float", group="0"),
        event("optimizer", 45, 5, "kernel", 7, correlation=3, stream=7),
    ), None)  # fmt: skip
    at = int(np.flatnonzero(graph.type == COLL)[0])
    assert "backward" in deps(graph, graph.names[graph.name[at]])[0]
    assert "ncclDevKernel_AllReduce_Sum_f32_RING_LL" in deps(graph, "optimizer")[0]
    said = graph.attributes(at)
    assert (said["comm_type"], said["comm_size"], said["pg_name"], said["pg_size"]) == (0, 4000, "0", 2)


def launch(ts: float, correlation: int, dur: float = 2, tid: int = 1) -> Event:
    return event("cudaLaunchKernel", ts, dur, "cuda_runtime", tid, correlation=correlation)


def kernel(name: str, ts: float, dur: float, stream: int, correlation: int) -> Event:
    return event(name, ts, dur, "kernel", stream, stream=stream, correlation=correlation)


def call(name: str, ts: float, correlation: int) -> Event:
    return event(name, ts, 1, "cuda_runtime", correlation=correlation)


def test_a_kernel_that_began_right_after_another_streams_though_launched_long_before_waited_for_it() -> None:
    graph = linked(profile(
        launch(0, 1), launch(2, 2), launch(4, 3), launch(34, 4),
        kernel("copy", 5, 30, 16, 1), kernel("beside", 6, 29, 20, 2), kernel("waited", 37, 20, 7, 3),
        kernel("just launched", 38, 10, 20, 4),
    ), None)  # fmt: skip
    assert sorted(deps(graph, "waited")[0]) in (["copy", "cudaLaunchKernel"], ["beside", "cudaLaunchKernel"])
    assert sorted(deps(graph, "just launched")[0]) == ["beside", "cudaLaunchKernel"]  # its stream's own, no wait
    assert replay(graph).makespan * 1e6 == pytest.approx(100)


def test_a_kernel_that_sat_ready_while_others_filled_the_device_is_replayed_as_late_as_it_began() -> None:
    graph = linked(profile(
        launch(0, 1), launch(2, 2), launch(4, 3), launch(6, 4),
        kernel("large", 5, 40, 7, 1), kernel("small", 35, 20, 16, 2), kernel("next", 47, 43, 7, 3),
        kernel("last", 80, 15, 20, 4),
    ), None)  # fmt: skip
    outcome = replay(graph)
    began = {graph.names[graph.name[i]]: outcome.start[i] * 1e6 for i in range(len(graph))}
    assert [began[name] for name in ("small", "next", "last")] == pytest.approx([35, 47, 80], abs=6)  # of launching
    assert [length for name, length in durations(graph) if name == "crowded"] == [30, 72]  # not "next", in its turn
    assert deps(graph, "last") == [["crowded"]]


def test_a_kernel_that_ran_beside_another_as_soon_as_it_was_launched_was_not_crowded() -> None:
    graph = linked(profile(
        launch(0, 1), launch(20, 2), kernel("large", 3, 60, 7, 1), kernel("beside", 24, 20, 16, 2),
    ), None)  # fmt: skip
    assert "crowded" not in graph.names


def test_a_collective_that_ran_beside_a_kernel_issued_before_it_did_not_wait_for_it() -> None:
    """As when the next layer's parameters are gathered during this one's compute."""
    gathered = "ncclDevKernel_AllGather_RING_LL"
    graph = linked(profile(
        launch(0, 1), launch(4, 2), kernel("layer", 3, 80, 7, 1), kernel(gathered, 8, 70, 20, 2),
    ), None)  # fmt: skip
    assert deps(graph, gathered) == [["cudaLaunchKernel"]]


def two_streams(*more: Event) -> Graph:
    """Stream 7 makes something by 10 and goes on to 60; stream 20, idle since 30, reads it or all of that at 62."""
    return linked(profile(
        launch(0, 1), call("cudaEventRecord", 3, 11), launch(5, 2), call("cudaEventRecord", 8, 12),
        launch(10, 3, tid=2), event("cudaStreamWaitEvent", 12, 1, "cuda_runtime", 2, correlation=13),
        launch(14, 4, tid=2),
        kernel("made", 2, 8, 7, 1), kernel("more", 10, 50, 7, 2), kernel("other", 13, 17, 20, 3),
        kernel("read", 62, 10, 20, 4), *more,
    ), None)  # fmt: skip


def told(name: str, correlation: int, recorded_by: int, stream: int = 20) -> Event:
    return event(name, 12, 1, "cuda_sync", stream, stream=stream, correlation=correlation, wait_on=7,
                 recorded_by=recorded_by)  # fmt: skip


def test_waits_follow_the_events_that_the_profiler_names() -> None:
    graph = two_streams(told("Stream Wait Event", 13, 11))
    assert sorted(deps(graph, "read")[0]) == ["cudaLaunchKernel", "made", "other"]  # and no guess beside what is told


def test_without_names_a_wait_call_is_for_the_newest_event_of_another_stream() -> None:
    assert sorted(deps(two_streams(), "read")[0]) == ["cudaLaunchKernel", "more", "other"]
    late = linked(profile(
        launch(0, 1), call("cudaEventRecord", 3, 11), launch(5, 2), call("cudaStreamWaitEvent", 8, 12), launch(10, 3),
        kernel("made", 2, 8, 20, 1), kernel("longer", 7, 50, 7, 2), kernel("read", 57, 10, 7, 3),
    ), None)  # fmt: skip
    assert sorted(deps(late, "read")[0]) == ["cudaLaunchKernel", "longer", "made"]


def test_a_host_waits_for_the_kernel_that_the_profiler_names_not_for_the_last_to_end() -> None:
    sync = event("cudaEventSynchronize", 20, 30, "cuda_runtime", correlation=14)
    guessed, named = (two_streams(sync, *more) for more in ((), (told("Event Sync", 14, 11),)))
    assert "other" in deps(guessed, "cudaEventSynchronize")[0]
    assert "made" in deps(named, "cudaEventSynchronize")[0] and "other" not in deps(named, "cudaEventSynchronize")[0]


def test_a_hosts_collective_of_the_devices_tensors_begins_behind_its_own_synchronisation() -> None:
    """gloo waits for the copy from the device, exchanges, and copies back: that copy is not its reader."""
    bucket = Tensors([[8, 175, 0, 500, 4, "cuda:0"]], [[500]], ["Tensor(float)"])
    names = ("c10d::allreduce_", "gloo:all_reduce", "aten::copy_", "aten::mul")
    ops = [Operation(n * 10, name, 3, bucket, Tensors(), [et_events.Attr("rf_id", "uint64", n)])
           for n, name in enumerate(names, 1)]  # fmt: skip
    recorded = profile(
        event("c10d::allreduce_", 0, 10, record=1), event("gloo:all_reduce", 12, 50, "user_annotation", 2, record=2),
        event("cudaMemcpyAsync", 8, 2, "cuda_runtime", correlation=1), event("aten::copy_", 50, 10, tid=2, record=3),
        event("Memcpy DtoH", 10, 10, "gpu_memcpy", 100, stream=100, correlation=1),
        event("cudaStreamSynchronize", 12, 10, "cuda_runtime", 2, correlation=2), event("aten::mul", 70, 10, record=4),
        event("gloo:all_reduce", 10, 10, "gpu_user_annotation", 100),
    )  # fmt: skip
    graph = linked(recorded, HostGraph(ops, "1.1.1"))
    assert sorted(deps(graph, "gloo:all_reduce")[0]) == ["c10d::allreduce_", "cudaStreamSynchronize"]
    assert "Memcpy DtoH" in deps(graph, "cudaStreamSynchronize")[0]
    assert "gloo:all_reduce" in deps(graph, "aten::mul")[0] and "gloo:all_reduce" not in deps(graph, "aten::copy_")[0]
    assert replay(graph).makespan * 1e6 == pytest.approx(100)


CALLS = (*("cudaLaunchKernel",) * 3, "cudaEventRecord", "cudaStreamWaitEvent", "cudaDeviceSynchronize")


@st.composite
def device_traces(draw: st.DrawFn) -> Profile:
    """Calls of two threads one after the other, and kernels that begin when they are launched or later."""
    events, clock, free, number = [], {1: 0, 2: 0}, {7: 0, 16: 0, 20: 0}, 0
    for _ in range(draw(st.integers(1, 25))):
        thread = draw(st.sampled_from((1, 2)))
        name = draw(st.sampled_from(CALLS))
        begin, number = clock[thread] + draw(st.integers(0, 20)), number + 1
        clock[thread] = end = begin + draw(st.integers(1, 30))
        events.append(event(name, begin, end - begin, "cuda_runtime", thread, correlation=number))
        if name == "cudaLaunchKernel":
            stream = draw(st.sampled_from((7, 16, 20)))
            start = max(free[stream], end) + draw(st.integers(0, 15))
            free[stream] = start + draw(st.integers(0, 40))
            title = draw(st.sampled_from(("mm", "ncclDevKernel_AllReduce_Sum_f32_RING_LL")))
            events.append(kernel(title, start, free[stream] - start, stream, number))
    length = max(*clock.values(), *free.values()) + 1
    return Profile([event("ProfilerStep#1", 0, length, "user_annotation"), *events], {"rank": 0})


@pytest.mark.parametrize(("cat", "name"), [("cuda_runtime", "cudaMemcpyAsync"), ("xpu_runtime", "urEnqueueUSMMemcpy")])
def test_a_call_that_blocks_is_a_launch_and_a_wait(cat: str, name: str) -> None:
    """The host's own time of it is short: with a device twice as fast the copy comes as much earlier."""
    events = [
        event("launch", 0, 5, cat, correlation=1), kernel("mm", 5, 80, 7, 1),
        event(name, 5, 90, cat, correlation=2), kernel("Memcpy DtoH", 85, 8, 7, 2), event("aten::relu", 95, 5),
    ]  # fmt: skip
    graph = linked(profile(*events), None)
    assert deps(graph, f"{name} waits") == [["Memcpy DtoH", name]]
    assert dict(durations(graph))[name] <= 5
    assert replay(graph).makespan * 1e6 == pytest.approx(100)
    faster = np.where(np.array(graph.names)[graph.name] == "mm", 40e-6, graph.duration)
    assert replay(graph, took=faster).makespan * 1e6 == pytest.approx(60)


@settings(deadline=None, max_examples=150)
@given(device_traces())
def test_no_guessed_wait_makes_a_replay_later_than_the_recording_or_a_circle(recorded: Profile) -> None:
    graph = linked(recorded, None)
    outcome = replay(graph)
    waits = np.array(graph.names)[graph.name] == "cudaDeviceSynchronize"  # these begin when the device is done
    assert (outcome.start * 1e6 <= graph.start_micros + 1e-6)[~waits].all()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    "job",
    [
        {"slow_rank": 1, "slow_by": 1.5},
        {"layers": 6, "bandwidth": 30e9},  # waits for the network
        {"layers": 4, "kernel": 8e-6, "bucket": 1 << 20},  # waits for the host
    ],
    ids=["even", "network", "host"],
)
def test_a_generated_gpu_jobs_replay_takes_the_measured_time(job: dict[str, Any], seed: int, tmp_path: Path) -> None:
    paths = kineto_generate.write(kineto_generate.Job(**({"steps": 2, "layers": 3, "seed": seed} | job)), tmp_path)
    measured = max(trials._span(et_events.read_profile(path)) for path in paths)
    assert replay([link.link(path) for path in paths]).makespan == pytest.approx(measured, rel=0.03)


def host_run(rank: int = 0, wait: int = 20, noted: int = 20) -> tuple[Profile, HostGraph]:
    """A host-run all-reduce, issued at 10 and read at 40 + wait; its end was noted so long after its start at 20."""
    bucket = [[8, 175, 0, 500, 4, "cpu"]]
    other = [[9, 99, 0, 500, 4, "cpu"]]
    recorded = profile(
        event("c10d::allreduce_", 10, 5, record=1), event("gloo:all_reduce", 20, noted, "user_annotation", 2, record=2),
        event("aten::mul", 20, 10, record=3), event("aten::copy_", 40 + wait, 10, record=4), rank=rank,
    )  # fmt: skip

    def op(number: int, name: str, values: list[Any]) -> Operation:
        tensors = Tensors(values, [[500]], ["Tensor(float)"])
        return Operation(number * 10, name, 3, tensors, Tensors(), [et_events.Attr("rf_id", "uint64", number)])

    return recorded, HostGraph([
        op(1, "c10d::allreduce_", bucket), op(2, "gloo:all_reduce", bucket), op(3, "aten::mul", other),
        op(4, "aten::copy_", bucket),
    ], "1.1.1")  # fmt: skip


def test_a_hosts_collective_is_tied_to_its_call_and_its_reader_by_the_tensors_storage() -> None:
    graph = linked(*host_run())
    assert deps(graph, "gloo:all_reduce") == [["c10d::allreduce_"]]
    assert "gloo:all_reduce" in deps(graph, "aten::copy_")[0] and "gloo:all_reduce" not in deps(graph, "aten::mul")[0]
    at = int(np.flatnonzero(graph.type == COLL)[0])
    assert graph.attributes(at)["comm_size"] == 2000 and int(graph.id[at]) == 20
    assert graph.ctrl_deps[at].tolist() == [3]  # not in the trace: kept
    assert b"cpu" in graph.tail[at].tobytes()
    assert ("host", 20) in durations(graph)  # of the 30 before the reader, those after the collective's end


def test_a_collective_whose_end_was_noted_late_was_over_when_it_was_read() -> None:
    graph = linked(*host_run(noted=70))  # gloo wakes those who wait first: read at 60, noted at 90
    assert "gloo:all_reduce" in deps(graph, "aten::copy_")[0]
    assert ("gloo:all_reduce", 40) in durations(graph)


def test_a_collective_that_the_host_graph_lost_is_tied_by_its_calls_storage() -> None:
    recorded, host = host_run(noted=70)
    graph = linked(recorded, HostGraph([op for op in host.nodes if op.name != "gloo:all_reduce"], host.schema))
    assert deps(graph, "gloo:all_reduce") == [["c10d::allreduce_"]]
    assert "gloo:all_reduce" in deps(graph, "aten::copy_")[0]
    at = int(np.flatnonzero(graph.type == COLL)[0])
    assert graph.attributes(at)["comm_size"] == 2000


def test_a_caller_that_issued_a_collective_does_not_wait_for_it_but_what_reads_inside_does() -> None:
    recorded, host = host_run()
    graph = linked(Profile([*recorded.events, event("step", 5, 80)], recorded.about), host)
    assert "gloo:all_reduce" in deps(graph, "aten::copy_")[0]
    assert "gloo:all_reduce" not in deps(graph, "step")[0]
    assert replay(graph).makespan * 1e6 == pytest.approx(100, abs=20)  # and there is no circle


def test_without_a_host_graph_the_wait_that_ended_with_the_collective_stands_for_the_reader() -> None:
    graph = linked(host_run()[0], None)
    assert deps(graph, "gloo:all_reduce") == [["c10d::allreduce_"]]
    assert "gloo:all_reduce" in deps(graph, "aten::copy_")[0]


def test_a_rank_that_comes_late_makes_the_others_wait_when_linked_traces_are_replayed() -> None:
    graphs = [linked(*host_run(rank)) for rank in range(2)]
    base = replay(graphs).makespan
    late = graphs[1].duration.copy()
    late[0] += 1e-3
    outcome = replay([graphs[0], graphs[1].with_durations(late)])
    assert outcome.makespan == pytest.approx(base + 1e-3)
    assert outcome.waited.max() == pytest.approx(1e-3)


def test_sends_and_receives_are_no_collectives_of_their_group() -> None:
    """Rank 0 sends to rank 1; rank 2 has no part in it, and none waits for it."""
    ranks = []
    for rank, words in enumerate((["gloo:send"], ["gloo:recv"], [])):
        talk = [event(word, 20, 5, "user_annotation", tid=2) for word in words]
        reduce = event("gloo:all_reduce", 40, 10, "user_annotation", tid=2)
        ranks.append(linked(profile(event("aten::mm", 0, 10), *talk, reduce, rank=rank), None))
    kinds = [[chakra.TYPES[kind] for kind in graph.type if kind in (SEND, RECV, COLL)] for graph in ranks]
    assert kinds == [["COMM_SEND", "COMM_COLL"], ["COMM_RECV", "COMM_COLL"], ["COMM_COLL"]]
    assert replay(ranks).recorded == 1  # the all-reduce is the only meeting


def talk(rank: int, *, ranks: list[int] | None, recorded: list[str] | None) -> Graph:
    """Of two ranks the first sends at 50 µs, the second has waited for that since 10; both end at 60."""
    call, word = ("c10d::send", "gloo:send") if rank == 0 else ("c10d::recv_", "gloo:recv")
    start, end = (50, 60) if rank == 0 else (10, 60)
    run = profile(
        event("aten::mm", 0, start - 5), event(call, start - 5, 5, given=recorded),
        event(word, start, end - start, "user_annotation", tid=2), event("aten::add", end, 5), rank=rank,
    )  # fmt: skip
    run.about["pg_config"][0]["ranks"] = ranks
    return linked(run, None)


def test_a_receive_waits_for_the_send_that_its_call_names() -> None:
    ranks = [talk(rank, ranks=[0, 1], recorded=["", "", str(1 - rank), "3"]) for rank in range(2)]
    assert [graph.whole_numbers("comm_tag").max() for graph in ranks] == [3, 3]
    assert (ranks[0].whole_numbers("comm_dst").max(), ranks[1].whole_numbers("comm_src").max()) == (1, 0)
    outcome = replay(ranks)
    assert outcome.recorded == 1
    assert outcome.makespan * 1e6 == pytest.approx(100)  # the receive lasts as long as the send, not 50 longer
    late = ranks[0].duration.copy()
    late[0] += 1e-3
    assert replay([ranks[0].with_durations(late), ranks[1]]).makespan * 1e6 == pytest.approx(1100)


@pytest.mark.parametrize("recorded", [None, ["", "", "-1", "0"], ["", "", "9", "0"], ["", "", "x", "0"], ["1"], [7, 0]])
def test_a_peer_that_is_not_told_is_not_guessed(recorded: list[str] | None) -> None:
    assert not talk(1, ranks=[0, 1], recorded=recorded).has("comm_src").any()
    assert not talk(1, ranks=None, recorded=["", "", "0", "0"]).has("comm_src").any()


def test_the_profilers_own_span_is_not_the_jobs_time() -> None:
    run = Profile([event("PyTorch Profiler (0)", 0, 9000, "Trace"), event("aten::mm", 100, 50), event("x", 170, 30)])
    assert replay(linked(run, None)).makespan * 1e6 == pytest.approx(100)


def test_files_of_other_steps_and_files_that_are_no_recordings_are_refused(tmp_path: Path) -> None:
    recorded, _ = host_run()
    with pytest.raises(BadInput, match="record both over the same steps"):
        linked(recorded, HostGraph([Operation(1, "x")]))
    (tmp_path / "x.json").write_text('{"nodes": [')
    with pytest.raises(BadInput, match="ends at byte 11, before any 'traceEvents'"):
        link.link(tmp_path / "x.json")
    (tmp_path / "w.json").write_text('{"traceEvents": [{"ph": "X", "ts": 1, "dur": 1}, {"ph"')
    with pytest.raises(BadInput, match="truncated at byte 54; 'assay trace FILE --convert"):
        link.link(tmp_path / "w.json")
    (tmp_path / "y.json").write_text(json.dumps({"nodes": []}))
    with pytest.raises(BadInput, match="traceEvents"):
        link.link(tmp_path / "y.json")
    (tmp_path / "z.json").write_text(json.dumps({"traceEvents": []}))
    with pytest.raises(BadInput, match="no event with a duration"):
        link.link(tmp_path / "z.json")
    with pytest.raises(BadInput, match="No such file"):
        link.link(tmp_path / "none.json")
