"""One 64-bit word for everything up to the end of a cache block: equal prefixes, equal words.

The word of a block depends on its tokens and on the word of the block before it, so the last word of a prefix names
the whole of it, and a cache of blocks is a table of words. The key keeps outsiders from making two prefixes collide.

>>> import numpy as np
>>> one, other = np.arange(40, dtype=np.uint32), np.arange(40, dtype=np.uint32)
>>> other[20] = 7
>>> [bool(word) for word in chain(one, 16) == chain(other, 16)]
[True, False]
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from assay.sim.compiled import njit
from assay.sim.random import bits

KEY = 0x2545F4914F6CDD1D
_ODD = np.uint64(0xD6E8FEB86659FD93)
_32 = np.uint64(32)


@njit(cache=True, nogil=True)
def block_word(tokens: Any, start: int, stop: int, key: Any, before: Any) -> Any:
    """The word of the block `tokens[start:stop]` behind the word `before`; never 0, which tables use for nothing."""
    word = bits(key, before)
    for at in range(start, stop):
        word = (word ^ np.uint64(tokens[at])) * _ODD  # a bijection of the word for any token
        word ^= word >> _32
    return max(bits(key, word), np.uint64(1))


@njit(cache=True, nogil=True)
def _chain(tokens: Any, block: int, key: Any, before: Any, words: Any) -> None:
    for number in range(len(words)):
        before = words[number] = block_word(tokens, number * block, (number + 1) * block, key, before)


def chain(tokens: NDArray[np.uint32], block: int, key: int | np.uint64 = KEY, before: int = 0) -> NDArray[np.uint64]:
    """The words of the full blocks of `tokens`, behind a prefix whose last word is `before`.

    >>> ids = np.arange(64, dtype=np.uint32)
    >>> first = chain(ids[:32], 16)
    >>> bool((chain(ids[32:], 16, before=int(first[-1])) == chain(ids, 16)[2:]).all())
    True
    """
    if tokens.dtype != np.uint32 or not tokens.flags.c_contiguous:  # another type would be compiled for anew
        tokens = np.ascontiguousarray(tokens, np.uint32)
    words: NDArray[np.uint64] = np.empty(len(tokens) // block, np.uint64)  # a compiled function's own takes longer
    if len(words):
        _chain(tokens, block, key if type(key) is np.uint64 else np.uint64(key), np.uint64(before), words)
    return words
