"""Samples of images and text: how many tokens each has of both, in the shape of known data sets or from a JSONL file.

Tokens of images are those that the language model gets. The four sets are told by lognormals whose medians follow from
what the sets hold (charts drawn large, COCO's photographs of 640 x 480, one-word answers, long explanations) at 28
pixels a token, images resized to at most 1,280 tokens as Qwen2.5-VL's own examples do; medians and spreads are assumed,
none was fitted. Images and texts are drawn independently, as their lengths are nearly unrelated in such sets.

>>> samples = draw("chartqa", 1000, seed=0)
>>> len(samples), bool(np.median(samples.image) > 10 * np.median(samples.text))
(1000, True)
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from assay.record import reading
from assay.record.errors import BadInput
from assay.sim.random import stream

Ints = NDArray[np.int64]
MOST = 1 << 20  # tokens of one image or text; more is a file read wrongly
LARGEST = 1 << 28  # bytes of a file that are read
RESIZED = 1280  # tokens that an image of the four sets has at most
FIELDS = ("image_tokens", "text_tokens")


@dataclass(frozen=True)
class Samples:
    """Tokens of each sample's image and of its text; 0 where it has none."""

    image: Ints
    text: Ints

    def __len__(self) -> int:
        return len(self.image)

    def __getitem__(self, which: Ints | slice) -> Samples:
        """Some of them.

        >>> Samples(np.array([1, 2]), np.array([3, 4]))[:1].text.tolist()
        [3]
        """
        return Samples(self.image[which], self.text[which])

    @property
    def tokens(self) -> Ints:
        """That the language model gets."""
        return self.image + self.text


@dataclass(frozen=True)
class Lognormal:
    """Whole numbers around a median, between two bounds."""

    median: float
    spread: float  # standard deviation of the logarithm
    least: int = 1
    most: int = 16384

    def draw(self, random: np.random.Generator, count: int) -> Ints:
        """So many of them."""
        drawn = self.median * np.exp(self.spread * random.standard_normal(count))
        return np.clip(drawn, self.least, self.most).astype(np.int64)


@dataclass(frozen=True)
class Source:
    """A data set: its images, and kinds of texts with their weights."""

    image: Lognormal
    texts: tuple[tuple[float, Lognormal], ...]

    def draw(self, random: np.random.Generator, count: int) -> Samples:
        """So many samples of it."""
        image = self.image.draw(random, count)
        weights = np.array([weight for weight, _ in self.texts])
        kind = random.choice(len(weights), count, p=weights / weights.sum())
        text = np.choose(kind, [one.draw(random, count) for _, one in self.texts])
        return Samples(image, text)


SOURCES = {
    "synthchartnet": Source(Lognormal(900, 0.75, 64, RESIZED), ((1.0, Lognormal(320, 0.9, 16, 4096)),)),
    "chartqa": Source(Lognormal(600, 0.4, 64, RESIZED), ((1.0, Lognormal(36, 0.35, 8, 256)),)),
    "cocoqa": Source(Lognormal(380, 0.15, 64, RESIZED), ((1.0, Lognormal(24, 0.25, 8, 128)),)),
    "llava-150k": Source(  # conversations, descriptions, reasoning: by their share of the 158 thousand
        Lognormal(380, 0.15, 64, RESIZED),
        ((0.37, Lognormal(330, 0.5, 32, 2048)), (0.15, Lognormal(140, 0.3, 32, 1024)),
         (0.48, Lognormal(220, 0.4, 32, 2048))),
    ),
}  # fmt: skip
BLEND = "blend"
"""All four, a quarter of the samples each."""
PICTURE = Lognormal(700, 1.0, 64, 16384)  # of a mixture's images: pictures of the web, scans, clips (assumed)
DOCUMENT = Lognormal(500, 1.0, 16, 16384)  # of its texts (assumed)


def draw(name: str, count: int, seed: int) -> Samples:
    """Samples in the shape of one set, or of all four in equal parts (`blend`).

    >>> draw("blend", 8, seed=1).image.shape
    (8,)

    Raises:
        BadInput: no such set.
    """
    random = stream(seed, "multimodal", name)
    if name in SOURCES:
        return SOURCES[name].draw(random, count)
    if name != BLEND:
        raise BadInput(f"unknown data set {name!r}; there are {', '.join([*SOURCES, BLEND])}")
    every = [source.draw(random, count) for source in SOURCES.values()]
    which = random.integers(0, len(every), count)
    return Samples(np.choose(which, [one.image for one in every]), np.choose(which, [one.text for one in every]))


def mixed(image: float, text: float, tokens: int, seed: int) -> Samples:
    """Images and texts, each a sample of its own, whose tokens are as `image` to `text` (9 to 1, say) in the mean.

    So many of them that they come to `tokens`, the last one cut to fit.

    >>> half = mixed(1, 1, 10**6, seed=0)
    >>> int(half.tokens.sum()), bool(0.4 < half.image.sum() / 10**6 < 0.6)
    (1000000, True)

    Raises:
        BadInput: shares below 0, or none at all.
    """
    if not (image >= 0 and text >= 0 and 0 < image + text < float("inf")):
        raise BadInput(f"a mix of {image:g} to {text:g}: two numbers from 0 on, not both 0")
    random = stream(seed, "multimodal", "mixed", tokens)
    size = {each: each.median * np.exp(each.spread**2 / 2) for each in (PICTURE, DOCUMENT)}
    pictures, documents = image / size[PICTURE], text / size[DOCUMENT]
    found, total = [], 0
    while total < tokens:
        count = 1 + int(1.2 * tokens / min(size.values()))
        picture = random.random(count) < pictures / (pictures + documents)
        drawn = np.where(picture, PICTURE.draw(random, count), DOCUMENT.draw(random, count))
        found.append(np.column_stack([drawn * picture, drawn * ~picture]))
        total += int(drawn.sum())
    rows = np.concatenate(found)
    ends = rows.sum(axis=1).cumsum()
    rows = rows[: int(np.searchsorted(ends, tokens)) + 1].copy()
    rows[-1, int(rows[-1].argmax())] -= int(rows.sum()) - tokens
    return Samples(rows[:, 0], rows[:, 1])


def read(path: Path) -> Samples:
    """A JSONL file: an object a line with `image_tokens` and `text_tokens`; either may be left out or 0, not both.

    Raises:
        BadInput: the line and what is wrong with it.
    """
    lines = reading.text(path, "a line of JSON for each sample", LARGEST).splitlines()
    found = [_sample(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not found:
        raise BadInput(f"{path}: no samples in it")
    rows = np.array(found, np.int64)
    return Samples(rows[:, 0], rows[:, 1])


def _sample(line: str, where: str) -> tuple[int, int]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{where}: not JSON") from error
    if not isinstance(value, dict) or not any(field in value for field in FIELDS):
        raise BadInput(f'{where}: should be {{"image_tokens": 600, "text_tokens": 40}}')
    counts = []
    for field in FIELDS:
        count = value.get(field, 0)
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MOST:
            raise BadInput(f"{where}: {field} should be a whole number from 0 to {MOST}")
        counts.append(count)
    if not sum(counts):
        raise BadInput(f"{where}: a sample without tokens")
    return counts[0], counts[1]
