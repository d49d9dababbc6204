"""What cannot be is refused in one line, which names the field and what would be right: every command of the room."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
CONFIG = json.loads((EXAMPLES / "config.json").read_text())
SECTIONS = (EXAMPLES / "sections.toml").read_text().replace("multimodal.jsonl", str(EXAMPLES / "multimodal.jsonl"))
HELPERS = '[[section]]\nname = "{}"\nvision = "qwen2.5-vl"\nfeeds = ["{}"]\n'
Refused = Callable[..., str]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"num_attention_heads": 7}, "num_attention_heads 7 is no multiple of num_key_value_heads 8"),
        ({"hidden_size": -1}, "hidden_size is -1"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
        ({"model_type": "new"}, "model_type 'new' is not known"),
    ],
)
def test_models(refused: Refused, tmp_path: Path, change: dict[str, object], says: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | change))
    assert says in refused("plan", "training", "--model", "config.json", "--cluster", "8xh100")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("nodes = 4", "4 nodes and no link between them; add outside"),
        ("nodes = -1", "nodes is -1, should be a number above 0"),
        ("nodes = 1.5", "'nodes' is missing or no int"),
        ("nodes = [[", "not TOML"),
        ("nodes = 1\n[efficiency]\nmatrix = 1.5", "efficiency.matrix is 1.5"),
        ("nodes = 1\n[efficiency]\nbackward = 9", "efficiency.backward is 9"),
        ("nodes = 1\n[efficiency]\nspeed = 1", "efficiency should be a table of matrix, attention"),
    ],
)
def test_clusters(refused: Refused, tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "mine.toml").write_text(f'device = "h100"\n{content}\n')
    assert says in refused("plan", "training", "--model", "llama-3-8b", "--cluster", "mine.toml")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("plan training --model llama-9-8b --cluster 8xh100", "did you mean llama-3-8b"),
        ("plan training --model llama-3-8b --cluster 8xh999", "unknown device 'h999'; there are"),
        ("plan training --model llama-3-8b --cluster 0xh100", "needs at least one device"),
        ("plan training --model llama-3-8b --cluster 1048573xh100", "a number of ranks with small divisors"),
        ("plan training --model llama-3.1-405b --cluster 8xa100 --batch 8", "use more ranks"),
        ("compare nccl-model --input {examples}/nccl-tests.txt --cluster 2x8xfoo", "unknown device 'foo'"),
        ("compare tons --cubes 0", "'--cubes': 0 is not in the range"),
        ("compare ultraep --input {examples}/routing.npy --ranks 7", "16 sources, but --ranks is 7"),
        ("compare fcp --lengths {examples}/lengths.jsonl --ranks 1", "'--ranks': 1 is not in the range"),
        ("compare moe-folding --model llama-3-8b --cluster 8xh100", "no experts to fold; choose one that has"),
        ("compare piper --model {examples}/moe.json --cluster 64xmi250x --cards 99", "should divide the 8 devices"),
        ("compare hetpar --encoder dp8 --llm tp4", "equally many; or give --apart"),
        ("compare hetpar --encoder zp8 --llm tp8", "write sizes of tp, cp, pp and dp"),
        ("compare entrain --input {examples}/multimodal.jsonl --stages 64", "does not divide the 64 devices"),
        ("compare hexiseq --cluster 8xh100+ --seq 131072", "write COUNTxDEVICE, joined by +"),
        ("compare supermuc", "'supermuc' has no comparison on your own input"),
        ("run dopler", "did you mean doppler"),
    ],
)
def test_words(refused: Refused, arguments: str, says: str) -> None:
    assert says in refused(*(word.format(examples=EXAMPLES) for word in arguments.split()))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (SECTIONS.replace("critical = true", 'critical = true\nfeeds = ["teacher"]'), "it should be the last"),
        (SECTIONS.replace('feeds = ["student"]', 'feeds = ["nobody"]'), "feeds 'nobody', which is not there"),
        (SECTIONS + HELPERS.format("one", "two") + HELPERS.format("two", "one"), "feed"),
        (SECTIONS.replace("critical = true", ""), "mark one with critical = true"),
        ("", "no sections; add [[section]] tables"),
    ],
)
def test_sections(refused: Refused, tmp_path: Path, content: str, says: str) -> None:
    (tmp_path / "graph.toml").write_text(content)
    assert says in refused("compare", "maestro", "--graph", "graph.toml")


OWN = """
class Short:
    def slots(self, stage, pp, m): ...

class Raises:
    chunks, split, flush = 1, False, True
    def virtual(self, chunk, stage, pp): return stage
    def check(self, pp, m): pass
    def slots(self, stage, pp, m): raise KeyError("mine")

class Assigns:
    def assign(self, work, copies, m): return 1 / 0

class Plans:
    def search(self, plans, ask): raise RuntimeError("no idea")
"""


@pytest.mark.parametrize(
    ("name", "what", "says"),
    [
        ("Short", "schedules", "has no 'check'; schedules have slots, check"),
        ("Raises", "schedules", "KeyError: 'mine'"),
        ("Assigns", "assigners", "ZeroDivisionError: division by zero"),
        ("Plans", "planners", "RuntimeError: no idea"),
        ("Short", "planners", "has no method 'search'"),
    ],
)
def test_components_of_ones_own(refused: Refused, tmp_path: Path, name: str, what: str, says: str) -> None:
    (tmp_path / "own.py").write_text(OWN)
    said = refused(
        "compare", "training", "--model", "llama-3-8b", "--cluster", "8xh100", "--what", what, "--batch", "64",
        "--lengths", str(EXAMPLES / "lengths.jsonl"), "--policy", f"own.py:{name}",
    )  # fmt: skip
    assert says in said
