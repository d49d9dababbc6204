"""Make every generated file of this folder: small inputs in the published formats, with nobody else's data in them.

    python examples/make.py            # writes them beside this file
    python examples/make.py OTHER      # or into another folder

The same files come out every time; a test makes them again and compares. The Python files here are written by hand.
"""

from __future__ import annotations

import csv
import io
import json
import math
import struct
import sys
import zipfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from typing import Any

Rows = list[list[Any]]
FILES: dict[str, Callable[[Random], str | bytes]] = {}


def makes(name: str) -> Callable[[Callable[[Random], str | bytes]], Callable[[Random], str | bytes]]:
    """Note that a function makes the file of this name."""

    def note(function: Callable[[Random], str | bytes]) -> Callable[[Random], str | bytes]:
        FILES[name] = function
        return function

    return note


def lines(rows: Iterator[Any] | list[Any]) -> str:
    """JSON, one value a line."""
    return "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)


def table(rows: Rows) -> str:
    """CSV."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


# ------------------------------------------------------------------------------------------ requests to language models


def conversations(random: Random, requests: int) -> Iterator[dict[str, Any]]:
    """Chats of several turns: each prompt holds all that was said before, and openings share a few system prompts."""
    block, fresh, clock, number = 16, 100_000, 0.0, 0
    systems = [list(range(1000 * k, 1000 * k + 8 + 6 * k)) for k in range(4)]  # blocks
    chats: list[tuple[float, int, int, list[int]]] = []  # when it goes on, turn, parent, blocks
    while number < requests:
        clock += random.expovariate(4.0)
        chats.sort()
        if chats and chats[0][0] <= clock:
            _, turn, parent, blocks = chats.pop(0)
        else:
            turn, parent, blocks = 1, -1, list(random.choice(systems))
        added = 1 + min(int(random.expovariate(1 / 6)), 40)
        answer = 1 + min(int(random.expovariate(1 / 10)), 60)
        blocks = blocks + list(range(fresh, fresh + added))
        fresh += added
        yield {
            "chat_id": number, "parent_chat_id": parent, "timestamp": round(clock, 3), "turn": turn, "type": "text",
            "input_length": block * len(blocks) - random.randrange(block), "output_length": block * answer,
            "hash_ids": blocks,
        }  # fmt: skip
        if random.random() < 0.6 and len(blocks) < 120:
            said = list(range(fresh, fresh + answer))
            fresh += answer
            chats.append((clock + 2 + random.expovariate(1 / 20), turn + 1, number, blocks + said))
        number += 1


@makes("chats.jsonl")
def chats(random: Random) -> str:
    """Requests with the blocks of their prompts and their sessions, as Bailian publishes them."""
    return lines(conversations(random, 400))


@makes("azure.csv")
def azure(random: Random) -> str:
    """Arrivals and lengths, as Azure publishes them."""
    clock = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)
    rows: Rows = [["TIMESTAMP", "ContextTokens", "GeneratedTokens"]]
    for _ in range(600):
        clock += timedelta(microseconds=int(1e6 * random.expovariate(5.0)))
        prompt, output = (int(scale * random.expovariate(1.0)) + 8 for scale in (1100, 200))
        rows.append([clock.strftime("%Y-%m-%d %H:%M:%S.%f") + "0", min(prompt, 8000), min(output, 1000)])
    return table(rows)


@makes("tiers.csv")
def tiers(random: Random) -> str:
    """An access log that names sessions and tiers, but no prompt blocks: people chat, jobs come in between."""
    rows: list[tuple[float, str, str, int, int]] = []
    for session in range(90):
        clock, history = random.uniform(0.0, 120.0), 150
        for _ in range(1 + min(int(random.expovariate(0.5)), 7)):
            prompt, answer = history + 10 + int(random.expovariate(1 / 60)), 20 + int(random.expovariate(1 / 150))
            rows.append((clock, f"chat-{session}", "chat", prompt, answer))
            clock, history = clock + 3 + random.expovariate(1 / 15), prompt + answer
    for job in range(60):
        prompt, answer = 2000 + int(random.expovariate(1 / 3000)), 100 + int(random.expovariate(1 / 400))
        rows.append((random.uniform(0.0, 180.0), f"job-{job}", "batch", prompt, answer))
    rows.sort()
    head = ["timestamp", "session_id", "tier", "prompt_tokens", "completion_tokens"]
    return table([head, *([round(row[0], 3), *row[1:]] for row in rows)])


@makes("gateway.jsonl")
def gateway(random: Random) -> str:
    """The log of `assay gateway` in front of one engine whose steps take 8 ms, and more for what they compute."""
    step, token, kept = 8e-3, 2.5e-5, 2e-8  # seconds a step, a token computed, a token of KV read
    clock, rows = 1_767_600_000.0, []
    for number in range(300):
        clock += 0.2 + random.expovariate(2.0)
        prompt, output = 32 + int(random.expovariate(1 / 900)), 8 + int(random.expovariate(1 / 60))
        ttft = step + token * prompt + kept * prompt
        rest = (output - 1) * (step + token + kept * (prompt + output / 2))
        rows.append({
            "time": round(clock, 6), "id": f"r{number}", "endpoint": "chat", "status": 200, "engine": "127.0.0.1:8001",
            "model": "qwen3-8b", "session": f"s{number % 40}", "stream": True, "prompt_tokens": prompt,
            "completion_tokens": output, "cached_tokens": 0, "tries": 1, "ttft": round(ttft, 6),
            "e2e": round(ttft + rest, 6), "block": 16.0, "hash_ids": [7_000_000 + number],
        })  # fmt: skip
        clock += ttft + rest
    return lines(rows)


@makes("transcripts.jsonl")
def transcripts(random: Random) -> str:
    """OpenAI chats of an agent whose prompts hold the same tool's answer in different places."""
    words = "the a of to queue token cache node shard route batch step commit replica lease".split()

    def text(count: int) -> str:
        return " ".join(random.choice(words) for _ in range(count))

    manual, rows = text(400), []
    for chat in range(12):
        messages = [{"role": "system", "content": f"Session {chat} {text(5)}. {manual}"}]
        for _ in range(3):
            messages += [
                {"role": "user", "content": text(12)},
                {"role": "tool", "content": manual[: 600 + 40 * random.randrange(10)]},
                {"role": "assistant", "content": text(30)},
            ]
        rows.append({"messages": messages})
    return lines(rows)


@makes("branches.jsonl")
def branches(random: Random) -> str:
    """Answers of which half have parts that can be written side by side: stages, and the tokens of their branches."""
    clock, rows = 0.0, []
    for _ in range(400):
        clock += random.expovariate(2.2)
        row: dict[str, Any] = {"arrival": round(clock, 3), "prompt": 100 + int(random.expovariate(1 / 1200))}
        if random.random() < 0.5:
            parts = [20 + int(random.expovariate(1 / 120)) for _ in range(random.randint(2, 12))]
            row["stages"] = [[random.randint(20, 90)], parts, [random.randint(20, 90)]]
        else:
            row["output"] = 20 + int(random.expovariate(1 / 300))
        rows.append(row)
    return lines(rows)


@makes("clicks.csv")
def clicks(random: Random) -> str:
    """Who looked at what, and when: a shop's log."""
    rows: Rows = []
    for second in range(3000):
        user = random.randrange(150)
        liked = (user * 7) % 20 * 10
        item = liked + random.randrange(10) if random.random() < 0.7 else int(200 * random.random() ** 2)
        rows.append([user, f"item{item}", second])
    return table([["user", "item", "time"], *rows])


@makes("recommender.csv")
def recommender(random: Random) -> str:
    """Requests to a recommender: first many users with short histories and a wide choice, then few with long ones."""
    histories = [int(random.lognormvariate(7.3 if user < 60 else 5.5, 0.4)) for user in range(600)]
    clock, rows = 0.0, []
    while clock < 120.0:
        clock += random.expovariate(26.0)
        loyal = random.random() < (0.15 if clock < 75.0 else 0.9)
        user = random.randrange(60) if loyal else random.randrange(60, 600)
        histories[user] += random.randrange(12)
        own = 8 * (user % 40)
        groups = [own + random.randrange(8) if loyal else int(800 * random.random() ** 1.5) for _ in range(6)]
        rows.append([round(clock, 2), user, histories[user], " ".join(map(str, groups))])
    return table([["time", "user", "history", "groups"], *rows])


@makes("config.json")
def config(_: Random) -> str:
    """A model that nobody trained, in Hugging Face's format: of sizes that others have, with fewer layers."""
    sizes = {"hidden_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 32, "num_key_value_heads": 8}
    rest = {"head_dim": 128, "intermediate_size": 12288, "vocab_size": 151936, "rope_theta": 1e6}
    made = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "torch_dtype": "bfloat16", **sizes, **rest}
    return json.dumps(made, indent=1) + "\n"


@makes("moe.json")
def moe(_: Random) -> str:
    """A model with experts that nobody trained, in Hugging Face's format: many small ones, six of them used."""
    sizes = {"hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 16, "num_key_value_heads": 16}
    experts = {"num_experts": 64, "num_experts_per_tok": 6, "moe_intermediate_size": 1408}
    rest = {"head_dim": 128, "intermediate_size": 10944, "vocab_size": 102400, "norm_topk_prob": False}
    made = {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], **sizes, **experts, **rest}
    return json.dumps(made, indent=1) + "\n"


@makes("cluster.toml")
def cluster(_: Random) -> str:
    """Four machines of eight GPUs, with what of their peaks programs were seen to attain."""
    return (
        'device = "h100"\nnodes = 4\nper_node = 8\noutside = { bandwidth = 25e9, latency = 9e-6 }\n\n'
        "[efficiency]\nmatrix = 0.7\nattention = 0.5\nlinks = 0.75\n"
    )


@makes("mixed.toml")
def mixed(_: Random) -> str:
    """Machines of two kinds and the network between them."""
    return (
        "outside = { bandwidth = 25e9, latency = 8e-6 }\n\n"
        '[[machines]]\ndevice = "h100"\nnodes = 1\nattention = 0.6\n\n'
        '[[machines]]\ndevice = "a100"\nnodes = 2\nper_node = 4\nattention = 0.65\n'
    )


@makes("operators.json")
def operators(random: Random) -> str:
    """Three towers of operators that meet twice, as a compiler might write them down."""
    nodes: list[dict[str, object]] = [{"name": "x", "seconds": 0, "bytes": 4_000_000}]
    for tower in range(3):
        for step in range(5):
            before = "x" if step == 0 else f"t{tower}.{step - 1}"
            also = [f"t{(tower + 1) % 3}.1"] if step == 3 else []
            nodes.append({"name": f"t{tower}.{step}", "inputs": [before, *also], "bytes": 4_000_000,
                          "seconds": round(random.uniform(5e-4, 2e-3), 6)})  # fmt: skip
    nodes.append({"name": "sum", "inputs": [f"t{tower}.4" for tower in range(3)], "bytes": 4_000_000, "seconds": 3e-4})
    return json.dumps({"nodes": nodes}, indent=1) + "\n"


@makes("towers.py")
def towers(_: Random) -> str:
    """A torch module with branches that can be computed side by side."""
    return '''"""A module with three branches, for `assay compare doppler --module`."""

from torch import Tensor, nn


class Towers(nn.Module):
    """Three stacks of layers that read the same input."""

    def __init__(self) -> None:
        super().__init__()
        self.towers = nn.ModuleList(
            nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)) for _ in range(3)
        )
        self.last = nn.Linear(512, 10)

    def forward(self, x: Tensor) -> Tensor:
        """The sum of all branches."""
        total = self.towers[0](x)
        for tower in list(self.towers)[1:]:
            total = total + tower(x)
        return self.last(total)
'''


@makes("lengths.jsonl")
def lengths(random: Random) -> str:
    """Tokens of documents: most are short, some fill a sequence."""
    return lines([{"tokens": min(65_536, max(16, int(random.lognormvariate(6.3, 1.3))))} for _ in range(400)])


@makes("iterations.csv")
def iterations(random: Random) -> str:
    """Steps of two ranks with sequences of all lengths; from step 150 on rank 1 takes a fifth longer."""
    rows: Rows = [["step", "rank", "lengths", "seconds"]]
    for step in range(200):
        for rank in range(2):
            some = [min(8192, max(64, int(random.lognormvariate(6.8, 0.9)))) for _ in range(random.randint(2, 5))]
            took = 0.02 + 4e-5 * sum(some) + 9e-9 * sum(one * one for one in some)
            took *= random.gauss(1.0, 0.01) * (1.2 if rank == 1 and step >= 150 else 1.0)
            rows.append([step, rank, " ".join(map(str, some)), round(took, 5)])
    return table(rows)


@makes("multimodal.jsonl")
def multimodal(random: Random) -> str:
    """Tokens of samples: photographs with questions, charts with tables, and some texts alone."""
    rows = []
    for _ in range(400):
        kind = random.choices(("photograph", "chart", "text"), (5, 4, 1))[0]
        image = {"photograph": (380, 0.15), "chart": (850, 0.6), "text": (0, 0.0)}[kind]
        text = {"photograph": (60, 0.8), "chart": (300, 0.8), "text": (500, 0.7)}[kind]
        rows.append({
            "image_tokens": min(1280, int(image[0] * random.lognormvariate(0, image[1]))),
            "text_tokens": max(4, min(4096, int(text[0] * random.lognormvariate(0, text[1])))),
        })  # fmt: skip
    return lines(rows)


@makes("sections.toml")
def sections(random: Random) -> str:
    """A compound job: a language model that is trained, a teacher that is not, an encoder for samples with images."""
    return """batch = 256
samples = "multimodal.jsonl"

[[section]]
name = "student"
model = "qwen3-8b"
ranks = 32
critical = true

[[section]]
name = "teacher"
model = "qwen3-32b"
mode = "forward"
feeds = ["student"]

[[section]]
name = "eyes"
vision = "qwen2.5-vl"
feeds = ["student"]
"""


@makes("mixes.toml")
def mixes(random: Random) -> str:
    """How a job's mix moves: text first, then more and more images."""
    phases = ((1, 9, 4000), (4, 6, 3000), (8, 2, 1000))
    told = "# Shares of image and text tokens, and for how many steps.\n"
    return told + "".join(f"\n[[phase]]\nimage = {i}\ntext = {t}\nsteps = {n}\n" for i, t, n in phases)


@makes("market.csv")
def market(random: Random) -> str:
    """What nodes cost, in US dollars an hour, and how many there are, in two regions: every ten minutes of an hour."""
    priced = {"1xl4": 0.8, "1xl40s": 1.9, "4xl40s": 7.4, "2xa100": 7.2, "1xh100": 5.1, "4xh100": 19.0, "8xh200": 46.0}
    rows: Rows = []
    for second in range(0, 3600, 600):
        for region, dearer in (("us", 1.0), ("eu", 1.12)):
            for name, price in priced.items():
                there = max(0, round(random.gauss(24 / int(name.split("x")[0]), 3)))
                rows.append([second, f"{name}@{region}", round(price * dearer * random.uniform(0.8, 1.2), 2), there])
    return table([["time", "config", "price", "available"], *rows])


@makes("shifts.csv")
def shifts(random: Random) -> str:
    """Requests of three tiers: a quiet minute, a busy one with a few urgent requests, and the same again."""
    clock, rows = 0.0, []
    while clock < 240.0:
        busy = int(clock // 60) % 2 == 1
        clock += random.expovariate(11.0 if busy else 2.0)
        shares = [1, 5, 4] if busy else [6, 3, 1]
        tier = random.choices(["express", "standard", "batch"], shares)[0]
        prompt, output = 200 + int(random.expovariate(1 / 1500)), 20 + int(random.expovariate(1 / 180))
        rows.append([round(clock, 3), tier, min(prompt, 12000), min(output, 900)])
    return table([["timestamp", "tier", "prompt_tokens", "output_tokens"], *rows])


@makes("models.csv")
def models(random: Random) -> str:
    """Requests to three models, and how long they are."""
    clock, rows = 0.0, []
    for _ in range(900):
        clock += random.expovariate(12.0)
        name = random.choices(["llama-3-8b", "qwen3-32b", "llama-3-70b"], [6, 3, 2])[0]
        prompt, output = (int(scale * random.expovariate(1.0)) + 8 for scale in (800, 150))
        rows.append([round(clock, 3), name, min(prompt, 6000), min(output, 800)])
    return table([["timestamp", "model", "prompt_tokens", "output_tokens"], *rows])


@makes("fleet.toml")
def fleet(_: Random) -> str:
    """Two kinds of instances."""
    return (
        '[[instance]]\nlayout = "h200:qwen3-32b"\ncount = 6\n\n'
        '[[instance]]\nlayout = "h100:qwen3-32b:tp2"\ncount = 2\nmax_seqs = 128\n'
    )


@makes("lockstep.toml")
def lockstep(_: Random) -> str:
    """Data-parallel workers that step together."""
    return 'lockstep = [8]\n\n[[instance]]\nlayout = "h200:qwen3-30b-a3b"\ncount = 8\nmax_seqs = 24\n'


# ------------------------------------------------------------------------------------------------------------ protocols


def neighbours(random: Random, nodes: int = 60) -> list[tuple[int, int]]:
    """A ring with chords: connected, and far from complete."""
    edges = {(i, (i + 1) % nodes) for i in range(nodes)}
    while len(edges) < 3 * nodes:
        a, b = random.sample(range(nodes), 2)
        edges.add((min(a, b), max(a, b)))
    return sorted(edges)


@makes("edges.txt")
def edges(random: Random) -> str:
    """An edge list."""
    return "".join(f"{a} {b}\n" for a, b in neighbours(random))


@makes("opinions.csv")
def opinions(random: Random) -> str:
    """What each node thinks at first."""
    return table([["node", "opinion"], *([node, random.randrange(9)] for node in range(60))])


@makes("agents.csv")
def agents(random: Random) -> str:
    """Agents, what they can do and where they are."""
    able = ("translate", "plan", "search", "draw", "code", "book")
    rows = [[f"did:example:{k:03d}", ";".join(sorted(random.sample(able, 2))), f"10.0.0.{k}:7000"] for k in range(48)]
    return table([["did", "capabilities", "endpoint"], *rows])


@makes("sessions.csv")
def sessions(random: Random) -> str:
    """When nodes come and go, in seconds."""
    rows: Rows = []
    for node in range(48):
        up = 0.0
        while up < 400:
            down = up + 60 + random.expovariate(1 / 200)
            rows.append([node, round(up, 1), round(down, 1)])
            up = down + 5 + random.expovariate(1 / 30)
    return table([["node", "up", "down"], *rows])


@makes("election.soc")
def election(random: Random) -> str:
    """Ballots in PrefLib's format: five candidates, the first two close."""
    names = ("Ada", "Bela", "Chen", "Dora", "Emil")
    counts: dict[tuple[int, ...], int] = {}
    for _ in range(400):
        liking = {k: -0.5 * k + random.gauss(0, 1.2) for k in range(5)}
        order = tuple(sorted(range(1, 6), key=lambda k: -liking[k - 1]))
        counts[order] = counts.get(order, 0) + 1
    head = [
        "# FILE NAME: election.soc", "# TITLE: A made-up election", "# DATA TYPE: soc", "# NUMBER ALTERNATIVES: 5",
        f"# NUMBER VOTERS: {sum(counts.values())}", f"# NUMBER UNIQUE ORDERS: {len(counts)}",
        *(f"# ALTERNATIVE NAME {k}: {name}" for k, name in enumerate(names, 1)),
    ]  # fmt: skip
    body = [
        f"{n}: {','.join(map(str, order))}" for order, n in sorted(counts.items(), key=lambda row: (-row[1], row[0]))
    ]
    return "\n".join([*head, *body]) + "\n"


@makes("links.txt")
def links(_: Random) -> str:
    """One-way links of seven nodes: everyone hears from the three before it."""
    return "".join(f"{(node - back) % 7} {node}\n" for node in range(7) for back in (1, 2, 3))


def register(random: Random) -> Iterator[dict[str, Any]]:
    """Three clients of one register that is right until, near the end, somebody reads what was overwritten."""
    clock, value, last = 0, 0, 0
    for number in range(120):
        process, write = random.randrange(3), random.random() < 0.4 or number == 0
        clock += 1000 + random.randrange(3000)
        said = number + 1 if write else None
        yield {"process": process, "type": "invoke", "f": "write" if write else "read", "value": said, "time": clock}
        clock += 500 + random.randrange(2000)
        if write:
            last, value = value, number + 1
        read = last if number > 110 and not write else value
        yield {
            "process": process, "type": "ok", "f": "write" if write else "read", "value": said if write else read,
            "time": clock,
        }  # fmt: skip


@makes("history.edn")
def history_edn(random: Random) -> str:
    """A history as Jepsen writes it."""

    def event(row: dict[str, Any]) -> str:
        value = "nil" if row["value"] is None else row["value"]
        return (
            f"{{:process {row['process']}, :type :{row['type']}, :f :{row['f']}, :value {value}, :time {row['time']}}}"
        )

    return "\n".join(event(row) for row in register(random)) + "\n"


@makes("history.jsonl")
def history_lines(random: Random) -> str:
    """The like as JSON lines."""
    return lines(register(random))


@makes("broadcast.ta")
def broadcast(_: Random) -> bytes:
    """A threshold automaton: one of those that come with assay."""
    library = Path(__file__).parents[1] / "src" / "assay" / "protocols" / "taco" / "library"
    return (library / "broadcast.ta").read_bytes()


@makes("pbft.json")
def pbft(_: Random) -> str:
    """A QUANTAS experiment: PBFT in two sizes, with delays."""
    kinds = [
        {
            "logFile": f"PBFT{n}.txt", "tests": 3, "rounds": 60,
            "distribution": {"type": "UNIFORM", "minDelay": 1, "maxDelay": 3, "maxMsgsRec": 100},
            "topology": {"type": "complete", "initialPeers": n, "initialPeerType": "PBFTPeer"},
        }
        for n in (4, 7)
    ]  # fmt: skip
    return json.dumps({"algorithms": ["PBFTPeer/PBFTPeer.cpp"], "experiments": kinds}, indent=1) + "\n"


# -------------------------------------------------------------------------------------------------------------- kernels


def surface(random: Random, points: int = 6000) -> Iterator[tuple[float, float, float]]:
    """A ground with a house on it."""
    for _ in range(points):
        x, y = random.uniform(-20, 20), random.uniform(-20, 20)
        z = random.uniform(0, 6) if max(abs(x), abs(y)) < 5 else 0.2 * random.random()
        yield x, y, z


def npy(rows: list[list[float]] | list[float], shape: tuple[int, ...] = (), kind: str = "f") -> bytes:
    """NumPy's format, single precision (half: kind "e"); `shape` where it is not that of the rows."""
    flat = [value for row in rows for value in (row if isinstance(row, list) else [row])]
    shape = shape or ((len(rows), len(rows[0])) if isinstance(rows[0], list) else (len(rows),))
    head = f"{{'descr': '<f{struct.calcsize(kind)}', 'fortran_order': False, 'shape': {shape}, }}"
    head = head.ljust(-(10 + len(head) + 1) % 64 + len(head)) + "\n"
    return (
        b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + struct.pack(f"<{len(flat)}{kind}", *flat)
    )


@makes("web.txt")
def web(random: Random) -> str:
    """Links between 200 pages in 8 topics, as SNAP writes them."""
    lines = ["# Directed graph: links between pages", "# FromNodeId\tToNodeId"]
    for page in range(200):
        for _ in range(random.randint(1, 9)):
            other = random.randrange(200) if random.random() < 0.2 else page // 25 * 25 + random.randrange(25)
            lines.append(f"{page}\t{other}")
    return "\n".join(lines) + "\n"


@makes("roads.csv")
def roads(random: Random) -> str:
    """Roads of a town: crossings on a grid, some of it not built, with the minutes that a stretch takes."""
    rows: Rows = [["from", "to", "weight"]]
    for place in range(225):
        for other, there in ((place + 1, place % 15 < 14), (place + 15, place < 210)):
            if there and random.random() < 0.9:
                minutes = round(random.uniform(0.5, 4.0), 1)
                rows += [[100 + place, 100 + other, minutes], [100 + other, 100 + place, minutes]]
    return table(rows)


@makes("web.npy")
def web_features(random: Random) -> bytes:
    """Sixteen numbers a page: those of its topic, and noise."""
    topics = [[random.gauss(0, 1) for _ in range(16)] for _ in range(8)]
    return npy([[value + random.gauss(0, 0.5) for value in topics[page // 25]] for page in range(200)])


@makes("points.fbin")
def points(random: Random) -> bytes:
    """Six hundred vectors of twelve numbers in ten clusters, as big-ann-benchmarks has them."""
    centres = [[random.gauss(0, 3) for _ in range(12)] for _ in range(10)]
    rows = [[value + random.gauss(0, 1) for value in random.choice(centres)] for _ in range(600)]
    return struct.pack("<II", 600, 12) + b"".join(struct.pack("<12f", *row) for row in rows)


@makes("topics.npy")
def topics(random: Random) -> bytes:
    """The topic of each page; of every fifth it is not known."""
    return npy([-1.0 if page % 5 == 4 else float(page // 25) for page in range(200)])


@makes("keys.npy")
def keys(random: Random) -> bytes:
    """Milliseconds that 8,000 requests took, a few of them very long."""
    return npy([round(random.lognormvariate(4, 1), 3) for _ in range(8000)])


@makes("matrix.mtx")
def matrix(random: Random) -> str:
    """A sparse matrix of 500 rows: most short, a few long, some empty; MatrixMarket."""
    entries = set()
    for row in range(500):
        length = 0 if random.random() < 0.1 else min(400, int(2 + random.paretovariate(0.9)))
        entries |= {(row + 1, 1 + int(500 * random.random() ** 2)) for _ in range(length)}
    lines = [f"{row} {col} {random.uniform(-1, 1):.4f}" for row, col in sorted(entries)]
    head = ["%%MatrixMarket matrix coordinate real general", f"500 500 {len(entries)}"]
    return "\n".join([*head, *lines]) + "\n"


@makes("shapes.csv")
def shapes(_: Random) -> str:
    """Matrix products: rows, depth, columns and dtype of a few layers."""
    sizes = ((512, 768, 3072), (512, 3072, 768), (1024, 1024, 1024), (1000, 1111, 777))
    return table([["m", "k", "n", "dtype"], *([*size, "f32"] for size in sizes), [640, 640, 640, "f64"]])


@makes("pairs.csv")
def pairs(random: Random) -> str:
    """Sixty pairs of whole numbers to divide, decimal and hexadecimal, of 60 to 20,000 bits, a few below zero."""
    rows: Rows = [["u", "v"]]
    for _ in range(60):
        bits = int(2 ** random.uniform(6, 14.3))
        u, v = random.getrandbits(bits) * random.choice((1, 1, 1, -1)), random.getrandbits(bits // 2) + 1
        rows.append([hex(u), hex(v)] if bits > 500 else [u, v])
    return table(rows)


@makes("routing.npy")
def routing(random: Random) -> bytes:
    """Tokens that a gate sent from 16 ranks to 64 experts in 8 microbatches; which experts are hot drifts."""
    heat, counts = [random.gauss(0, 1) for _ in range(64)], []
    for _ in range(8):
        ranked = sorted(range(64), key=lambda expert: -heat[expert])
        weight = {expert: 1 / (3 + place) for place, expert in enumerate(ranked)}
        for _ in range(16):
            mine = [weight[expert] * random.uniform(0.7, 1.3) for expert in range(64)]
            counts.append([float(round(16384 * value / sum(mine))) for value in mine])
        heat = [0.95 * value + 0.3 * random.gauss(0, 1) for value in heat]
    return npy(counts, (8, 16, 64))


@makes("field.npy")
def field(random: Random) -> bytes:
    """A smooth field of 128 by 256 points: waves whose height falls with the square of their number, and weak noise."""
    waves = []
    for _ in range(48):
        along, across = random.randint(0, 12), random.randint(1, 12)
        waves.append((along, across, random.uniform(0, math.tau), random.gauss(0, 1) / (along**2 + across**2)))
    rows = [
        [
            sum(h * math.sin(math.tau * (a * i / 128 + b * j / 256) + p) for a, b, p, h in waves)
            + random.gauss(0, 1e-4)
            for j in range(256)
        ]
        for i in range(128)
    ]
    return npy([[round(value, 7) for value in row] for row in rows])


@makes("tiles.npz")
def visits_from_space(random: Random) -> bytes:
    """Fourteen visits of 64 by 64 pixels in four bands over three years: fields that ripen, a wood, a lake."""
    side, bare, leaf = 64, (900, 1200, 1500, 2300), (300, 650, 350, 4300)
    fields = {(y // 9, x // 14): random.choice((80, 140)) for y in range(side) for x in range(side)}
    ground = [[random.uniform(0.92, 1.08) for _ in range(side)] for _ in range(side)]
    days = sorted(365 * year + 40 + 60 * k + random.randrange(50) for year in range(3) for k in range(5))[:14]
    numbers = []
    for day in days:
        wet, early = random.uniform(0.75, 1.0), random.gauss(0, 8)
        sprung = {key: on + random.gauss(0, 6) for key, on in sorted(fields.items())}
        for band in range(4):
            for y in range(side):
                for x in range(side):
                    if (y - 44) ** 2 + (x - 14) ** 2 < 90:
                        value = 500.0 - 120 * band
                    else:
                        wood = x > 46 and y < 30
                        on = 115.0 + early if wood else sprung[y // 9, x // 14] + early
                        green = 1 / (1 + math.exp((on - day % 365) / 9)) - 1 / (
                            1 + math.exp((on + 130 - day % 365) / 9)
                        )
                        value = (green * leaf[band] + (1 - green) * bare[band] * wet) * ground[y][x]
                    numbers.append(round(value / 16) * 16)  # a sensor of few levels: the file stays small
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        head = f"{{'descr': '<u2', 'fortran_order': False, 'shape': {(len(days), 4, side, side)}, }}"
        dates = f"{{'descr': '<i8', 'fortran_order': False, 'shape': ({len(days)},), }}"
        parts = {"images": (head, f"<{len(numbers)}H", numbers), "dates": (dates, f"<{len(days)}q", days)}
        for name, (text, kind, values) in parts.items():
            text = text.ljust(-(10 + len(text) + 1) % 64 + len(text)) + "\n"
            data = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + struct.pack(kind, *values)
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), data, zipfile.ZIP_DEFLATED)
    return out.getvalue()


@makes("gcn.npz")
def gcn(random: Random) -> bytes:
    """A graph convolutional network of two layers, by the names that PyTorch Geometric gives its weights."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for layer, (into, width) in enumerate(((16, 12), (12, 8))):
            weight = [[random.gauss(0, into**-0.5) for _ in range(into)] for _ in range(width)]
            for name, rows in ((f"convs.{layer}.lin.weight", weight), (f"convs.{layer}.bias", [0.0] * width)):
                archive.writestr(zipfile.ZipInfo(f"{name}.npy"), npy(rows))  # type: ignore[arg-type]
    return out.getvalue()


@makes("kv.npz")
def kv(random: Random) -> bytes:
    """A layer's KV cache and queries of 48 steps: two heads look up scattered tokens, six read passages."""
    tokens, width, arrays = 672, 8, {"keys": [], "values": [], "queries": []}  # type: ignore[var-annotated]
    meant: list[list[list[float]]] = []
    for head in range(8):
        about = [[random.gauss(0, 1) for _ in range(width)] for _ in range(10)]
        about = [[x / math.hypot(*one) for x in one] for one in about]
        meant.append(about)
        if head in (2, 5):
            topic = [token % 10 if token < 120 else -1 for token in range(tokens)]
            random.shuffle(topic)
        else:
            topic = [token // 48 if token < 480 else -1 for token in range(tokens)]
        for one in topic:
            arrays["keys"] += [3 * (about[one][c] if one >= 0 else 0) + random.gauss(0, 0.5) for c in range(width)]
            arrays["values"] += [random.gauss(0, 1) for _ in range(width)]
    for _ in range(48):
        for about in meant:
            asked = random.choice(about)
            for _ in range(2):  # queries that share a head look for the same
                arrays["queries"] += [8 * x + random.gauss(0, 0.3) for x in asked]
    shapes = {"keys": (8, tokens, width), "values": (8, tokens, width), "queries": (48, 16, width)}
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, flat in arrays.items():
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), npy(flat, shapes[name], "e"))
    return out.getvalue()


@makes("scan.ply")
def scan(random: Random) -> bytes:
    """A point cloud."""
    cloud = [struct.pack("<3f", *point) for point in surface(random)]
    head = f"ply\nformat binary_little_endian 1.0\nelement vertex {len(cloud)}\n"
    return (head + "".join(f"property float {axis}\n" for axis in "xyz") + "end_header\n").encode() + b"".join(cloud)


@makes("latents.npz")
def latents(random: Random) -> bytes:
    """Two sequences of an MLA cache in half precision, the second shorter with nothing (NaN) after it, and 16 heads."""
    lengths, longest, heads = (40, 33), 40, 16
    cache = [random.gauss(0, 1) if token < length else math.nan
             for length in lengths for token in range(longest) for _ in range(576)]  # fmt: skip
    arrays = {
        "latent": ("<f2", "e", (2, longest, 576), cache),
        "query": ("<f2", "e", (2, heads, 576), [random.gauss(0, 1) for _ in range(2 * heads * 576)]),
        "lengths": ("<i4", "i", (2,), list(lengths)),
    }
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, (kind, code, shape, flat) in arrays.items():
            head = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}"
            head = head.ljust(-(10 + len(head) + 1) % 64 + len(head)) + "\n"
            body = struct.pack(f"<{len(flat)}{code}", *flat)
            whole = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + body
            archive.writestr(zipfile.ZipInfo(f"{name}.npy"), whole)
    return out.getvalue()


# -------------------------------------------------------------------------------------------------------------- observe


@makes("latency.csv")
def latency(random: Random) -> str:
    """Half a year of a service's latency: slowly up, a day's and a week's cycle, a jump, gaps."""
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    rows: Rows = [["time", "value"]]
    for hour in range(0, 24 * 180, 2):
        if 1500 < hour < 1560:
            continue
        day, week = math.sin(2 * math.pi * hour / 24), math.sin(2 * math.pi * hour / 168)
        value = 20 + 0.002 * hour + 3 * day + 2 * week + (4 if hour > 2400 else 0) + random.gauss(0, 0.6)
        rows.append([(begin + timedelta(hours=hour)).strftime("%Y-%m-%dT%H:%M:%SZ"), round(value, 3)])
    return table(rows)


def flight_recorder(rank: int) -> str:
    """A dump of torch's Flight Recorder: rank 2 never calls the fourth all-reduce, for which the others wait."""
    calls = []
    for seq in range(1, 4 if rank == 2 else 5):
        done = seq < 4
        calls.append({
            "frames": [{"name": "all_reduce", "filename": "distributed.py", "line": 3},
                       {"name": "train", "filename": "train.py", "line": 41}],
            "process_group": ["0", "default_pg"], "pg_id": 0, "collective_seq_id": seq, "p2p_seq_id": 0, "op_id": seq,
            "profiling_name": "nccl:all_reduce", "time_created_ns": 1_000_000_000 + 50_000_000 * seq,
            "input_sizes": [[1024, 1024]], "input_dtypes": ["Float"], "output_sizes": [[1024, 1024]],
            "output_dtypes": ["Float"], "state": "completed" if done else "started", "retired": done, "is_p2p": False,
            "time_discovered_completed_ns": 1_000_000_000 + 50_000_000 * seq + 900_000 if done else None,
        })  # fmt: skip
    group = {"name": "0", "desc": "default_pg", "ranks": "[0, 1, 2, 3]"}
    return json.dumps({"version": "2.10", "pg_config": {"0": group}, "entries": calls}, indent=1) + "\n"


for _rank in range(4):
    FILES[f"dumps/rank_{_rank}.json"] = lambda _, rank=_rank: flight_recorder(rank)  # type: ignore[misc]


@makes("run/card.yaml")
def card(_: Random) -> str:
    """What ran, for `assay trace --metrics`."""
    return """version: 1
description: Two ranks of a small model, generated
workload:
  model: {phase: training, model_family: tiny, precision: bf16, model_arch: {num_params: 2.0e7, num_layers: 4}}
  data: {batch_size: 8, seq_len: 512}
  hardware:
    xpu_spec: {type: GPU, model: nvidia_a100, total_count: 2, count_per_node: 2}
Model-executor:
  framework: {name: torch}
  model_plan_parallelization: {dp_replicate: 2, tp: 1, pp: 1}
  communication_library: {name: NCCL}
metric_source:
  traces: [json]
"""


def profiled(folder: Path) -> None:
    """The profiler's traces of two ranks, of which the second is slow."""
    from assay.workloads.kineto_generate import Job, write

    made = write(Job(ranks=2, steps=3, layers=4, slow_rank=1, slow_by=1.4), folder)
    for rank, path in enumerate(made):
        path.replace(folder / f"rank-{rank}.json")


def graphs(folder: Path) -> None:
    """Chakra execution traces of two data-parallel ranks."""
    from assay.observe.graphs.generate import Job, device, generate
    from assay.workloads.chakra import write

    job = Job(layers=2, hidden=512, heads=8, seq=256, batch=2, dp=2)
    for rank, graph in enumerate(generate(job, device("h100"))):
        write(graph, folder / f"job.{rank}.et")


# -------------------------------------------------------------------------------------------------- documents


@makes("news.jsonl")
def news(random: Random) -> str:
    """A hundred and twenty short articles; every fourth is an earlier one that was sent again, a little changed."""
    syllables = [a + b for a in "bdfgklmnprst" for b in ("a", "e", "i", "o", "u", "an", "er")]
    words = ["".join(random.choice(syllables) for _ in range(random.randint(1, 3))) for _ in range(900)]
    articles: list[list[str]] = []
    for number in range(120):
        if number > 8 and number % 4 == 3:
            article = list(articles[random.randrange(number)])
            for _ in range(random.randrange(4)):
                article[random.randrange(len(article))] = random.choice(words)
        else:
            article = [random.choice(words) for _ in range(random.randint(60, 140))]
        articles.append(article)
    day = datetime(2026, 3, 1, tzinfo=UTC)
    return lines([
        {"id": f"news-{i:03d}", "timestamp": (day + timedelta(minutes=17 * i)).isoformat(), "text": " ".join(article)}
        for i, article in enumerate(articles)
    ])  # fmt: skip


# ----------------------------------------------------------------------------------------------------------- the record


@makes("nccl-tests.txt")
def nccl_tests(random: Random) -> str:
    """What all_reduce_perf prints on two nodes of eight GPUs: other lines for small, middling and large sizes."""
    out = ["# nccl-tests version 2.13.9", "# Collective test starting: all_reduce_perf", "#", "# Using devices"]
    for rank in range(16):
        where = f"on {'node-' + 'ab'[rank // 8]:>10} device {rank % 8:2d} [0x{24 + rank % 8:02x}]"
        out.append(f"#  Rank {rank:2d} Group  0 Pid {4000 + rank:6d} {where} NVIDIA H100 80GB HBM3")
    both = "     time   algbw   busbw #wrong" * 2
    out += ["#", f"#       size         count      type   redop    root{both}"]
    for power in range(10, 33):
        size, columns = 2**power, ""
        for _ in range(2):
            lines = ((29.0, 8e3), (52.0, 1.5e5), (110.0, 1.86e5))  # microseconds, bytes a microsecond
            time = min(start + size / rate for start, rate in lines) * math.exp(random.gauss(0.0, 0.02))
            columns += f" {time:8.2f} {size / time / 1e3:7.2f} {1.875 * size / time / 1e3:7.2f}      0"
        out.append(f"{size:12d} {size // 4:13d}     float     sum      -1{columns}")
    return "\n".join([*out, "# Out of bounds values : 0 OK", ""])


@makes("listing.bib")
def listing(_: Random) -> str:
    """Three papers: two that the record holds, and one that nobody has written."""
    from assay.record.catalogue import papers

    known = [paper for paper in papers().values() if paper.key in ("lmetric", "taco") and paper.arxiv]
    rows = [(paper.key.replace("-", ""), paper.title, paper.arxiv) for paper in known]
    rows.append(("unwritten", "A paper that nobody has written yet", "2699.00001"))
    return "".join(
        f"@misc{{{key},\n  title = {{{title}}},\n  eprint = {{{number}}},\n  archivePrefix = {{arXiv}},\n"
        "  primaryClass = {cs.DC}\n}\n"
        for key, title, number in rows
    )


@makes("trajectories.jsonl")
def trajectories(random: Random) -> str:
    """Two RL steps of a coding agent's rollouts, a turn a line: most end soon, a few go on while their tests fail."""
    rows = []
    for name in range(120):
        hard, turn = random.random() < 0.15, 0
        turns = random.randint(6, 14) if hard else 1 + min(6, int(random.expovariate(0.6)))
        for turn in range(turns):
            row: dict[str, Any] = {"trajectory": f"t{name:03d}", "step": name // 60, "turn": turn}
            row["prompt_tokens"] = int((900 if turn == 0 else 350) * random.lognormvariate(0, 0.5)) + 16
            row["gen_tokens"] = int((900 if hard else 400) * random.lognormvariate(0, 0.4)) + 8
            if turn < turns - 1:
                fails = random.random() < (0.9 if hard else 0.03)
                row |= {
                    "tool": random.choice(("search", "shell", "tests")),
                    "status": "failure" if fails else "success",
                }
                row |= {
                    "payload_bytes": random.choice((120, 900, 9000)),
                    "env_seconds": round(random.expovariate(0.2), 2),
                }
            rows.append(row)
    return lines(rows)


@makes("visits.jsonl")
def visits(random: Random) -> str:
    """A site's log: who looked at which page, a few people more often than all the others."""
    people, rows, clock = [f"u{number:03d}" for number in range(300)], [], 1_767_600_000.0
    weights = [1 / (1 + number) ** 0.8 for number in range(len(people))]
    for number in range(2500):
        clock += random.expovariate(20.0)
        who = random.choices(people, weights)[0]
        page = f"/{random.choice(('home', 'search', 'item', 'basket'))}/{random.randrange(500)}"
        rows.append({"time": round(clock, 3), "user": who, "page": page, "visit": number})
    return lines(rows)


@makes("state.safetensors")
def state(random: Random) -> bytes:
    """A small model's weights, in the format of safetensors: the length of a header, the header, the numbers."""
    shapes = {"embed.weight": (64, 16), "layers.0.weight": (16, 16), "layers.0.bias": (16,), "head.weight": (64, 16)}
    header, body = {}, b""
    for name, shape in shapes.items():
        values = [random.gauss(0.0, 0.1) for _ in range(math.prod(shape))]
        data = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + body


def vectors(random: Random, count: int) -> bytes:
    """Vectors of 24 numbers around twelve centres, as fvecs: each begins with its dimension."""
    of = Random("centres of vectors")
    centres = [[of.gauss(0.0, 4.0) for _ in range(24)] for _ in range(12)]
    chosen = [random.choice(centres) for _ in range(count)]
    return b"".join(struct.pack("<i24f", 24, *(random.gauss(mean, 1.0) for mean in centre)) for centre in chosen)


FILES["vectors.fvecs"] = lambda random: vectors(random, 1500)
FILES["more-vectors.fvecs"] = lambda random: vectors(random, 300)
FILES["queries.fvecs"] = lambda random: vectors(random, 12)


def make(folder: Path) -> None:
    """Write every file."""
    for name, function in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        content = function(Random(name))
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    profiled(folder / "run")
    graphs(folder)


if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent)
