"""A node that speaks Maelstrom's lines."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.protocols.interface import Node
from assay.protocols.kernel.maelstrom import Echo, Stage
from assay.protocols.nodes.broadcast import Bracha


def line(src, dest, **body):
    return json.dumps({"src": src, "dest": dest, "body": body})


def test_echo_runs_as_maelstrom_starts_it():
    asked = [
        line("c1", "n1", type="init", msg_id=1, node_id="n1", node_ids=["n1", "n2"]),
        line("c7", "n1", type="echo", msg_id=5, echo={"deep": [1, 2]}),
        line("c7", "n1", type="echo", msg_id=6, echo="again"),
    ]
    done = subprocess.run(
        [sys.executable, "-m", "assay.cli.main", "protocol", "maelstrom", "assay.protocols.kernel.maelstrom:Echo"],
        input="\n".join(asked) + "\n", capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    answers = [json.loads(answer) for answer in done.stdout.splitlines()]
    assert answers[0] == {"src": "n1", "dest": "c1", "body": {"type": "init_ok", "in_reply_to": 1}}
    assert [a["body"]["type"] for a in answers[1:]] == ["echo_ok", "echo_ok"] and answers[2]["dest"] == "c7"
    assert answers[1]["body"]["echo"] == {"deep": [1, 2]}
    assert answers[2]["body"] == {"type": "echo_ok", "in_reply_to": 6, "msg_id": 2, "echo": "again"}


JSON = st.recursive(
    st.none() | st.booleans() | st.text() | st.integers(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
)


@settings(max_examples=100, deadline=None)
@given(JSON)
def test_what_is_echoed_is_what_was_said(value):
    said: list[str] = []
    stage = Stage(lambda node: Echo(), said.append, io.StringIO())
    stage.heard(line("c0", "n1", type="init", msg_id=1, node_id="n1", node_ids=["n1"]))
    stage.heard(line("c1", "n1", type="echo", msg_id=2, echo=value))
    assert json.loads(said[1])["body"]["echo"] == value


def test_an_error_of_the_node_is_no_rubbish():
    class Stumbles(Node):
        def recv(self, ctx, src, msg):
            raise KeyError("a bug")

    stage = Stage(lambda node: Stumbles(), [].append, io.StringIO())
    stage.heard(line("c0", "n1", type="init", msg_id=1, node_id="n1", node_ids=["n1"]))
    with pytest.raises(KeyError, match="a bug"):
        stage.heard(line("c1", "n1", type="read", msg_id=2))
    assert "left" not in stage.log.getvalue()


def test_four_stages_that_pass_lines_to_each_other_broadcast_reliably():
    names = ["n0", "n1", "n2", "n3"]
    under_way: list[str] = []
    logs = {name: io.StringIO() for name in names}
    stages = {name: Stage(lambda node: Bracha(), under_way.append, logs[name]) for name in names}
    for name in names:
        stages[name].heard(line("c0", name, type="init", msg_id=1, node_id=name, node_ids=names))
    stages["n0"].ctx.broadcast(("send", "hello"))
    stages["n0"]._settle()
    while under_way:
        told = json.loads(under_way.pop(0))
        if told["dest"] in stages:
            stages[told["dest"]].heard(json.dumps(told))
    assert all("'hello'" in log.getvalue() or " hello" in log.getvalue() for log in logs.values())


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=80) | JSON.map(json.dumps))
def test_rubbish_is_left_with_a_reason(text):
    said: list[str] = []
    stage = Stage(lambda node: Echo(), said.append, io.StringIO())
    stage.heard(text)
    stage.heard(line("c0", "n1", type="init", msg_id=1, node_id="n1", node_ids=["n1"]))
    stage.heard(text)
    assert len(said) == 1 and stage.log.getvalue().count("left:") >= 1
