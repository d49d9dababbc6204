"""Data: graphs with features, vectors, documents, logs, weights."""

from __future__ import annotations

import json
import math
import struct
from datetime import UTC, datetime, timedelta
from random import Random

from making.formats import FILES, Rows, lines, makes, npy, npz, table


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


@makes("gcn.npz")
def gcn(random: Random) -> bytes:
    """A graph convolutional network of two layers, by the names that PyTorch Geometric gives its weights."""
    arrays = {}
    for layer, (into, width) in enumerate(((16, 12), (12, 8))):
        weight = [[random.gauss(0, into**-0.5) for _ in range(into)] for _ in range(width)]
        arrays |= {f"convs.{layer}.lin.weight": npy(weight), f"convs.{layer}.bias": npy([0.0] * width)}
    return npz(arrays)


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
