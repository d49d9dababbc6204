"""`assay data gnn`: training on a whole graph that is larger than memory."""

from __future__ import annotations

import errno
import tempfile
from pathlib import Path
from typing import Any

import click

from assay.data import Checkpointer
from assay.data.disk.arrays import DiskArray
from assay.data.disk.edges import read_edges
from assay.data.grinnder.files import check_out, read_labels, read_split, write_model
from assay.data.grinnder.layers import KINDS, Network
from assay.data.grinnder.trainer import Fitted, fit, warm, widths_of
from assay.record.errors import BadInput
from assay.sim.memory import Peak, parse_size, resident

EXAMPLE = (
    "Example:  assay data gnn train examples/web.txt --features examples/web.npy --labels examples/topics.npy "
    "--out net.npz --memory 600MB"
)


@click.group(epilog=EXAMPLE)
def command() -> None:
    """Graph neural networks on graphs larger than memory."""


@command.command(
    name="train",
    epilog=EXAMPLE,
)
@click.argument("edges", type=click.Path(path_type=Path))
@click.option("--features", type=click.Path(path_type=Path), required=True, help="A .npy of floats, a row a node.")
@click.option("--labels", type=click.Path(path_type=Path), required=True, help="A class a node; -1 or NaN: unknown.")
@click.option("--split", type=click.Path(path_type=Path), help="The nodes to train on; without it, all with a label.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The model: .safetensors, .npz or .pt.")
@click.option("--kind", type=click.Choice(KINDS), default="gcn", show_default=True, help="The layers.")
@click.option("--hidden", type=click.IntRange(1, 65536), default=64, show_default=True, help="Columns between layers.")
@click.option("--layers", type=click.IntRange(1, 64), default=2, show_default=True)
@click.option("--heads", type=click.IntRange(1, 64), default=4, show_default=True, help="Of GAT.")
@click.option("--epochs", type=click.IntRange(1), default=20, show_default=True)
@click.option("--lr", type=click.FloatRange(0, min_open=True), default=0.01, show_default=True, help="Adam's step.")
@click.option("--weight-decay", type=click.FloatRange(0), default=0.0, show_default=True)
@click.option("--memory", default="2GB", show_default=True, help="Of the whole process, at most: 900MB, 1.5Gi.")
@click.option("--parts", type=click.IntRange(1), help="Cut the graph into so many; without it, as memory demands.")
@click.option("--undirected", is_flag=True, help="Every edge counts in both directions.")
@click.option("--store", help="Save every epoch there (a folder, s3://…), and go on from the last one saved.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the first weights.")
def train(
    edges: Path, features: Path, labels: Path, split: Path | None, out: Path, kind: str, hidden: int, layers: int,
    heads: int, epochs: int, lr: float, weight_decay: float, memory: str, parts: int | None, undirected: bool,
    store: str | None, seed: int,
) -> dict[str, Any]:  # fmt: skip
    """Train on the whole graph of EDGES, no node or edge left out, with rows on disk and the limit of memory kept.

    EDGES is a SNAP edge list, an OGB folder, edge_index.npy, Matrix Market, or SciPy's .npz. Gradients are those of
    training in memory. What does not fit lies in TMPDIR meanwhile: let it be a fast disk.
    """
    try:
        limit = parse_size(memory)
        check_out(out)
        with DiskArray.open(features) as rows:
            n, columns = len(rows), rows.shape[-1]
        known = read_labels(labels, n)
        chosen = None if split is None else read_split(split, n)
        network = Network(kind, widths_of(columns, hidden, layers, int(known.max(initial=0)) + 1), heads, seed)
        warm(kind)
        free = limit - resident()
        if free <= 0:
            raise BadInput(f"--memory {memory}: the program alone takes {resident():,} bytes; more than that expected")
        with Peak() as peak:
            done = fit(
                network, lambda: read_edges(edges, undirected), features, known, memory=int(free * 0.95), epochs=epochs,
                lr=lr, weight_decay=weight_decay, train=chosen, parts=parts,
                checkpoints=Checkpointer(store, keep=2) if store else None,
                progress=click.get_current_context().obj or (lambda done, total: None),
            )  # fmt: skip
    except (ValueError, EOFError) as error:  # EOFError: a file that became shorter while it was read
        raise BadInput(str(error)) from error
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        cure = "free some, or let TMPDIR be a larger disk; what --store has saved is there"
        raise BadInput(f"no space is left in {tempfile.gettempdir()} or in --store; {cure}") from error
    write_model(out, network)
    held = {"limit_bytes": limit, "peak_bytes": peak.peak if peak.known else None}
    facts = {"nodes": n, "parts": done.parts, "amplification": done.amplification, "kept_in_memory": done.plan.mode,
             "gradients_in_memory": done.plan.gradients, "resumed_epochs": done.resumed}  # fmt: skip
    return {"graph": facts, "memory": held, "table": _rows(done), "why": _why(out, limit, peak, done)}


def _rows(done: Fitted) -> list[dict[str, Any]]:
    return [
        {"epoch": done.resumed + i + 1, "loss": one.loss, "accuracy": one.accuracy, "accuracy_of_others": one.others,
         "seconds": one.seconds, "read_bytes": one.read_bytes, "written_bytes": one.written_bytes}
        for i, one in enumerate(done.epochs)
    ]  # fmt: skip


def _why(out: Path, limit: int, peak: Peak, done: Fitted) -> str:
    went = f"{out} is written; the loss went from {done.losses[0]:.4f} to {done.losses[-1]:.4f}."
    if not peak.known:
        return f"{went} This system does not tell how much memory it took."
    share = peak.peak / limit
    kept = "within" if share <= 1.1 else "MORE than a tenth above"
    return f"{went} The process took at most {peak.peak:,} bytes, {share:.0%} of --memory: {kept} the limit."
