"""Read the operator tables that Vidur publishes (microsoft/vidur, data/profiling): milliseconds per operator.

`*_mlp.csv` holds one row per number of tokens and tensor-parallel degree, with the columns `time_stats.<op>.median`,
`n_head`, `n_kv_head`, `n_embd`, `n_expanded_embd`, `num_tokens`, `num_tensor_parallel_workers`; `*_all_reduce.csv` and
`*_send_recv.csv` one row per message size and number of workers. `transfer` predicts one model's table from another's.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from assay.record.errors import BadInput
from assay.sim.op_surface import fit_gemm, fit_stream
from assay.sim.profile_db import ProfileDB

MULTIPROCESSORS = {"a100": 108, "h100": 132, "h200": 132, "a40": 84}
KEYS = ["num_tokens", "num_tensor_parallel_workers", "n_head", "n_kv_head", "n_embd", "n_expanded_embd"]


class Size(NamedTuple):
    """What an operator works on per token: a matrix of `inputs` × `outputs`, or (`inputs` 0) a row of `outputs`."""

    outputs: int
    inputs: int = 0


def sizes(row: dict[str, int]) -> dict[str, Size]:
    """The operators of a layer on one rank.

    >>> llama = {"n_embd": 4096, "n_expanded_embd": 11008, "n_head": 32, "n_kv_head": 32,
    ...          "num_tensor_parallel_workers": 2}
    >>> sizes(llama)["mlp_down_proj"]
    Size(outputs=4096, inputs=5504)
    """
    d, ffn, tp = row["n_embd"], row["n_expanded_embd"], row["num_tensor_parallel_workers"]
    head = d // row["n_head"]
    return {
        "attn_pre_proj": Size((row["n_head"] + 2 * row["n_kv_head"]) * head // tp, d),
        "attn_post_proj": Size(d, d // tp),
        "mlp_up_proj": Size(2 * ffn // tp, d),
        "mlp_down_proj": Size(d, ffn // tp),
        "emb": Size(d),
        "input_layernorm": Size(d),
        "post_attention_layernorm": Size(d),
        "add": Size(d),
        "attn_rope": Size((row["n_head"] + row["n_kv_head"]) * head // tp),
        "mlp_act": Size(ffn // tp),
    }


def read(path: Path) -> pl.DataFrame:
    """One row per operator, tokens and tensor-parallel degree: op, tokens, tp, outputs, inputs, seconds."""
    try:
        wide = pl.read_csv(path)
    except (OSError, pl.exceptions.PolarsError) as error:
        raise BadInput(f"{path}: not readable as CSV ({str(error).splitlines()[0]})") from None
    missing = [column for column in KEYS if column not in wide.columns]
    if missing:
        raise BadInput(f"{path}: no column {missing[0]}; a Vidur *_mlp.csv has one")
    middle = wide.group_by(KEYS).agg(pl.col("^time_stats\\..*\\.median$").median()).sort(KEYS)
    rows = [
        (op, row["num_tokens"], row["num_tensor_parallel_workers"], *size, row[f"time_stats.{op}.median"] * 1e-3)
        for row in middle.iter_rows(named=True)
        for op, size in sizes(row).items()
        if row.get(f"time_stats.{op}.median")
    ]
    return pl.DataFrame(rows, schema=["op", "tokens", "tp", "outputs", "inputs", "seconds"], orient="row")


def transfer(known: pl.DataFrame, wanted: pl.DataFrame, multiprocessors: int) -> pl.DataFrame:
    """Predict every row of `wanted` from `known` alone, without a look at its times; adds `predicted`."""
    products = known.filter(pl.col("inputs") > 0)
    m, n, k, t = (products[c].to_numpy().astype(float) for c in ("tokens", "outputs", "inputs", "seconds"))
    surface = fit_gemm(m, n, k, t, multiprocessors)
    parts = []
    for (op,), rows in wanted.group_by("op", maintain_order=True):
        tokens, outputs, inputs = (rows[c].to_numpy().astype(float) for c in ("tokens", "outputs", "inputs"))
        if inputs.any():
            predicted = surface.seconds(tokens, outputs, inputs)
        else:
            own = known.filter(pl.col("op") == op)
            volume = (own["tokens"] * own["outputs"]).to_numpy().astype(float)
            predicted = fit_stream(volume, own["seconds"].to_numpy())(tokens * outputs)
        parts.append(rows.with_columns(predicted=np.asarray(predicted)))
    return pl.concat(parts)


def load(db: ProfileDB, path: Path, machine: str) -> dict[int, dict[str, int]]:
    """Put a table into the database; returns, per tensor-parallel degree, the layer's operations for `step_cost`."""
    table = read(path)
    layers: dict[int, dict[str, int]] = {}
    for op, tokens, tp, outputs, inputs, seconds in table.iter_rows():
        work = f"T×{inputs}, {inputs}×{outputs}" if inputs else f"T×{outputs}"
        kind = "mm" if inputs else op.removeprefix("post_attention_").removeprefix("input_")
        signature = f"{kind}({work})"
        db.put(kind, signature, machine, {"T": tokens}, seconds)
        names = layers.setdefault(tp, {})
        if tokens == table["tokens"].min():
            names[signature] = names.get(signature, 0) + 1
    db.save()
    return layers


def load_collective(db: ProfileDB, path: Path, machine: str) -> list[str]:
    """Put an all-reduce or send-receive table into the database, a signature per number of workers."""
    wide = pl.read_csv(path)
    if "collective" not in wide.columns:
        raise BadInput(f"{path}: no column collective; Vidur's all_reduce.csv and send_recv.csv have one")
    name = str(wide["collective"][0])
    time = f"time_stats.{name}.median"
    each = wide.group_by("num_workers", "devices_per_node", "size").agg(pl.col(time).median()).sort("size")
    signatures = set()
    for workers, per_node, size, milliseconds in each.iter_rows():
        signature = f"{name}(bytes; {workers} ranks, {per_node} a node)"
        signatures.add(signature)
        if milliseconds > 0:
            db.put(name, signature, machine, {"bytes": size}, milliseconds * 1e-3)
    db.save()
    return sorted(signatures)
