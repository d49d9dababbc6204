"""The Triton source without a GPU: its numbers, and how often it multiplies, in a process of its own.

Triton reads TRITON_INTERPRET when it is imported, so the process is a fresh one: `asked(cases)` starts it, runs every
case and gives a dict each. A case names a form, heads and lengths; pages are shuffled and everything that no sequence
owns is poisoned.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import numpy as np

from assay.kernels.etap_mla.cpu import WIDTH, Problem
from assay.record.types import NotMeasured

ABSENT = "Triton and torch are needed to interpret the GPU's source: pip install 'assay[test,torch]'"


def missing() -> str:
    """What is not installed, or nothing."""
    return "" if find_spec("triton") and find_spec("torch") else ABSENT


def poisoned(lengths: list[int], heads: int, poison: float, seed: int, page: int = 64, scale: float = 0.0) -> Problem:
    """Random latents on shuffled pages, with poison wherever no token lies."""
    from assay.sim.random import stream

    random = stream(seed, "etap-mla", *lengths, heads)
    each = max(1, -(-max(lengths) // page))
    order = random.permutation(len(lengths) * each + 2)[: len(lengths) * each].astype(np.int32)
    cache = np.full((len(lengths) * each + 2, page, WIDTH), poison, np.float32)
    table = order.reshape(len(lengths), each)
    for row, length in zip(table, lengths, strict=True):
        tokens = random.standard_normal((length, WIDTH), np.float32)
        for at in range(0, length, page):
            cache[row[at // page], : min(page, length - at)] = tokens[at : at + page]
    query = random.standard_normal((len(lengths), heads, WIDTH), np.float32)
    return Problem(query, cache, table, np.array(lengths, np.int32), scale or WIDTH**-0.5)


def asked(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every case in one process that interprets Triton."""
    if why := missing():
        raise NotMeasured(why)
    done = subprocess.run(
        [sys.executable, "-m", __name__], input=json.dumps(cases), capture_output=True, text=True, check=False,
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}, timeout=600,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"the interpreted kernels failed: {done.stderr[-2000:]}")
    answers: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return answers


def _one(case: dict[str, Any]) -> dict[str, Any]:
    import torch

    from assay.kernels.etap_mla import gpu
    from assay.kernels.etap_mla.plan import plan
    from assay.kernels.etap_mla.reference import compared, exact

    kind = getattr(torch, case.get("dtype", "float16"))
    p = poisoned(case["lengths"], case["heads"], float(case.get("poison", "nan")), case["seed"])
    query, cache = (torch.from_numpy(x).to(kind) for x in (p.query, p.cache))
    setting = gpu.Setting(case.get("block", 64), 4, case.get("loads", "async"))
    before = _macs[0]
    out = gpu.Decoder(
        case["form"], setting, query, cache, torch.from_numpy(p.table), torch.from_numpy(p.lengths),
        plan(p.lengths, case.get("workers", 3), setting.block), p.scale, torch.float32,
    ).run()  # fmt: skip
    seen = Problem(query.float().numpy(), cache.float().numpy(), p.table, p.lengths, p.scale)
    return compared(out.numpy(), exact(seen)) | {"macs": _macs[0] - before}


_macs = [0]


def _count() -> None:
    """Let the interpreter count multiply-adds of its products."""
    from triton.runtime.interpreter import InterpreterBuilder

    plain = InterpreterBuilder.create_dot

    def counting(self: Any, a: Any, b: Any, *more: Any) -> Any:
        _macs[0] += a.data.shape[0] * a.data.shape[1] * b.data.shape[1]
        return plain(self, a, b, *more)

    InterpreterBuilder.create_dot = counting


if __name__ == "__main__":
    _count()
    print(json.dumps([_one(case) for case in json.load(sys.stdin)]))
