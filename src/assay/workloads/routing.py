"""How many tokens of each rank the gate of a mixture of experts sends to each expert: generated, or read from files.

Loads are whole numbers `[microbatch, source rank, expert]`. The generator draws Zipf popularity whose order drifts: an
expert's place among the others follows a slow random walk, so yesterday's hottest expert is not today's, while how
uneven the experts are stays the same. A token uses `top_k` different experts.

Files: `.npy` or `.csv` with a matrix (sources by experts; `.npy` also several microbatches), and `.parquet` with a
column `indices`, the experts of a token per row, as FLAME-MoE publishes its routing traces.

>>> loads = drifting(ranks=4, experts=8, top_k=2, tokens=1000, imbalance=1.5, microbatches=3, seed=0)
>>> loads.shape, loads.sum(axis=2).tolist()[0], round(uneven(loads[0], 4), 1)
((3, 4, 8), [2000, 2000, 2000, 2000], 1.5)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from assay.record import reading
from assay.record.errors import BadInput
from assay.sim.random import stream

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

LOCAL = 0.3  # how much the sources of a microbatch differ in taste: spread of the log popularity
MOST = 2**40  # tokens of one count; more is a file read wrongly
FORMATS = "a .npy or .csv matrix [source, expert], or a .parquet with the column 'indices'"


def uneven(load: Ints, ranks: int) -> float:
    """The busiest rank's tokens over the mean, where rank g holds the g-th part of the experts.

    >>> uneven(np.array([[4, 0, 1, 3]]), 2)
    1.0
    """
    held = load.sum(axis=0).reshape(ranks, -1).sum(axis=1)
    return float(held.max() / held.mean())


def drifting(
    ranks: int, experts: int, top_k: int, tokens: int, imbalance: float, microbatches: int, seed: int,
    half_life: float = 16.0,
) -> Ints:  # fmt: skip
    """Loads of successive microbatches, the first with this much of `uneven`, each rank with `tokens` tokens.

    `half_life` is after how many microbatches an expert's place is half forgotten. Popularity is as steep as the
    first microbatch needs it, and stays so.

    Raises:
        ValueError: experts that cannot be dealt out, or an imbalance that no popularity gives.
    """
    if experts % ranks or not 0 < top_k <= experts:
        raise ValueError(f"{experts} experts, of which a token uses {top_k}, cannot be dealt to {ranks} ranks")
    random = stream(seed, "routing", ranks, experts, top_k, tokens)
    keep = 0.5 ** (1.0 / half_life)
    place = random.standard_normal(experts)
    draws = []
    for _ in range(microbatches):
        gaps = np.cumsum(random.standard_exponential((ranks, tokens + 1)), axis=1)  # sorted uniform numbers, unsorted
        draws.append((place, random.standard_normal((ranks, experts)), gaps[:, :-1] / gaps[:, -1:]))
        place = keep * place + np.sqrt(1 - keep * keep) * random.standard_normal(experts)
    steep = _steepness(draws[0], top_k, ranks, imbalance)
    return np.stack([_counts(*draw, top_k, steep) for draw in draws])


def _steepness(draw: tuple[Floats, Floats, Floats], top_k: int, ranks: int, imbalance: float) -> float:
    """The exponent of Zipf's law that makes one draw this uneven."""
    low, high = 0.0, 4.0
    if not uneven(_counts(*draw, top_k, low), ranks) < imbalance < uneven(_counts(*draw, top_k, high), ranks):
        raise ValueError(f"no popularity makes the busiest rank {imbalance:g} times the mean here")
    while high - low > 1e-3:
        middle = 0.5 * (low + high)
        low, high = (low, middle) if uneven(_counts(*draw, top_k, middle), ranks) > imbalance else (middle, high)
    return high


def _counts(place: Floats, taste: Floats, drawn: Floats, top_k: int, steep: float) -> Ints:
    """Tokens [source, expert]: each token draws `top_k` different experts by systematic sampling.

    The experts' probabilities lie side by side on a line of length `top_k`; a token with the uniform number u takes
    those that hold u, u + 1, u + 2, …; so the count of an expert is how many drawn numbers its stretch holds.
    """
    rank = np.empty(len(place))
    rank[np.argsort(-place, kind="stable")] = np.arange(1, len(place) + 1)
    # Without a preference of all there is none of some: sources differ as much as experts do.
    weight = rank[None, :] ** -steep * np.exp(LOCAL * min(steep, 1.0) * taste)
    ends = np.concatenate([np.zeros((len(weight), 1)), np.cumsum(_included(weight, top_k), axis=1)], axis=1)
    whole, part = np.divmod(ends, 1.0)
    tokens = drawn.shape[1]
    below = np.stack([np.searchsorted(mine, cuts, side="left") for mine, cuts in zip(drawn, part, strict=True)])
    cumulated = np.round(whole).astype(np.int64) * tokens + below
    cumulated[:, -1] = top_k * tokens  # the sum of the probabilities, whatever its last digit
    found: Ints = np.diff(cumulated, axis=1)
    return found


def _included(weight: Floats, top_k: int) -> Floats:
    """How probable it is that a token uses each expert: proportional to its weight, at most 1, together `top_k`."""
    probability: Floats = top_k * weight / weight.sum(axis=1, keepdims=True)
    while (probability > 1.0).any():
        sure = probability >= 1.0
        rest = np.where(sure, 0.0, weight)
        left = (top_k - sure.sum(axis=1, keepdims=True)) / np.maximum(rest.sum(axis=1, keepdims=True), 1e-300)
        probability = np.where(sure, 1.0, left * rest)
    return probability


def read(path: Path, *, ranks: int = 0, tokens: int = 4096, experts: int = 0, limit: int = 64) -> Ints:
    """The loads in a file, `[microbatch, source rank, expert]`.

    Args:
        path: a .npy or .csv matrix of counts, or a .parquet of routed indices.
        ranks: of a parquet: into how many sources its tokens are dealt; of a matrix how many rows it must have.
        tokens: of a parquet: tokens of a source in a microbatch.
        experts: of a parquet: how many there are; else as many as its indices and equal shares of ranks need.
        limit: microbatches at most.

    Raises:
        BadInput: not such a file, or numbers that are no counts; the message says where.
    """
    kind = path.suffix.lower()
    if kind == ".parquet":
        return _parquet(path, ranks or 8, tokens, experts, limit)
    if kind not in (".npy", ".csv"):
        raise BadInput(f"{path}: {FORMATS} expected")
    loads = _checked(path, _npy(path) if kind == ".npy" else _csv(path))[:limit]
    if ranks and loads.shape[1] != ranks:
        raise BadInput(f"{path}: {loads.shape[1]} sources, but --ranks is {ranks}; a row for each rank expected")
    if loads.shape[2] % loads.shape[1]:
        cure = "a multiple of the sources expected, since each rank holds equally many experts"
        raise BadInput(f"{path}: {loads.shape[2]} experts on {loads.shape[1]} ranks; {cure}")
    return loads


def _npy(path: Path) -> NDArray[Any]:
    try:
        found: NDArray[Any] = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise BadInput(f"{path}: not a plain .npy array ({reading.no_array(error)})") from None
    return found


def _csv(path: Path) -> NDArray[Any]:
    """A matrix of numbers; a first line of names is passed over."""
    rows: list[list[float]] = []
    for number, line in enumerate(path.read_text(encoding="utf-8-sig").splitlines(), 1):
        words = [word.strip() for word in line.split(",")]
        if not any(words):
            continue
        try:
            rows.append([float(word) for word in words])
        except ValueError:
            if number > 1:
                raise BadInput(f"{path}, line {number}: {line[:40]!r}; counts separated by commas expected") from None
            continue
        if len(rows[-1]) != len(rows[0]):
            raise BadInput(f"{path}, line {number}: {len(rows[-1])} numbers, {len(rows[0])} expected as before")
    return np.array(rows)


def _checked(path: Path, found: NDArray[Any]) -> Ints:
    if found.ndim not in (2, 3) or not found.size:
        raise BadInput(f"{path}: shape {found.shape}; [source, expert] or [microbatch, source, expert] expected")
    if found.dtype.kind not in "iuf":
        raise BadInput(f"{path}: {found.dtype} values; counts of tokens expected")
    wrong = ~np.isfinite(found) | (found < 0) | (found > MOST) | (found != np.round(found))
    if wrong.any():
        where = tuple(int(index) for index in np.argwhere(wrong)[0])
        raise BadInput(f"{path}: {found[where]} at {list(where)}; whole numbers of tokens from 0 expected")
    loads = found.astype(np.int64).reshape(-1, *found.shape[-2:])
    if (empty := np.flatnonzero(loads.sum(axis=(1, 2)) == 0)).size:
        raise BadInput(f"{path}: microbatch {empty[0]} has no token at all")
    return loads


def _parquet(path: Path, ranks: int, tokens: int, experts: int, limit: int) -> Ints:
    """Routed indices, dealt to the sources in the file's order; what does not fill a microbatch is left out."""
    try:
        column = pl.scan_parquet(path).select("indices").head(ranks * tokens * limit).collect()["indices"]
    except (pl.exceptions.PolarsError, OSError) as error:
        raise BadInput(f"{path}: no parquet with the column 'indices' ({str(error).splitlines()[0]})") from None
    widths = column.list.len().unique() if isinstance(column.dtype, pl.List) else None
    if widths is None or len(widths) != 1 or not widths[0]:
        raise BadInput(f"{path}: 'indices' must hold a list of experts for each token, all of one length")
    routed = column.explode().cast(pl.Int64).to_numpy().reshape(len(column), -1)
    whole = len(routed) // (ranks * tokens)
    if not whole:
        raise BadInput(f"{path}: {len(routed)} tokens, {ranks * tokens} expected for one microbatch; lower --tokens")
    count = experts or -(-(int(routed.max()) + 1) // ranks) * ranks
    if routed.min() < 0 or routed.max() >= count or count % ranks:
        last = int(routed.max())
        raise BadInput(f"{path}: experts up to {last} on {ranks} ranks; --experts above it, a multiple of --ranks")
    routed = routed[: whole * ranks * tokens].reshape(whole * ranks, -1)
    source = np.arange(whole * ranks)[:, None] * count
    return np.bincount((routed + source).ravel(), minlength=whole * ranks * count).reshape(whole, ranks, count)
