"""`assay data gnn`: every node's output of a graph neural network, on a graph larger than memory."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import click

from assay.data.atlas.choosing import STRIPS
from assay.data.atlas.layers import read_model
from assay.data.atlas.run import infer, warm
from assay.data.atlas.tiers import POLICIES
from assay.data.disk.arrays import DiskArray
from assay.data.disk.edges import read_edges
from assay.data.disk.graphs import DiskGraph
from assay.data.engine.alone import alone
from assay.record.errors import BadInput
from assay.sim.memory import Peak, parse_size, resident

EXAMPLE = (
    "Example:  assay data gnn infer examples/web.txt --features examples/web.npy --model examples/gcn.npz "
    "--out rows.npy --memory 600MB"
)


@click.group(epilog=EXAMPLE)
def command() -> None:
    """Graph neural networks on graphs larger than memory."""


@command.command(name="infer", epilog=EXAMPLE)
@click.argument("edges", type=click.Path(path_type=Path))
@click.option("--features", type=click.Path(path_type=Path), required=True, help="A .npy of floats, a row a node.")
@click.option("--model", type=click.Path(path_type=Path), required=True, help="A state_dict: .safetensors, .npz, .pt.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The rows of the last layer, a .npy.")
@click.option("--memory", default="1GB", show_default=True, help="Of the whole process, at most: 512MB, 1.5Gi.")
@click.option("--undirected", is_flag=True, help="Every edge counts in both directions.")
@click.option("--aggregate", type=click.Choice(["mean", "max"]), default="mean", show_default=True, help="Of SAGE.")
@click.option(
    "--policy", type=click.Choice(["auto", STRIPS, *POLICIES[:-1]]), default="auto", show_default=True,
    help="Which sums leave when memory is full; strips: none, a few columns at a time.",
)  # fmt: skip
def infer_command(
    edges: Path, features: Path, model: Path, out: Path, memory: str, undirected: bool, aggregate: str, policy: str
) -> dict[str, Any]:
    """Run the GCN, GraphSAGE, GIN or GAT in --model over the graph of EDGES, layer by layer, streaming from disk.

    EDGES is a SNAP edge list, an OGB folder, edge_index.npy, Matrix Market, or SciPy's .npz; node numbers are rows of
    the features. The model's weights have the names that PyTorch Geometric gives them; rectifiers stand between
    layers. A run that was killed goes on after its last finished layer.
    """
    try:
        limit = parse_size(memory)
        layers = read_model(model, aggregate)
        with DiskArray.open(features) as rows:
            n = len(rows)
        warm(layers)
        free = limit - resident()
        if free <= 0:
            raise BadInput(f"--memory {memory}: the program alone takes {resident():,} bytes; more than that expected")
        with Peak() as peak, alone(held := out.with_name(out.name + ".run")):
            graph = _graph(edges, n, undirected, out, free)
            try:
                ran = infer(
                    layers, graph, features, out, int(free * 0.95), policy=policy,
                    progress=click.get_current_context().obj or (lambda done, total: None),
                )  # fmt: skip
            finally:
                graph.close()
            shutil.rmtree(graph.folder, ignore_errors=True)
            held.rmdir()
    except (ValueError, EOFError) as error:  # EOFError: a file that became shorter while it was read
        raise BadInput(str(error)) from error
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        cure = "free some and run it again: it goes on after the last whole layer"
        raise BadInput(f"no space is left in {out.absolute().parent}; {cure}") from error
    table = [
        {
            "layer": ran.resumed + i + 1, "seconds": one.seconds, "read_bytes": one.feature_bytes + one.edge_bytes,
            "spilled_bytes": one.spill_bytes, "written_bytes": one.output_bytes, "evicted": one.evicted,
            "policy": one.policy,
        }
        for i, one in enumerate(ran.layers)
    ]  # fmt: skip
    facts = {"nodes": graph.n, "edges": graph.m, "layers": len(layers), "resumed_layers": ran.resumed}
    memory_told = {"limit_bytes": limit, "peak_bytes": peak.peak if peak.known else None}
    return {"graph": facts, "memory": memory_told, "table": table, "why": _why(out, limit, peak)}


def _why(out: Path, limit: int, peak: Peak) -> str:
    if not peak.known:
        return f"{out} is written. This system does not tell how much memory it took."
    share = peak.peak / limit
    kept = "within" if share <= 1.1 else "MORE than a tenth above"
    return f"{out} is written. The process took at most {peak.peak:,} bytes, {share:.0%} of --memory: {kept} the limit."


def _graph(edges: Path, n: int, undirected: bool, out: Path, memory: int) -> DiskGraph:
    """The edges in compressed rows beside the output: built once, and kept until the output is there."""
    folder = out.with_name(out.name + ".graph")
    stamp = folder / "of.txt"
    files = sorted(one for one in edges.rglob("*") if one.is_file()) if edges.is_dir() else [edges]  # OGB's are folders
    facts = [(str(one.resolve()), one.stat().st_size, one.stat().st_mtime_ns, one.stat().st_ctime_ns) for one in files]
    made_from = f"{facts} {n} {undirected}"
    if stamp.is_file() and stamp.read_text(encoding="utf-8") == made_from:
        return DiskGraph(folder)
    graph = DiskGraph.build(folder, read_edges(edges, undirected), n, memory // 2)
    stamp.write_text(made_from, encoding="utf-8")
    return graph
