"""Training: models, machines, lengths of samples, operators, gradients, rollouts."""

from __future__ import annotations

import json
import math
import zipfile
from random import Random
from typing import Any

from making.formats import Rows, lines, makes, npy, npz, table


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
    images = npy(numbers, (len(days), 4, side, side), "H")
    return npz({"images": images, "dates": npy(days, kind="q")}, zipfile.ZIP_DEFLATED)


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
