"""Small traces in the formats in which traces are published: same columns, same quirks, made-up values."""

from __future__ import annotations

import csv
import gzip
import io
import json
from pathlib import Path
from typing import Any

import polars as pl

Row = dict[str, Any]


def jsonl(rows: list[Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def table(header: list[str], rows: list[list[Any]]) -> bytes:
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return file.getvalue().encode()


MOONCAKE: list[Row] = [
    {"timestamp": 0, "input_length": 1000, "output_length": 50, "hash_ids": [0, 1]},
    {"timestamp": 3000, "input_length": 1500, "output_length": 7, "hash_ids": [0, 2, 3]},
    {"timestamp": 3000, "input_length": 1600, "output_length": 9, "hash_ids": [0, 2, 3, 4]},
    {"timestamp": 6000, "input_length": 100, "output_length": 1, "hash_ids": [5]},
]
BAILIAN: list[Row] = [
    {"chat_id": 10, "parent_chat_id": -1, "timestamp": 5.5, "input_length": 40, "output_length": 16, "type": "text",
     "turn": 1, "hash_ids": [7, 8, 9]},
    {"chat_id": 11, "parent_chat_id": 99, "timestamp": 6.0, "input_length": 33, "output_length": 5, "type": "search",
     "turn": 3, "hash_ids": [8, 7, 1]},
    {"chat_id": 12, "parent_chat_id": 10, "timestamp": 9.25, "input_length": 70, "output_length": 5, "type": "text",
     "turn": 2, "hash_ids": [7, 8, 2, 3, 4]},
]  # fmt: skip
AZURE_2023 = [["2023-11-16 18:15:46.6805900", 374, 44], ["2023-11-16 18:15:50.9951690", 396, 109]]
AZURE_2024 = [["2024-05-10 00:00:00.009930+00:00", 2162, 5], ["2024-05-10 00:00:01.017335+00:00", 2399, 6]]
AZURE_COLUMNS = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]
BURST_COLUMNS = ["Timestamp", "Model", "Request tokens", "Response tokens", "Total tokens", "Log Type"]
BURST = [
    [5, "ChatGPT", 472, 18, 490, "Conversation log"],
    [45, "ChatGPT", 1087, 0, 1087, "Conversation log"],
    [118, "GPT-4", 417, 276, 693, "API log"],
]
BURST_NEW_COLUMNS = [*BURST_COLUMNS[:1], "Session ID", "Elapsed time", *BURST_COLUMNS[1:]]
BURST_NEW = [[5.1, 7, 2.2, "ChatGPT", 472, 18, 490, "Conversation log"],
             [9.0, 7, 1.0, "ChatGPT", 600, 20, 620, "Conversation log"]]  # fmt: skip
VIDUR = [[0.0, 374, 44], [4.314579, 396, 109]]
VIDUR_COLUMNS = ["arrived_at", "num_prefill_tokens", "num_decode_tokens"]
LONG = "Tell me about the history of the lighthouse on the northern coast, please. "
SHAREGPT = [
    {"id": "a", "conversations": [{"from": "human", "value": LONG * 3}, {"from": "gpt", "value": "It is old. " * 20},
                                  {"from": "human", "value": "Than what?"}, {"from": "gpt", "value": "Than me."}]},
    {"id": "b", "conversations": [{"from": "human", "value": LONG * 3}, {"from": "gpt", "value": "No."}]},
    {"id": "c", "conversations": [{"from": "human", "value": "Hello?"}]},
]  # fmt: skip
OPENAI = [
    {"messages": [{"role": "system", "content": "Be brief. " * 30}, {"role": "user", "content": "One?"},
                  {"role": "assistant", "content": "Two."}]},
    {"messages": [{"role": "system", "content": "Be brief. " * 30},
                  {"role": "user", "content": [{"type": "text", "text": "Three?"}]},
                  {"role": "assistant", "content": "Four."}], "model": "m"},
]  # fmt: skip
BATCH = [{"custom_id": "1", "method": "POST", "url": "/v1/chat/completions",
          "body": {"model": "m", "messages": [{"role": "user", "content": "One?"}], "max_tokens": 64}}]  # fmt: skip
GATEWAY = [
    {"event": "start", "version": "1"},
    {
        "ts": 1700000000.5,
        "model": "a",
        "usage": {"prompt_tokens": 12, "completion_tokens": 3},
        "user": "u1",
        "priority": 1,
    },
    {
        "ts": 1700000001.5,
        "model": "b",
        "usage": {"prompt_tokens": 13, "completion_tokens": 4},
        "user": "u2",
        "priority": 0,
    },
]
SGLANG = (
    b"[2025-01-15 10:00:00] Finish: obj=GenerateReqInput(rid='a'), out={'text': '', 'meta_info': {'id': 'a',"
    b" 'prompt_tokens': 12, 'completion_tokens': 30, 'cached_tokens': 1}}\n"
    b"[2025-01-15 10:00:01] Decode batch. #running-req: 1\n"
    b"[2025-01-15 10:00:02] Finish: obj=GenerateReqInput(rid='b'), out={'meta_info': {'prompt_tokens': 9,"
    b" 'completion_tokens': 8}}\n"
)
VLLM = "".join(
    f"INFO 01-15 10:00:0{k} [logger.py:39] Received request cmpl-{k}: prompt: '…', params: SamplingParams(n=1,"
    f" max_tokens={10 + k}, seed=None), prompt_token_ids: {list(range(40 + k))}, lora_request: None.\n"
    for k in range(3)
).encode()

_LINE = {"endpoint": "chat", "engine": "a", "model": "m", "tries": 1}
ASSAY = [
    {"time": 1.8e9 + 0.5, "id": "5a1t-1", "status": 200, "e2e": 0.4, "prompt_tokens": 40, "completion_tokens": 3,
     "block": 16.0, "hash_ids": [11, 12], "tenant": "b", **_LINE},
    {"time": 1.8e9, "id": "5a1t-0", "status": 200, "e2e": 1.5, "prompt_tokens": 50, "completion_tokens": 9,
     "block": 16.0, "hash_ids": [11, 12, 13], "tenant": "b", "tier": "batch", "session": "s", **_LINE},
    {"time": 1.8e9 + 1, "id": "5a1t-2", "status": 503, "e2e": 0.1, "error": "no engine is up", "endpoint": "chat"},
]  # fmt: skip
FILES: dict[str, bytes] = {
    "assay gateway": jsonl(ASSAY),
    "mooncake": jsonl(MOONCAKE),
    "bailian": jsonl(BAILIAN),
    "azure 2023": table(AZURE_COLUMNS, AZURE_2023),
    "azure 2024": table(AZURE_COLUMNS, AZURE_2024),
    "burstgpt": table(BURST_COLUMNS, BURST),
    "burstgpt with sessions": table(BURST_NEW_COLUMNS, BURST_NEW),
    "vidur": table(VIDUR_COLUMNS, VIDUR),
    "sharegpt": json.dumps(SHAREGPT, indent=1).encode(),
    "openai": jsonl(OPENAI),
    "batch": jsonl(BATCH),
    "gateway": jsonl(GATEWAY),
    "sglang": SGLANG,
    "vllm": VLLM,
}


def put(folder: Path, content: bytes, name: str = "trace.txt") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def packed(folder: Path, content: bytes, how: str) -> Path:
    """The content as .gz or .zst."""
    path = folder / f"trace.txt.{how}"
    if how == "gz":
        path.write_bytes(gzip.compress(content))
    else:
        lines = pl.DataFrame({"line": content.decode().splitlines()})
        options: dict[str, Any] = {"include_header": False, "quote_style": "never", "separator": "\x01"}
        lines.write_csv(path, compression="zstd", **options)
    return path
