"""Token ids for the prompts of a trace: prompts share ids exactly where the trace says that they share text.

>>> from assay.workloads.chat import chat
>>> trace = chat(20, rate=5.0, seed=0)
>>> rows = [prompt_ids(trace, r) for r in range(20)]
>>> [len(row) for row in rows] == trace.prompt.tolist()
True
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from assay.workloads.requests import Requests

IDS = 1 << 31  # ids lie below: they fit a signed number of 32 bits, which engines use
_STEP, _FIELD = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9)


def prompt_ids(trace: Requests, r: int, salt: int = 0) -> NDArray[np.uint32]:
    """The prompt of request r as token ids; `salt` gives another text with the same structure."""
    size = int(trace.prompt[r])
    ids = np.empty(size, np.uint32)
    at = 0
    tree = trace.prefixes
    if tree is not None:
        for segment in tree.segments[tree.offsets[r] : tree.offsets[r + 1]].tolist():
            begin, end = int(tree.start[segment]), min(int(tree.stop[segment]), size)
            if end > begin:
                ids[begin:end] = _text(begin, end, 2 * segment, salt)
                at = max(at, end)
    ids[at:] = _text(at, size, 2 * r + 1, salt)
    return ids


def _text(begin: int, end: int, name: int, salt: int) -> NDArray[np.uint32]:
    """Ids that look random and depend on the position and on whose text it is."""
    with np.errstate(over="ignore"):
        x = np.arange(begin, end, dtype=np.uint64) * _STEP + np.uint64(name + (salt << 32)) * _FIELD
        x ^= x >> np.uint64(31)
        x *= np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(29)
    return (x % np.uint64(IDS)).astype(np.uint32)
