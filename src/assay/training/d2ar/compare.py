"""`assay compare d2ar`: your own series of one place, coded by every method at the same bytes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from assay.record.errors import BadInput

TIE = 0.3  # dB: less than what another seed of training changes
UNITS = {"bytes": "B", "psnr": "dB", "ssim": "", "ratio": ""}
SHOWN = ["method", "bytes", "ratio", "psnr", "ssim"]


@click.command(epilog="Example:  assay compare d2ar --tiles examples/tiles.npz --ratio 1000")
@click.option(
    "--tiles", "path", required=True, type=click.Path(path_type=Path),
    help="An .npz with images [date, band, y, x] and dates, or a folder of GeoTIFFs, dates in their names.",
)  # fmt: skip
@click.option(
    "--ratio", type=click.IntRange(2, 1_000_000), default=1000, show_default=True, help="Raw over file bytes."
)
@click.option("--steps", type=click.IntRange(0, 100_000), default=60, show_default=True, help="Of training.")
@click.option(
    "--held", type=click.IntRange(1), default=2, show_default=True, help="Latest dates, on which it is judged."
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
def command(path: Path, ratio: int, steps: int, held: int, seed: int) -> dict[str, Any]:
    """Your own tiles: bytes and quality of the generative codec, wavelets, a learned codec, and the season alone."""
    return compare(path, ratio, steps=steps, held=held, seed=seed)


def compare(path: Path, ratio: int = 1000, *, steps: int = 60, held: int = 2, seed: int = 0) -> dict[str, Any]:
    """Learn from all but the latest dates, code these.

    Raises:
        BadInput: a file that is no series, too few dates, or too few bytes for a header.
    """
    import torch

    from assay.training.d2ar import judge, series, trial
    from assay.training.d2ar import model as codec

    torch.set_num_threads(1)
    every = series.read(path)
    if len(every.days) - held < 4:
        raise BadInput(f"--held {held}: leaves {len(every.days) - held} dates to learn from, should be 4 or more")
    archive = replace(every, images=every.images[:-held], days=every.days[:-held])
    raw = 2 * every.images[0].size
    if raw // ratio < codec.HEAD.size + 2:
        raise BadInput(f"--ratio {ratio}: {raw // ratio} bytes for a scene of {raw}, less than a header; at most "
                       f"{raw // (codec.HEAD.size + 2)}")  # fmt: skip
    options = codec.Options()
    learnt = codec.lessons(archive, options, steps, seed)
    model = codec.train(archive, options, steps, seed, learnt=learnt)
    ways = {
        "d2ar": trial.by_model(model),
        "residual": trial.by_wavelet(archive, True), "wavelet": trial.by_wavelet(archive, False),
        "learned": trial.by_model(codec.train(archive, codec.without(options, "flow"), steps, seed, learnt=learnt)),
        "season": trial.by_archive(archive, False), "last": trial.by_archive(archive, True),
    }  # fmt: skip
    table: list[dict[str, Any]] = []
    for name, coded in ways.items():
        each = []
        for image, day in zip(every.images[-held:], every.days[-held:], strict=True):
            data, picture = coded(trial.Scene(image, int(day), None, []), raw // ratio)
            each.append((len(data), judge.psnr(picture, image), judge.ssim(picture, image)))
        size, psnr, ssim = (float(np.mean(column)) for column in zip(*each, strict=True))
        table.append({"method": name, "bytes": size, "ratio": raw / size if size else None, "psnr": psnr, "ssim": ssim})
    table.sort(key=lambda row: -float(row["psnr"]))
    return {
        "series": {"dates": len(every.days), "bands": every.images.shape[1], "pixels": list(every.images.shape[2:]),
                   "raw": raw, "held": held}, "table": table, "units": UNITS, "shown": SHOWN, "why": _why(table),
        "trust": "Judged on the latest dates, from which nothing was learnt; trained for seconds, on one place.",
    }  # fmt: skip


def _why(table: list[dict[str, Any]]) -> str:
    best, by = table[0], {row["method"]: row for row in table}
    ours, free = by["d2ar"]["psnr"], max(by["season"]["psnr"], by["last"]["psnr"])
    if best["psnr"] - free < TIE:
        return f"Send nothing: the archive alone comes to {free:.1f} dB, and no method at these bytes gains {TIE} dB."
    lead = f"Use {best['method']}: {best['psnr']:.1f} dB in {best['bytes']:.0f} bytes"
    if best["method"] != "d2ar":
        tied = best["psnr"] - ours < TIE
        return f"{lead}; d2ar comes to {ours:.1f} dB{', a tie' if tied else ''}. The archive alone gives {free:.1f} dB."
    return f"{lead}; the season's picture alone, no bytes at all, gives {free:.1f} dB."
