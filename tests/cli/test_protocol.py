"""`assay protocol run`: a file of the user's, in every mode."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from assay.cli.protocol import command
from assay.record.errors import BadInput
from tests.conftest import Package

FLOOD = '''
from assay.protocols.interface import Node

class Flood(Node):
    """Thirty lines of a user's own."""

    def __init__(self, word="news"):
        self.word, self.seen = word, False

    def start(self, ctx):
        if ctx.id == 0:
            ctx.broadcast((self.word, ctx.input))

    def recv(self, ctx, src, msg):
        if not self.seen:
            self.seen = True
            ctx.decide(msg[1])
            ctx.broadcast(msg)

class Torn(Node):
    def start(self, ctx):
        ctx.decide(ctx.id % 2)

class Dead(Node):
    def start(self, ctx):
        raise ZeroDivisionError("oh")

class Stumbles(Node):
    def start(self, ctx):
        int("seven")

class NoNode:
    pass
'''


@pytest.fixture
def flood(tmp_path):
    path = tmp_path / "flood.py"
    path.write_text(FLOOD)
    return str(path)


@pytest.mark.parametrize("mode", [["--mode", "rounds"], [], ["--mode", "async"], ["--live", "--processes", "2"]])
def test_one_file_runs_in_every_mode(package: Package, flood: str, mode: list[str]) -> None:
    told = package.json("protocol", "run", f"{flood}:Flood", "--n", "5", "--inputs", "7", "--topology", "ring", *mode)
    assert [row["decisions"] for row in told["nodes"]] == [[[0, 7]]] * 5
    assert told["messages"] == 12 or mode  # a run may stop before the last message
    shown = package.assay("protocol", "run", f"{flood}:Flood", "--n", "5", "--inputs", "x", "--option", "word=w", *mode)
    assert "'x'" in shown.stdout and "messages (w " in shown.stdout


def test_a_contradiction_or_a_stall_ends_with_one(package: Package, flood: str) -> None:
    torn = package.assay("protocol", "run", f"{flood}:Torn", code=1)
    assert "contradiction" in torn.stdout
    stalled = package.assay("protocol", "run", f"{flood}:Flood", "--faults", "crash:1", "--inputs", "1", code=1)
    assert "undecided: nodes 1, 2, 3" in stalled.stdout
    many = package.assay("protocol", "run", f"{flood}:Torn", "--seeds", "3", code=1)
    assert "contradictions in 3" in many.stdout and "--seed 0" in many.stdout


def test_seeds_are_summarised(package: Package, flood: str) -> None:
    arguments = ("--n", "6", "--inputs", "1", "--net", "lognormal", "--faults", "silence@5", "--seeds", "20")
    answer = package.json("protocol", "run", f"{flood}:Flood", *arguments)
    assert answer["runs"] == 20 and answer["decided"]["value"] == 1.0 and answer["conflicts"] == 0
    assert answer["costs"]["sim_seconds"]["min"] < answer["costs"]["sim_seconds"]["max"]


def test_seeds_are_counted_from_the_one_that_is_given(package: Package, flood: str) -> None:
    many = package.json("protocol", "run", f"{flood}:Torn", "--seed", "7", "--seeds", "2", code=1)
    assert many["conflicts"] == 2 and many["first_conflict"] == 7


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["nothing.py:Node"], "cannot read nothing.py: No such file or directory"),
        (["{flood}"], "names no code"),
        (["{flood}:Other"], "cannot load"),
        (["{flood}:NoNode"], "is no node"),
        (["{flood}:Flood", "--option", "word"], "NAME=VALUE expected"),
        (["{flood}:Flood", "--option", "color=3"], "unexpected keyword argument 'color'"),
        (["{flood}:Flood", "--faults", "warp:1"], "no fault 'warp'"),
        (["{flood}:Flood", "--faults", "crash:9"], "there are nodes 0 to 3"),
        (["{flood}:Flood", "--net", "warp"], "no latency model"),
        (["{flood}:Flood", "--topology", "moebius"], "no topology 'moebius'"),
        (["{flood}:Flood", "--n", "5", "--topology", "grid"], "5 nodes make no square"),
        (["{flood}:Flood", "--kill", "1@2"], "belong to --live"),
        (["{flood}:Flood", "--live", "--kill", "one"], "NODE@SECONDS"),
        (["{flood}:Flood", "--inputs", "[1,"], "no JSON list"),
        (["{flood}:Dead"], "the node failed: ZeroDivisionError: oh"),
        (["{flood}:Dead", "--live", "--processes", "1"], "ZeroDivisionError: oh"),
        (["{flood}:Stumbles"], "flood.py:30)"),
        (["{flood}:Stumbles", "--live", "--processes", "1"], "flood.py:30)"),
        (["{flood}:Flood", "--inputs", "1,2,3,4,5"], "5 inputs for 4 nodes"),
        (["{flood}:Flood", "--faults", "crash:4"], "all 4 nodes are faulty"),
        (["{flood}:Flood", "--faults", "omit:1:send=7"], "send cannot be '7'"),
        (["{flood}:Flood", "--faults", "crash:1:at=nan"], "at cannot be 'nan'"),
        (["{flood}:Flood", "--faults", "crash:1:at=5:recover=2"], "must crash (at=) before it recovers"),
        (["{flood}:Flood", "--faults", "delay:1:seconds=inf"], "seconds cannot be 'inf'"),
        (["{flood}:Flood", "--mode", "async", "--net", "constant,drop=1"], "in async the scheduler delivers"),
        (["{flood}:Flood", "--net", "constant,per_round=2"], "per_round goes with rounds"),
        (["{flood}:Flood", "--live", "--net", "lognormal,fifo"], "fifo goes with rounds and timed"),
        (["{flood}:Flood", "--limit", "nan"], "--limit is nan; a finite number expected"),
        (["{flood}:Flood", "--live", "--n", "600"], "--processes (at most 512)"),
        (["{flood}:Flood", "--live", "--kill", "1@nan"], "is to be killed after nan s"),
    ],
)
def test_bad_input_gets_one_line(refused: Callable[..., str], flood: str, arguments: list[str], why: str) -> None:
    assert why in refused("protocol", "run", *(part.format(flood=flood) for part in arguments))


def test_a_violation_is_found_written_and_repeated(package: Package, tmp_path) -> None:
    found = tmp_path / "found.json"
    first = package.json("protocol", "search", "broadcast", "--faulty", "2", "--out", str(found), code=1)
    assert first["violation"] and first["events"] < first["before_shrinking"]
    again = package.json("protocol", "search", "broadcast", "--faulty", "2", "--replay", str(found), code=1)
    assert again["violation"] == first["violation"] and again["trace"] == first["trace"]
    other = package.assay("protocol", "search", "aba", "--replay", str(found), code=2).stderr
    assert "does not break this world" in other and len(other.strip().splitlines()) == 1
    safe = package.assay("protocol", "search", "broadcast", "--schedules", "50").stdout
    assert "no violation found" in safe


def test_the_search_takes_a_node_of_the_user_s_own(package: Package, flood: str) -> None:
    torn = package.assay("protocol", "search", f"{flood}:Torn", "--faulty", "0", code=1).stdout
    assert "violation in 0 deliveries" in torn
    idle = package.assay("protocol", "search", f"{flood}:Flood", "--faulty", "0", "--n", "1", code=0).stdout
    assert "no violation found" in idle and "decisions in 1,000" in idle
    assert "no scenario 'nope'" in package.assay("protocol", "search", "nope", code=2).stderr


def test_a_search_that_had_nothing_to_judge_does_not_say_that_all_is_well(package: Package, flood: str) -> None:
    bracha = "assay.protocols.nodes:Bracha"
    silent = package.assay("protocol", "search", bracha, "--schedules", "20", code=2).stderr
    assert "nobody decided anything in 20 schedules" in silent and len(silent.strip().splitlines()) == 1
    for faulty in ("4", "9"):
        alone = package.assay("protocol", "search", "broadcast", "--faulty", faulty, code=2).stderr
        assert "leaves nobody to be judged" in alone and len(alone.strip().splitlines()) == 1


CLASSICS = str(Path(__file__).parents[1] / "protocols" / "kernel" / "classics.py")
LAMPORT = ("protocol", "search", f"{CLASSICS}:Lamport", "--n", "3", "--faulty", "0", "--schedules", "150")
PAXOS = ("protocol", "search", f"{CLASSICS}:Paxos", "--n", "3", "--f", "1", "--inputs", "a,b,c", "--schedules", "150")


def test_a_protocol_is_searched_in_the_world_that_it_was_made_for(package: Package, tmp_path: Path) -> None:
    exclusive = (*LAMPORT, "--judge", "mutual-exclusion")
    assert "no violation found" in package.assay(*exclusive, "--fifo").stdout
    assert "both inside" in package.assay(*exclusive, code=1).stdout
    assert "no violation found" in package.assay(*PAXOS, "--faults", "crash").stdout
    lied = tmp_path / "lied.json"
    assert "violation" in package.assay(*PAXOS, "--faults", "byzantine", "--out", str(lied), code=1).stdout
    assert package.json(*PAXOS, "--faults", "byzantine", "--replay", str(lied), code=1)["violation"]


def test_a_judge_of_the_user_s_own_sees_decisions_deliveries_and_nodes(package: Package) -> None:
    objected = package.json(*PAXOS, "--judge", f"{CLASSICS}:no_prepare_to_two", code=1)
    assert (objected["violation"], objected["events"]) == ("no_prepare_to_two objects", 1)
    inside = (*LAMPORT, "--judge", f"{CLASSICS}:alone_inside")
    assert "no violation found" in package.assay(*inside, "--fifo").stdout


def test_a_partition_holds_messages_back(package: Package) -> None:
    half = (*PAXOS, "--n", "4", "--inputs", "a,b,c,d", "--faulty", "0", "--partition")
    stalled = package.assay(*half, "0+1/2+3", code=2).stderr
    assert "nobody decided anything" in stalled
    assert package.json(*half, "0+1/2+3@0-40")["decided"] > 100


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--partition", "0"], "two or more groups"),
        (["--partition", "0/0"], "each once"),
        (["--partition", "0/9"], "nodes 0 to 2"),
        (["--partition", "0/1@9-3"], "FROM before TO"),
        (["--partition", "a/b"], "as 0+1/2+3"),
        (["--judge", "fairness"], "no judge 'fairness'; one of agreement"),
        (["--judge", f"{CLASSICS}:nobody"], "cannot load"),
        (["--judge", f"{CLASSICS}:broken"], "the judge failed: AttributeError"),
        (["--judge", f"{CLASSICS}:chatty"], "answered 7"),
        (["--judge", "absent.py:judge"], "cannot read absent.py"),
    ],
)
def test_what_a_search_cannot_use_gets_one_line(arguments: list[str], why: str) -> None:
    ended = CliRunner().invoke(command, [*PAXOS[1:], *arguments])
    assert isinstance(ended.exception, BadInput)
    assert why in str(ended.exception)
    assert len(str(ended.exception).splitlines()) == 1


@pytest.mark.parametrize("file", ["lock.jsonl", "lock.edn"])
def test_a_run_writes_the_history_that_check_reads(package: Package, tmp_path: Path, file: str) -> None:
    lock = str(tmp_path / file)
    run = ("protocol", "run", f"{CLASSICS}:Lamport", "--n", "3", "--net", "lognormal,fifo", "--history", lock)
    assert package.json(*run)["operations"] == 12
    assert "linearizable: holds" in package.assay("check", lock, "--model", "linearizable").stdout
    none = package.assay("protocol", "run", f"{CLASSICS}:Paxos", "--inputs", "a", "--history", lock, code=2).stderr
    assert "no operation began" in none
    many = package.assay(*run, "--seeds", "3", code=2).stderr
    assert "--history is of one run" in many


def test_every_schedule_of_a_few_nodes_is_tried(package: Package) -> None:
    bracha = ("protocol", "explore", "assay.protocols.nodes:Bracha", "--n", "4", "--inputs", "a")
    safe = package.json(*bracha, "--faulty", "1", "--lie", '["send", "a"]', "--lie", '["send", "b"]')
    assert safe["complete"] and safe["violation"] is None and safe["decisions"] > 1
    broken = package.json(*bracha, "--faulty", "2", code=1)
    assert "nodes 2 and 3 decided" in broken["violation"] and broken["events"] == 4 and not broken["complete"]
    shown = package.assay(*bracha, "--faulty", "2", code=1).stdout
    assert "violation in 4 deliveries" in shown and "('ready', 'a')" in shown
    assert "no schedule goes wrong: all were tried" in package.assay(*bracha, "--judge", "integrity").stdout


def test_a_bound_that_ends_the_exploration_is_named(package: Package, flood: str) -> None:
    cut = package.assay("protocol", "explore", f"{flood}:Flood", "--inputs", "1", "--states", "3").stdout
    assert "not all was tried: 3 states" in cut
    torn = package.json("protocol", "explore", f"{flood}:Torn", code=1)
    assert torn["violation"] == "nodes 0 and 1 decided 0 and 1" and torn["events"] == 0


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["assay.protocols.nodes:Bracha"], "nobody decided anything"),
        (["assay.protocols.nodes:Nobody"], "has no attribute 'Nobody'; there are ABA"),
        (["{flood}:Flood", "--faulty", "3"], "leaves nobody to be judged"),
        (["{flood}:Flood", "--faulty", "1", "--lie", "[1"], "is no JSON"),
        (["{flood}:Flood", "--faulty", "1", "--lie", "7"], "begins with the message's kind"),
        (["{flood}:Flood", "--judge", "proposed"], "needs an input for each of 3 nodes"),
        (["{flood}:Dead"], "the node failed: ZeroDivisionError: oh"),
    ],
)
def test_what_cannot_be_explored_gets_one_line(
    refused: Callable[..., str], flood: str, arguments: list[str], why: str
) -> None:
    assert why in refused("protocol", "explore", *(part.format(flood=flood) for part in arguments))


def test_an_experiment_file_of_quantas_runs_as_it_is(package: Package, tmp_path) -> None:
    topology = {"type": "complete", "initialPeers": 4, "initialPeerType": "PBFTPeer"}
    file = tmp_path / "pbft.json"
    file.write_text(json.dumps({"experiments": [{"logFile": "a", "tests": 2, "rounds": 40, "topology": topology}]}))
    table = package.json("protocol", "experiment", str(file))["table"]
    assert [row["test"] for row in table] == [0, 1] and all(row["messages"] > 0 for row in table)
    topology = {"initialPeers": 3, "initialPeerType": "Mine"}
    file.write_text(json.dumps({"experiments": [{"logFile": "a", "rounds": 30, "topology": topology}]}))
    (tmp_path / "mine.py").write_text(FLOOD)
    peer = ("protocol", "experiment", str(file), "--peer", f"Mine={tmp_path}/mine.py:Flood")
    for way in ((), ("--live",)):
        (row,) = package.json(*peer, *way)["table"]
        assert (row["decisions"], row["messages"]) == (3, 8)
    no_node = package.assay(*peer[:-1], "Mine=fractions:Fraction", code=2).stderr
    assert "'fractions:Fraction' is no node" in no_node and len(no_node.strip().splitlines()) == 1
    file.write_text('{"experiments": [')
    told = package.assay("protocol", "experiment", str(file), code=2).stderr
    assert str(file) in told and len(told.strip().splitlines()) == 1
