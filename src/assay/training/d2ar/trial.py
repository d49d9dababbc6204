"""One place, learnt from its archive, and every method on days and places that nobody learnt from.

Needs numpy and torch only (and :mod:`wavelet` numba, where it is not to be slow).
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from assay.training.d2ar import judge, planet, wavelet
from assay.training.d2ar import model as codec
from assay.training.d2ar.archive import Archive, tiles
from assay.training.d2ar.model import Model, Options

RATIOS = (100, 1_000, 10_000)
YEARS = 3  # of the archive; what is held out is of the next year
USABLE = 0.9  # of the accuracy that the scene as taken gives
TASKS = {"land cover": ("accuracy", 0.9), "greenness": ("greenness", 0.05), "change": ("missed", 0.34)}


@dataclass(frozen=True)
class Scene:
    """A held-out observation with new halls in it, and what is really there."""

    image: Any
    day: int
    labels: Any
    corners: list[Any]
    as_taken: float = 0.0  # accuracy of land cover, without any coding
    missed: float = 0.0  # new halls that are missed, without any coding


Coded = Callable[[Scene, int], tuple[bytes, Any]]  # a scene and a budget: the file's bytes, and the picture out of them


def archived(
    size: int, seed: int, a_year: int, lat: float = 48.0, lon: float = 11.0
) -> tuple[planet.Region, Archive, Any]:
    """A region, the archive of its first years, and the archive's labels."""
    region = planet.Region(size, seed, lat, lon)
    draw = np.random.default_rng((seed, 31))
    days = np.concatenate([
        planet.YEAR * year + np.sort(draw.choice(36, a_year, replace=False)) * 10 + draw.integers(0, 10, a_year)
        for year in range(YEARS)
    ])  # fmt: skip
    seen = region.observe(days)
    return region, Archive(seen.images.astype(np.float32) / np.float32(planet.SCALE), days, lat, lon), seen.labels


def marked(scene: Scene, cover: judge.LandCover, archive: Archive) -> Scene:
    """With what tasks make of the scene as it was taken."""
    season = archive.seasonal([scene.day])[0]
    right = float((cover.of(scene.image) == scene.labels).mean())
    return replace(scene, as_taken=right, missed=judge.missed(scene.image, season, scene.corners, scene.day))


def scenes(
    region: planet.Region, count: int, seed: int, cover: judge.LandCover | None = None, archive: Archive | None = None
) -> list[Scene]:
    """Days of the year after the archive's, spread over the seasons, each with new halls."""
    draw = np.random.default_rng((seed, 32))
    days = YEARS * planet.YEAR + 60 + (np.arange(count) * 250) // count + draw.integers(0, 250 // count, count)
    seen = region.observe(days)
    found = []
    for image, day, label in zip(seen.images, seen.days, seen.labels, strict=True):
        avoid = (planet.CLOUD, planet.SNOW, planet.WATER, planet.ROCK)
        shown = image.astype(np.float32) / planet.SCALE
        changed, labels, corners = judge.built(shown, label, planet.TOWN, avoid, seed + int(day))
        one = Scene(changed, int(day), labels, corners)
        found.append(marked(one, cover, archive) if cover and archive else one)
    return found


def by_model(model: Model, **how: Any) -> Coded:
    """The generative codec as a method."""

    def coded(scene: Scene, budget: int) -> tuple[bytes, Any]:
        data = codec.encode(model, scene.image, scene.day, budget)
        return data, codec.decode(model, data, **how)

    return coded


def by_wavelet(archive: Archive, residual: bool) -> Coded:
    """Wavelets of the scene, or of what differs from the season; two bytes say the day."""
    axes, usual = codec.spectra(archive)

    def coded(scene: Scene, budget: int) -> tuple[bytes, Any]:
        season = archive.seasonal([scene.day])[0] if residual else 0.0
        mean = None if residual else usual
        data = wavelet.encode(scene.image - season, budget - 2, axes, mean)
        return scene.day.to_bytes(2, "little") + data, season + wavelet.decode(data, scene.image.shape, axes, mean)

    return coded


def by_archive(archive: Archive, last: bool) -> Coded:
    """No bytes at all: the season's usual picture, or the newest one of the season."""

    def coded(scene: Scene, budget: int) -> tuple[bytes, Any]:
        return b"", archive.last(scene.day) if last else archive.seasonal([scene.day])[0]

    return coded


def judged(scene: Scene, data: bytes, picture: Any, cover: judge.LandCover, season: Any) -> dict[str, float]:
    """All measures of one decoded scene; bytes are those of the file on disk."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "scene.d2"
        path.write_bytes(data)
        size = path.stat().st_size
    truth = judge.greenness(scene.image)
    return {
        "bytes": size, "psnr": judge.psnr(picture, scene.image), "ssim": judge.ssim(picture, scene.image),
        "accuracy": float((cover.of(picture) == scene.labels).mean()),
        "as_taken": scene.as_taken, "missed": judge.missed(picture, season, scene.corners, scene.day),
        "missed_as_taken": scene.missed,
        "greenness": float(np.abs(judge.greenness(picture) - truth).mean()),
    }  # fmt: skip


def held_out(
    size: int, dates: int, a_year: int, steps: int, seed: int, *, batch: int = 32, device: str = "cpu",
    options: Options = codec.DEFAULT, ratios: tuple[int, ...] = RATIOS, wavelets: bool = True,
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Learn a place once for each variant; all methods on the same held-out scenes at the same bytes."""
    torch.set_num_threads(1)
    region, archive, labels = archived(size, seed, a_year)
    learnt = codec.lessons(archive, options, steps, seed, device=device)
    learn = lambda o: codec.train(archive, o, steps, seed, batch=batch, learnt=learnt, device=device)  # noqa: E731
    model = learn(options)
    free, blind, plain = (learn(codec.without(options, what)) for what in ("prior", "place", "flow"))
    cover = judge.learn_cover(archive.images, labels)
    held = scenes(region, dates, seed, cover, archive)
    rows: dict[str, dict[str, Any]] = {}
    at_all = {"d2ar": by_model(model), "learned": by_model(plain)}
    if wavelets:
        at_all |= {"wavelet": by_wavelet(archive, False), "residual": by_wavelet(archive, True)}
    for ratio in ratios:
        for name, coded in at_all.items():
            rows[f"{name} at {ratio}"] = _row(coded, held, ratio, cover, archive)
    some = {"no prior": by_model(free), "no place": by_model(blind), "drawn": by_model(model, heat=1.0),
            "one step": by_model(model, euler=1), "season": by_archive(archive, False),
            "last": by_archive(archive, True),
            "not trained": by_model(codec.train(archive, options, 0, seed, learnt=learnt, device=device))}  # fmt: skip
    for name, coded in some.items():
        rows[f"{name} at 1000"] = _row(coded, held, 1_000, cover, archive)
    rows |= adapted([rows[f"d2ar at {ratio}"] for ratio in ratios], ratios)
    rows |= elsewhere(model, cover, size, dates, a_year, seed, wavelets)
    cut = torch.from_numpy(np.concatenate(tiles(archive.images, options.tile))).to(device)
    turned = codec.train_autoencoder(cut, options, steps, seed, equal=0.0)
    for row, one in (("equal", learnt.autoencoder), ("not equal", turned)):
        rows[row] = {"unequal": codec.unequal(one, cut[:100])}
    return {name: {key: value for key, value in row.items() if key != "each"} for name, row in rows.items()}


def _row(coded: Coded, held: list[Scene], ratio: int, cover: judge.LandCover, archive: Archive) -> dict[str, Any]:
    each = []
    for scene in held:
        raw = 2 * scene.image.size  # uint16, as they are delivered
        data, picture = coded(scene, raw // ratio)
        each.append(judged(scene, data, picture, cover, archive.seasonal([scene.day])[0]) | {"raw": raw})
    row: dict[str, Any] = {key: float(np.mean([one[key] for one in each])) for key in each[0]}
    row["ratio"] = min(one["raw"] / one["bytes"] for one in each) if row["bytes"] else None
    row["usable"] = row["accuracy"] >= USABLE * row["as_taken"]
    return row | {"each": each}


def adapted(found: list[dict[str, Any]], ratios: tuple[int, ...]) -> dict[str, dict[str, Any]]:
    """For every task the fewest bytes that serve it on the first held-out scene, judged on the others."""
    rows = {}
    for task, (measure, bound) in TASKS.items():
        fits = lambda row, m=measure, b=bound: (  # noqa: E731
            row[m] >= b * row["as_taken"] if m == "accuracy" else row[m] <= b
        )
        serving = [at for at, row in enumerate(found) if fits(row["each"][0])]
        chosen = max(serving, default=0)  # ratios rise
        rest = found[chosen]["each"][1:]
        rows[f"task {task}"] = {
            "ratio": float(ratios[chosen]), "bytes": float(np.mean([one["bytes"] for one in rest])),
            "served": float(np.mean([fits(one) for one in rest])),
        }  # fmt: skip
    return rows


def elsewhere(
    model: Model, cover: judge.LandCover, size: int, dates: int, a_year: int, seed: int, wavelets: bool
) -> dict[str, dict[str, Any]]:
    """A place that was never learnt: without an archive (the average land of the season instead), and with its own."""
    region, archive, _ = archived(size, seed + 7919, a_year, lat=47.0, lon=13.0)
    held = scenes(region, dates, seed + 7919, cover, archive)
    home = model.archive
    mean = np.broadcast_to(home.images.mean((2, 3), keepdims=True), home.images.shape)
    nothing = Archive(np.ascontiguousarray(mean), home.days, archive.lat, archive.lon)
    ways = {"unseen": by_model(replace(model, archive=nothing)),
            "unseen with archive": by_model(replace(model, archive=archive))}  # fmt: skip
    if wavelets:
        ways["unseen wavelet"] = by_wavelet(home, False)
    return {f"{name} at 1000": _row(coded, held, 1_000, cover, archive) for name, coded in ways.items()}


def rivals(size: int, dates: int, a_year: int, seed: int) -> dict[str, dict[str, Any]]:
    """Only the wavelets of :func:`held_out`, on the same scenes: for rows that came from a machine without numba."""
    rows: dict[str, dict[str, Any]] = {}
    region, archive, labels = archived(size, seed, a_year)
    cover = judge.learn_cover(archive.images, labels)
    held = scenes(region, dates, seed, cover, archive)
    for ratio in RATIOS:
        for name, residual in (("wavelet", False), ("residual", True)):
            rows[f"{name} at {ratio}"] = _row(by_wavelet(archive, residual), held, ratio, cover, archive)
    far, other, _ = archived(size, seed + 7919, a_year, lat=47.0, lon=13.0)
    there = scenes(far, dates, seed + 7919, cover, other)
    rows["unseen wavelet at 1000"] = _row(by_wavelet(archive, False), there, 1_000, cover, other)
    return {name: {key: value for key, value in row.items() if key != "each"} for name, row in rows.items()}
