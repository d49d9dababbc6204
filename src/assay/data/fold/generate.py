"""Documents that are known: a word-bigram model writes originals, and a process of edits makes near-duplicates of them.

Lengths are long-tailed, families of duplicates are power-law in size, half of the duplicates arrive in bursts, close
behind their source. How alike a copy is meant to be is drawn first; the share of words to replace follows from it: a
5-gram survives if its five words do, and J = s / (2 − s) for a share s of survivors. What it came to be is measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.data.fold.sketch import WORDS
from assay.sim.compiled import njit
from assay.sim.streams import stream

VOCABULARY = 20_000
SUCCESSORS = 48  # words that usually follow a word
_RECENT = 2_000  # documents behind which a burst still is one


@dataclass(frozen=True)
class Vocabulary:
    """Words as bytes, and which words follow which."""

    letters: NDArray[np.uint8]
    begins: NDArray[np.int64]
    follows: NDArray[np.int32]


def vocabulary(seed: int) -> Vocabulary:
    """Made-up words, common ones short."""
    random = stream(seed, "fold", "vocabulary")
    lengths = np.clip(2 + (np.log2(np.arange(1, VOCABULARY + 1)) / 2).astype(int) + random.integers(0, 4, VOCABULARY),
                      2, 14)  # fmt: skip
    begins = np.concatenate(([0], np.cumsum(lengths)))
    letters = random.integers(ord("a"), ord("z") + 1, begins[-1]).astype(np.uint8)
    follows = (VOCABULARY ** random.random((VOCABULARY, SUCCESSORS))).astype(np.int32) - 1  # Zipf's law, roughly
    return Vocabulary(letters, begins, np.maximum(follows, 0))


def corpus(
    documents: int, seed: int = 0, *, copies: float = 0.4, words: int = 200, batch: int = 2000
) -> Iterator[list[str]]:
    """Batches of documents, a share `copies` of them near-duplicates of earlier ones, alike by 0.3 to 1.

    >>> [len(some) for some in corpus(5, batch=3)]
    [3, 2]
    """
    random, book = stream(seed, "fold", "corpus"), vocabulary(seed)
    texts: list[NDArray[np.int32]] = []
    for first in range(0, documents, batch):
        some = []
        for number in range(first, min(documents, first + batch)):
            key = random.integers(0, 2**63, dtype=np.uint64)
            if number and random.random() < copies:
                # A burst copies one of the last documents; otherwise any, and a copy can be copied: families grow.
                back = int(random.integers(1, min(number, _RECENT if random.random() < 0.5 else number) + 1))
                alike = 1.0 if random.random() < 0.1 else 0.3 + 0.7 * random.random()
                survive = 2 * alike / (1 + alike)
                text = _edited(texts[number - back], 1 - survive ** (1 / WORDS), key)
            else:
                length = int(np.clip(random.lognormal(np.log(words) - 0.18, 0.6), 20, 40 * words))
                text = _written(length, book.follows, key)
            texts.append(text)
            some.append(bytes(_rendered(text, book.letters, book.begins)).decode("ascii"))
        yield some


@njit(cache=True)
def _next(state: Any) -> Any:
    return state * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)


@njit(cache=True)
def _unit(state: Any) -> float:
    return float(state >> np.uint64(11)) / 9007199254740992.0


@njit(cache=True)
def _written(length: int, follows: Any, state: Any) -> Any:
    text = np.empty(length, np.int32)
    word = 0
    for i in range(length):
        state = _next(state)
        draw = _unit(state)
        state = _next(state)
        if draw < 0.2 or i == 0:  # a word that usually does not come here
            word = int(len(follows) ** _unit(state)) - 1
        else:
            word = follows[word, int(_unit(state) * follows.shape[1])]
        text[i] = word
    return text


@njit(cache=True)
def _edited(source: Any, rate: float, state: Any) -> Any:
    text = source.copy()
    for i in range(len(text)):
        state = _next(state)
        draw = _unit(state)
        state = _next(state)
        if draw < rate:
            text[i] = int(_unit(state) * VOCABULARY)
    return text


@njit(cache=True)
def _rendered(text: Any, letters: Any, begins: Any) -> Any:
    size = 0
    for word in text:
        size += begins[word + 1] - begins[word] + 1
    out = np.empty(max(size - 1, 0), np.uint8)
    at = 0
    for i in range(len(text)):
        if i:
            out[at] = 32
            at += 1
        for c in range(begins[text[i]], begins[text[i] + 1]):
            out[at] = letters[c]
            at += 1
    return out
