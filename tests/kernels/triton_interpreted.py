"""Runs the paper's Triton kernels in Triton's interpreter, on a CPU, and prints what is off: started by a test,
which names the cases.

The interpreter is switched on by a variable that Triton reads when it is imported, so this is a process of its own.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import torch
import triton.runtime.interpreter as interpreter

from assay.kernels.ab_sparse import gpu
from assay.kernels.ab_sparse.carry import learnt

CASES = (
    # tokens, caches, sizes, queries a head, bits, budget, setting
    (600, 2, (8, 128), 4, 4, 256, {"splits": 3}),
    (2337, 1, (16, 64, 8), 1, 4, 128, {"splits": 5, "read": 32, "tile": 16, "run": 2}),  # two groups of tokens
    (700, 1, (32, 32), 8, 16, 128, {"splits": 4}),
    (300, 1, (), 4, 16, 0, {"splits": 2}),
)


def scalars_count_as_numbers() -> None:
    """NumPy 2.4 no longer takes an array of one element for a number; the interpreter's loops rely on it."""
    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched


def main() -> None:
    scalars_count_as_numbers()
    torch.manual_seed(0)
    found = []
    for tokens, caches, sizes, group, bits, budget, setting in (CASES[int(at)] for at in sys.argv[1:]):
        heads, each = len(sizes) or 2, -(-tokens // gpu.PAGE)
        pages = torch.randperm(each * caches).to(torch.int32).reshape(caches, each)
        keys, values = (torch.randn(each * caches, heads, gpu.PAGE, 32).half() for _ in range(2))
        how = [learnt(torch.randn(60, 32).numpy()) for _ in range(heads)]
        order, shares = (torch.from_numpy(np.stack(x)) for x in zip(*how, strict=True))
        step = gpu.Step(
            keys, values, pages, tokens, group, budget, sizes, bits, gpu.Setting(**setting), (order, shares)
        )
        q = torch.randn(caches, heads * group, 32).half()
        out, begin = step(q), step.begin.tolist()
        for cache in range(caches):
            for head in range(heads):
                mine = out[cache, head * group : (head + 1) * group].float()
                row = {"out": float((step.right(q, cache, head) - mine).abs().max()), "scores": 0.0, "same": True}
                if sizes:
                    got = step.scored[cache, step.starts[head] : step.starts[head + 1]]
                    best = got.topk(begin[head + 1] - begin[head]).indices.sort().values
                    row["scores"] = float((step.right_scores(q, cache, head) - got).abs().max())
                    row["same"] = step.chosen[cache, begin[head] : begin[head + 1]].tolist() == best.tolist()
                found.append(row)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
