"""Chakra execution traces are read and written without loss; broken ones are refused with the byte that breaks them."""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import random
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.record import traces
from assay.record.errors import BadInput
from assay.workloads import chakra, chakra_attributes, chakra_json
from assay.workloads.chakra import COLL, COMP, Graph
from assay.workloads.chakra_frame import numbered, positions
from assay.workloads.chakra_graph import ASKED

pytest.importorskip("google.protobuf")
from tests.oracles import chakra as oracle

WORDS = st.integers(0, 2**64 - 1)
RANGES = {
    "int32": (-(2**31), 2**31 - 1), "sint32": (-(2**31), 2**31 - 1), "sfixed32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1), "fixed32": (0, 2**32 - 1), "int64": (-(2**63), 2**63 - 1),
    "sint64": (-(2**63), 2**63 - 1), "sfixed64": (-(2**63), 2**63 - 1), "uint64": (0, 2**64 - 1),
    "fixed64": (0, 2**64 - 1),
}  # fmt: skip


def scalars(kind: str) -> st.SearchStrategy[Any]:
    match kind:
        case "double":
            return st.floats(allow_nan=False)
        case "float":
            return st.floats(allow_nan=False, width=32)
        case "bool":
            return st.booleans()
        case "string":
            return st.text(st.characters(codec="utf-8"), max_size=9)
        case "bytes":
            return st.binary(max_size=9)
    return st.integers(*RANGES[kind])


@st.composite
def attributes(draw: Any) -> Any:
    name = draw(st.text(max_size=6) | st.sampled_from([*ASKED, "", "strea", "streams"]))
    made = oracle.messages()["AttributeProto"](name=name, doc_string=draw(st.text(max_size=3)))
    kind = draw(st.sampled_from(oracle.SCALARS))
    if draw(st.booleans()):
        setattr(made, f"{kind}_val", draw(scalars(kind)))
    else:
        values = getattr(made, f"{kind}_list").values
        values.extend(draw(st.lists(scalars(kind), max_size=3)))
        getattr(made, f"{kind}_list").SetInParent()
    return made


@st.composite
def nodes(draw: Any) -> Any:
    made = oracle.messages()["Node"](
        id=draw(WORDS), name=draw(st.text(max_size=8)), type=draw(st.integers(-3, 12)),
        ctrl_deps=draw(st.lists(WORDS, max_size=4)), data_deps=draw(st.lists(WORDS, max_size=4)),
        start_time_micros=draw(WORDS), duration_micros=draw(WORDS), attr=draw(st.lists(attributes(), max_size=3)),
    )  # fmt: skip
    if draw(st.booleans()):
        made.inputs.values = draw(st.text(max_size=5))
        made.outputs.types = draw(st.text(max_size=5))
    return made


@st.composite
def streams(draw: Any) -> tuple[Any, list[Any]]:
    header = oracle.messages()["GlobalMetadata"](version=draw(st.text(max_size=5)))
    header.attr.extend(draw(st.lists(attributes(), max_size=2)))
    return header, draw(st.lists(nodes(), max_size=6))


def sample(archive: str, ending: str) -> bytes:
    with tarfile.open(traces.find("chakra") / archive) as packed:
        member = next(m for m in packed if m.name.endswith(ending) and not Path(m.name).name.startswith("._"))
        file = packed.extractfile(member)
        assert file is not None
        return file.read()


def small() -> Graph:
    return Graph.of(
        [1, 2, 3], ["forward", "all_reduce", "forward"], [COMP, COLL, COMP], ctrl_deps=[[], [1], [1]],
        data_deps=[[], [1], [2]], start_micros=[0, 5, 9], duration_micros=[5, 3, 1],
        attributes={"is_cpu_op": [True, False, True], "comm_size": [None, 4096, None], "pg_name": [None, "0", None]},
        metadata={"schema": "1.0.1"}, rank=0,
    )  # fmt: skip


# ------------------------------------------------------------------------------------------------ protobuf


@settings(deadline=None, max_examples=60)
@given(streams())
def test_a_stream_of_protobufs_own_library_comes_back_byte_for_byte(stream: tuple[Any, list[Any]]) -> None:
    content = oracle.write(*stream)
    assert chakra.encode(chakra.decode(content)) == content


@settings(deadline=None, max_examples=40)
@given(streams())
def test_columns_and_attributes_say_what_protobufs_own_library_says(stream: tuple[Any, list[Any]]) -> None:
    header, expected = stream
    graph = chakra.decode(oracle.write(header, expected))
    assert graph.header().get("version", "") == header.version
    for i, node in enumerate(expected):
        assert (int(graph.id[i]), graph.names[graph.name[i]], int(graph.type[i])) == (node.id, node.name, node.type)
        assert graph.ctrl_deps[i].tolist() == list(node.ctrl_deps)
        assert graph.data_deps[i].tolist() == list(node.data_deps)
        assert int(graph.start_micros[i]) == node.start_time_micros
        assert int(graph.duration_micros[i]) == node.duration_micros
        found = graph.attribute_list(i)
        assert [(a.name, a.doc, a.value) for a in found] == [
            (a.name, a.doc_string, oracle.value_of(a)) for a in node.attr
        ]


@settings(deadline=None, max_examples=60)
@given(streams(), st.sampled_from([*ASKED, "", "strea"]), st.data())
def test_a_name_found_with_others_in_one_pass_is_where_it_is_found_alone(
    stream: tuple[Any, list[Any]], name: str, data: Any
) -> None:
    graph = chakra.decode(oracle.write(*stream))
    among = np.array(data.draw(st.lists(st.booleans(), min_size=len(graph), max_size=len(graph))), bool)
    wanted = np.frombuffer(name.encode(), np.uint8)
    alone = chakra_attributes.find(graph.tail.at, graph.tail.values, wanted, among)
    assert graph._where(name, among).tolist() == alone.tolist()
    has = [any(a.name == name for a in graph.attribute_list(i)) for i in range(len(graph))]
    assert graph.has(name).tolist() == has


@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(-(10**12), 10**12) | st.integers(0, 3)), max_size=40))
def test_rows_are_numbered_as_sorting_them_would(rows: list[tuple[int, int]]) -> None:
    columns = [np.array([row[k] for row in rows], np.int64) for k in range(2)]
    firsts, code = numbered(*columns)
    different = sorted(set(rows))
    assert code.tolist() == [different.index(row) for row in rows]
    assert firsts.tolist() == [rows.index(row) for row in different]


scattered = st.lists(st.integers(0, 2**64 - 1), max_size=8, unique=True)
counted = st.integers(0, 9).map(lambda first: list(range(first, first + 6)))


@given(scattered | counted, st.data())
def test_ids_are_found_where_they_stand(ids: list[int], data: Any) -> None:
    graph = Graph.of(ids, ["a"] * len(ids), COMP, data_deps=[[]] * len(ids))
    wanted = data.draw(st.lists(st.sampled_from([*ids, 0, 2**64 - 1]) | st.integers(0, 20), max_size=9))
    expected = [ids.index(one) if one in ids else -1 for one in wanted]
    assert positions(graph, np.array(wanted, np.uint64)).tolist() == expected


@settings(deadline=None, max_examples=40)
@given(st.lists(attributes(), max_size=4))
def test_attributes_encode_as_protobufs_own_library_does(given: list[Any]) -> None:
    for message in given:
        read = chakra_attributes.decode(message.SerializeToString())
        if read.kind:
            assert chakra_attributes.encode(read.name, read.value, read.kind, read.doc) == message.SerializeToString()


@settings(deadline=None, max_examples=60)
@given(st.lists(nodes(), min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_a_stream_written_in_another_order_keeps_every_field(expected: list[Any], shuffle: random.Random) -> None:
    """Fields in any order, lists unpacked, unknown fields between them: field for field the same."""
    header = oracle.messages()["GlobalMetadata"]()
    content = oracle.write(header, [])
    for node in expected:
        records = [
            chakra_attributes.sized(number, body) if kind == 2 else chakra_attributes.number(number << 3 | kind) + body
            for number, kind, _, body in chakra_attributes.fields(node.SerializeToString())
        ]
        unknown = [chakra_attributes.sized(50, b"new"), bytes.fromhex("980307"), bytes.fromhex("9d0301020304")]
        unpacked = [chakra_attributes.number(4 << 3) + chakra_attributes.number(7)]
        attrs = [record for record in records if record[0] >> 3 == 10]
        rest = [record for record in records if record[0] >> 3 != 10] + unpacked
        shuffle.shuffle(rest)
        body = b"".join([*rest, unknown[0], *attrs, *unknown[1:]])
        content += oracle.varint(len(body)) + body
    _, before = oracle.read(content)
    _, after = oracle.read(chakra.encode(chakra.decode(content)))
    assert after == before  # protobuf compares unknown fields too
    for one, other in zip(before, after, strict=True):
        assert other.SerializeToString(deterministic=True) == one.SerializeToString(deterministic=True)
    again = chakra.encode(chakra.decode(content))
    assert chakra.encode(chakra.decode(again)) == again


def test_a_file_without_metadata_is_read_from_its_first_node_on() -> None:
    node = oracle.messages()["Node"](id=4, name="a", type=4).SerializeToString()
    content = oracle.varint(len(node)) + node
    graph = chakra.decode(content)
    assert graph.metadata is None and graph.id.tolist() == [4] and chakra.encode(graph) == content


def test_metadata_of_123_bytes_is_not_taken_for_json() -> None:
    header = oracle.messages()["GlobalMetadata"](version='"' * 34)
    header.attr.add(name="x" * 83)
    content = oracle.write(header, [])
    assert content[:3] == b'{\n"'
    assert chakra.decode(content).header()["version"] == '"' * 34


def test_json_whose_first_key_has_a_quote_in_it_is_json() -> None:
    assert len(chakra.decode(b'{"\\"": null, "workload_graph": []}')) == 0


def test_names_that_are_no_utf8_survive() -> None:
    body = chakra_attributes.number(1 << 3) + b"\x01" + chakra_attributes.sized(2, b"\xff\xfe")
    content = b"\x00" + oracle.varint(len(body)) + body
    graph = chakra.decode(content)
    assert chakra.encode(graph) == content and "�" in graph.label(0)


def test_reading_never_judges_the_graph(tmp_path: Path) -> None:
    """Self-loops, two-cycles, ids that are not there and ids given twice are kept as they are."""
    graph = Graph.of([5, 5, 6], ["a", "b", "c"], COMP, ctrl_deps=[[5], [99], []], data_deps=[[6], [], [5]])
    chakra.write(graph, tmp_path / "x.et")
    again = chakra.read(tmp_path / "x.et")
    assert again.id.tolist() == [5, 5, 6]
    assert again.ctrl_deps == graph.ctrl_deps and again.data_deps == graph.data_deps


@pytest.mark.parametrize("name", ["job.3.et", "job.3.et.gz", "job.3.json", "job.3.json.gz"])
def test_every_suffix_comes_back_equal_and_knows_its_rank(name: str, tmp_path: Path) -> None:
    chakra.write(small(), tmp_path / name)
    again = chakra.read(tmp_path / name)
    assert chakra.encode(again) == chakra.encode(small()) and again.rank == 3


def test_a_suffix_that_is_no_traces_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"\.et, \.json"):
        chakra.write(small(), tmp_path / "x.csv")


# ------------------------------------------------------------------------------------------------ the samples


@pytest.mark.traces
def test_the_published_protobuf_sample_is_written_back_byte_for_byte() -> None:
    content = sample("feeder_tests_trace.tar.gz", ".et")
    graph = chakra.decode(content, "chakra.0.et")
    assert chakra.encode(graph) == content
    header, expected = oracle.read(content)
    assert len(graph) == len(expected) == 3664
    assert graph.header()["schema"] == header.attr[0].string_val
    size = graph.whole_numbers("comm_size", 0)
    for i in range(0, len(expected), 97):
        said = {a.name: oracle.value_of(a) for a in expected[i].attr}
        assert graph.attributes(i) == said and size[i] == said.get("comm_size", 0)


@pytest.mark.traces
def test_the_published_samples_flaws_are_kept() -> None:
    graph = chakra.decode(sample("feeder_tests_trace.tar.gz", ".et"))
    waits = np.repeat(graph.id, np.diff(graph.ctrl_deps.at))
    assert int((waits == graph.ctrl_deps.values).sum()) == 383
    assert len(set(graph.ctrl_deps.values.tolist()) - set(graph.id.tolist())) == 210
    collectives = graph.type == COLL
    assert int(collectives.sum()) == 21 and int((collectives & graph.has("comm_type")).sum()) == 7


@pytest.mark.traces
@pytest.mark.parametrize(("ending", "exact"), [("/chakra.0.json", True), ("small_chakra.0.json", False)])
def test_the_published_json_samples_are_written_back_key_by_key(ending: str, exact: bool) -> None:
    content = sample("json_trace.tar.gz", ending)
    written = chakra_json.encode(chakra.decode(content, ending))
    before, after = json.loads(content), json.loads(written)
    assert after == before and [list(node) for node in after["workload_graph"]] == [
        list(node) for node in before["workload_graph"]
    ]
    assert list(after) == list(before)
    if exact:
        assert written == content
    through = chakra.decode(chakra.encode(chakra.decode(content)))  # to protobuf and back
    assert json.loads(chakra_json.encode(through)) == before


@pytest.mark.traces
def test_an_archive_with_one_trace_is_read_and_one_with_two_names_them() -> None:
    folder = traces.find("chakra")
    assert len(chakra.read(folder / "feeder_tests_trace.tar.gz")) == 3664
    assert [len(graph) for graph in chakra.read_all(folder / "json_trace.tar.gz")] in ([3664, 7], [7, 3664])
    with pytest.raises(BadInput, match=r"holds 2 traces \(.*chakra"):
        chakra.read(folder / "json_trace.tar.gz")


# ------------------------------------------------------------------------------------------------ broken files


@settings(deadline=None, max_examples=80)
@given(streams(), st.data())
def test_a_stream_cut_anywhere_is_refused_with_the_byte_or_is_whole(stream: tuple[Any, list[Any]], data: Any) -> None:
    content = oracle.write(*stream)
    ends = {0}
    at = 0
    for message in (stream[0], *stream[1]):
        size = message.ByteSize()
        at += len(oracle.varint(size)) + size
        ends.add(at)
    cut = data.draw(st.integers(0, len(content)))
    if cut == 0:
        with pytest.raises(BadInput, match="empty"):
            chakra.decode(content[:cut])
    elif cut in ends:
        assert chakra.encode(chakra.decode(content[:cut])) == content[:cut]
    else:
        begun = max(end for end in ends if end < cut)
        with pytest.raises(BadInput, match=f"truncated: at byte {begun} of {cut}"):
            chakra.decode(content[:cut])


@settings(deadline=None, max_examples=120)
@given(streams(), st.data())
def test_mutated_bytes_give_a_graph_or_one_line(stream: tuple[Any, list[Any]], data: Any) -> None:
    content = bytearray(oracle.write(*stream))
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place] = data.draw(st.integers(0, 255))
    try:
        graph = chakra.decode(bytes(content))
        for i in range(len(graph)):
            graph.attributes(i)
        graph.whole_numbers("comm_size")
        graph.texts("pg_name")
        again = chakra.encode(graph)
    except BadInput as refused:
        assert "\n" not in str(refused)
        return
    assert chakra.encode(chakra.decode(again)) == again


@settings(deadline=None, max_examples=80)
@given(st.binary(max_size=200))
def test_any_bytes_at_all_give_a_graph_or_one_line(content: bytes) -> None:
    try:
        chakra.decode(content)
    except BadInput as refused:
        assert "\n" not in str(refused)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\x00" + b"\xff" * 30, "more than ten bytes"),
        (b"\x00\xff\xff\xff\xff\x0f", "2 GiB"),
        (b"\x00\xff\xff\xff\xff\x07ab", "longer than what is left"),
        (b"\x00\x04\x12\xff\x01a", "longer than the message"),
        (b"\x00\x02\x0b\x0c", "wire type"),
        (b"\x00\x02\x00\x01", "number that protobuf does not allow"),
        (b"\x00\x04\x52\x02\x0a\x09", "longer than the message"),  # within an attribute
        (b"\x00\x04\x22\x02\x80\x80", "breaks off"),  # within a packed list
    ],
)
def test_bombs_are_refused_in_one_line_with_their_byte(content: bytes, why: str) -> None:
    with pytest.raises(BadInput, match=rf"at byte \d+ of {len(content)} .*{why}"):
        chakra.decode(content, "bomb.et")


def test_more_nodes_than_can_be_held_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chakra, "MOST_NODES", 10)
    assert len(chakra.decode(bytes(11))) == 10
    with pytest.raises(BadInput, match="more nodes than can be held"):
        chakra.decode(bytes(12))


def test_a_gzip_bomb_is_refused_before_it_is_unpacked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(chakra, "_FREE", 1 << 20)
    (tmp_path / "bomb.et.gz").write_bytes(gzip.compress(bytes(8 << 20)))
    with pytest.raises(BadInput, match="refused as a bomb"):
        chakra.read(tmp_path / "bomb.et.gz")


def test_a_cut_gzip_file_and_a_missing_one_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.et.gz").write_bytes(gzip.compress(chakra.encode(small()))[:-9])
    with pytest.raises(BadInput, match="gzip stream is broken"):
        chakra.read(tmp_path / "x.et.gz")
    with pytest.raises(BadInput, match="No such file"):
        chakra.read(tmp_path / "none.et")


def test_an_archive_without_traces_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        entry = tarfile.TarInfo("notes.txt")
        entry.size = 3
        archive.addfile(entry, io.BytesIO(b"abc"))
    with pytest.raises(BadInput, match=r"no \.et or \.json"):
        chakra.read(tmp_path / "x.tar")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"workload_graph": [{"Id": 1,', "truncated"),
        ('{"workload_graph": [{"Id": -1}]}', "'Id' is '-1'"),
        ('{"workload_graph": [{"Name": "a"}]}', "'Id' is 'None'"),
        ('{"workload_graph": [{"Id": 1, "data_deps": 4}]}', "a list of node ids"),
        ('{"workload_graph": [{"Id": 1, "data_deps": ["4"]}]}', "an id in 'data_deps'"),
        ('{"workload_graph": [7]}', "no object"),
        ('{"nodes": []}', "no list 'workload_graph'"),
        ('{"workload_graph": [{"Id": 1, "wire": "!"}]}', "base64"),
        ('{"workload_graph": [{"Id": 1, "wire": "UgU="}]}', "no protobuf"),
        ('{"workload_graph": ' + "[" * 100_000, "no JSON"),
    ],
)
def test_json_that_is_no_trace_is_refused_in_one_line(text: str, why: str) -> None:
    with pytest.raises(BadInput, match=why) as refused:
        chakra.decode(text.encode(), "x.json")
    assert "\n" not in str(refused.value)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=6,
)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.fixed_dictionaries(
            {"Id": WORDS, "data_deps": st.lists(WORDS, max_size=3)},
            optional={
                "Name": st.text(max_size=5), "NodeType": st.integers(0, 9), "ctrlDeps": st.lists(WORDS, max_size=2),
                "runtime": st.integers(0, 10**9) | st.floats(0, 1e6), "tensor": VALUES, "x": VALUES,
            },
        ), max_size=4),
    st.dictionaries(st.text(min_size=1, max_size=4), VALUES, max_size=3),
)  # fmt: skip
def test_json_comes_back_value_for_value_whatever_its_keys(listed: list[Any], header: dict[str, Any]) -> None:
    whole = {**{key: value for key, value in header.items() if key != "wire"}, "workload_graph": listed}
    graph = chakra.decode(json.dumps(whole).encode())
    assert json.loads(chakra_json.encode(graph)) == json.loads(json.dumps(whole))
    nodes_again = chakra.decode(chakra.encode(graph))  # protobuf holds all of it but the keys' order
    assert nodes_again.data_deps == graph.data_deps
    assert chakra.encode(nodes_again) == chakra.encode(graph)


@settings(deadline=None, max_examples=30)
@given(streams())
def test_protobuf_survives_the_json_layout(stream: tuple[Any, list[Any]]) -> None:
    """Field for field: the layout has no order between attributes it can say in words and those it cannot."""
    clean = [node for node in stream[1] if node.type >= 0]
    _, before = oracle.read(oracle.write(stream[0], clean))
    graph = chakra.decode(oracle.write(stream[0], clean))
    _, after = oracle.read(chakra.encode(chakra.decode(chakra_json.encode(graph))))

    def sorted_attributes(node: Any) -> Any:
        copy = type(node).FromString(node.SerializeToString())
        del copy.attr[:]
        return copy, sorted(a.SerializeToString() for a in node.attr)

    assert [sorted_attributes(node) for node in after] == [sorted_attributes(node) for node in before]


# ------------------------------------------------------------------------------------------------ telemetry


def test_a_frame_has_spans_lanes_and_edges_and_counts_what_points_nowhere() -> None:
    graph = Graph.of(
        [1, 2, 3], ["mm", "nccl", "copy"], [COMP, COLL, chakra.MEM_LOAD], data_deps=[[], [1, 77], [2]],
        ctrl_deps=[[3], [], []], start_micros=[10, 20, 30], duration_micros=[5, 6, 7], rank=4,
        attributes={"is_cpu_op": [True, False, False], "tid": [1, None, None], "stream": [None, 20, 7],
                    "pg_name": [None, "dp", None], "comm_size": [None, 64, None]},
    )  # fmt: skip
    frame = chakra.frame([graph])
    assert frame.entities.select("kind", "name").rows() == [
        ("rank", "4"), ("stream", "4/stream 7"), ("stream", "4/stream 20"), ("thread", "4/thread 1"),
    ]  # fmt: skip
    assert frame.spans.select("cat", "start", "dur", "bytes", "group", "seq").rows() == [
        ("cpu_op", 10_000, 5_000, None, None, None), ("comm", 20_000, 6_000, 64, "dp", 0),
        ("memcpy", 30_000, 7_000, None, None, None),
    ]  # fmt: skip
    assert set(frame.edges.rows()) == {(0, 1, "data_dep"), (1, 2, "data_dep"), (2, 0, "ctrl_dep")}
    assert frame.repairs == {"data_deps on nodes that are not in the trace left out": 1}


def test_starts_that_were_not_recorded_are_missing_and_not_zero() -> None:
    graph = Graph.of([1], ["a"], COMP, data_deps=[[]], duration_micros=[5])
    assert chakra.frame(graph).spans["start"].to_list() == [None]


def test_times_beyond_nanoseconds_are_left_out_and_counted() -> None:
    graph = Graph.of([1], ["a"], COMP, data_deps=[[]], start_micros=[2**63])
    frame = chakra.frame(graph)
    assert frame.spans["start"].to_list() == [None] and sum(frame.repairs.values()) == 1


def test_frames_of_no_nodes_at_all_are_empty() -> None:
    assert len(chakra.frame(chakra.decode(b"\x00")).spans) == 0


def test_a_first_node_whose_id_is_0_is_no_metadata() -> None:
    graph = Graph.of([0, 1], ["a", "b"], [4, 4], data_deps=[[], [0]], duration_micros=[5, 7])
    bare = chakra.encode(dataclasses.replace(graph, metadata=None))
    again = chakra.decode(bare)
    assert again.metadata is None
    assert again.id.tolist() == [0, 1]
    assert chakra.encode(again) == bare


@pytest.mark.parametrize(("time", "times"), [("NaN", 1), ("-5", 1), ('"x"', 1), ("null", 1), ("2.7", 0), ("3", 0)])
def test_a_time_that_is_none_is_said(time: str, times: int) -> None:
    text = b'{"workload_graph": [{"Id": 1, "NodeType": 4, "data_deps": [], "runtime": %b}]}' % time.encode()
    assert sum(chakra.frame(chakra.decode(text)).repairs.values()) == times


def test_json_cut_within_a_text_is_called_truncated() -> None:
    with pytest.raises(BadInput, match="truncated"):
        chakra.decode(b'{"workload_graph": [{"Id": 1, "Na')
