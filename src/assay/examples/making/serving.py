"""Serving: requests to language models and to recommenders, prices, fleets."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from making.formats import Rows, lines, makes, table


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
