"""`assay compare radius-fps`: samplers side by side on the user's own point cloud."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

from assay.kernels.radius_fps import COUNTED, SAMPLER, radius, side_by_side
from assay.record.store import write_whole
from assay.workloads.cloud_files import read_cloud

PLAIN_LIMIT = 2e10  # distances; above, the plain sampler runs only if it is named


@click.command(epilog="Example:  assay compare radius-fps --cloud examples/scan.ply -k 1% --out picks.npy")
@click.option(
    "--cloud", "path", required=True, type=click.Path(path_type=Path),
    help="Points as .npy, .npz, .ply, KITTI .bin, or columns of text.",
)  # fmt: skip
@click.option("-k", "wanted", default="1%", show_default=True, help="How many points to pick, or which share.")
@click.option("--start", type=click.IntRange(0), default=0, show_default=True, help="Index of the first pick.")
@click.option("--samplers", default="", help=f"Among {', '.join(COUNTED)}, fpsample.  [all that end soon]")
@click.option("--rounds", type=click.IntRange(1, 1000), default=3, show_default=True, help="Interleaved timed rounds.")
@click.option("--out", type=click.Path(path_type=Path), help="Write the picked indices: .npy, else one a line.")
def command(path: Path, wanted: str, start: int, samplers: str, rounds: int, out: Path | None) -> dict[str, Any]:
    """Farthest point samplers on your own cloud: the same picks, at what speed."""
    cloud = read_cloud(path)
    k = _count(wanted, len(cloud))
    chosen = _chosen(samplers, len(cloud) * k)
    if start >= len(cloud):
        raise ValueError(f"--start {start} is past the last of {len(cloud)} points")
    rows = side_by_side(cloud, k, start, chosen, rounds)
    if out is not None:
        _write(out, radius(cloud, k, start))
    table = [{"sampler": name, **row} for name, row in rows.items()]
    return {
        "cloud": {"points": len(cloud), "dtype": str(cloud.dtype), "picks": k, "start": start},
        "table": table,
        "why": _why(table),
    }


def _count(wanted: str, n: int) -> int:
    share = wanted.endswith("%")
    try:
        value = float(wanted.removesuffix("%"))
        k = max(1, round(value / 100 * n)) if share else int(wanted)
    except (ValueError, OverflowError):  # an infinite share
        raise ValueError(f"-k {wanted}: give a number of points such as 4096, or a share such as 1%") from None
    if not 1 <= k <= n or (share and not 0 < value <= 100):
        raise ValueError(f"-k {wanted}: the cloud has {n} points, so 1 to {n} can be picked")
    return k


def _chosen(samplers: str, distances: float) -> list[str]:
    known = [*COUNTED, "fpsample"]
    chosen = [name.strip() for name in samplers.split(",") if name.strip()]
    for name in chosen:
        if name not in known:
            raise ValueError(f"no sampler '{name}'; choose among {', '.join(known)}")
    if not chosen:
        return [name for name in known if name != "plain" or distances <= PLAIN_LIMIT]
    return chosen if set(chosen) & set(COUNTED) else [SAMPLER, *chosen]  # something to check the peer against


def _write(path: Path, picks: Any) -> None:
    if path.suffix == ".npy":
        import io

        buffer = io.BytesIO()
        np.save(buffer, picks)
        write_whole(path, buffer.getvalue())
    else:
        write_whole(path, "".join(f"{index}\n" for index in picks.tolist()).encode())


def _why(table: list[dict[str, Any]]) -> str:
    ranked = sorted(table, key=lambda row: row["seconds"])
    best, others = ranked[0], ranked[1:]
    differing = [row["sampler"] for row in table if not row["same_order"]]
    order = f"All pick the same points in the same order except {', '.join(differing)}." if differing else (
        "All pick the same points in the same order."
    )  # fmt: skip
    if not others:
        return f"{best['sampler']} takes {best['seconds']:.3g} s."
    times = others[0]["seconds"] / best["seconds"]
    return f"{best['sampler']} is fastest, {times:.2g} times as fast as {others[0]['sampler']}. {order}"
