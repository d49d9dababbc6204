"""The fastest setting of a form on the GPU at hand, found by trying them."""

from __future__ import annotations

import time
from typing import Any

from assay.kernels.etap_mla.cpu import Problem
from assay.kernels.etap_mla.plan import plan
from assay.record.errors import BadInput

ENOUGH = 6  # settings that are tried: each takes some seconds to compile


def fitted(form: str, problem: Problem, device: str = "cuda", kind: str = "bfloat16") -> Any:
    """A decoder of this form at the fastest of its first settings that fit the GPU."""
    import torch

    from assay.kernels.etap_mla import by_hand, gpu

    sms = torch.cuda.get_device_properties(0).multi_processor_count if device == "cuda" else 2
    dtype = getattr(torch, kind)
    query, cache = (torch.from_numpy(x).to(device, dtype) for x in (problem.query, problem.cache))
    table, lengths = (torch.from_numpy(x).to(device) for x in (problem.table, problem.lengths))
    taken: list[tuple[float, int, Any]] = []
    settings = by_hand.SETTINGS if form == by_hand.FORM else [gpu.FIRST[form], *gpu.SETTINGS[form]]
    for place, setting in enumerate(settings[:ENOUGH]):
        made = plan(problem.lengths, sms * setting.on_each, setting.block, setting.whole)
        try:
            given = query, cache, table, lengths, made, problem.scale, torch.float32
            decoder = by_hand.Decoder(*given) if form == by_hand.FORM else gpu.Decoder(form, setting, *given)
            decoder.run()
            taken.append((_seconds(decoder, torch, device), place, decoder))
        except Exception as error:  # too much shared memory, a tile this GPU has not
            reason = str(error).strip().splitlines()[0]
    if not taken:
        raise BadInput(f"no setting of the {form} form runs on this GPU: {reason}")
    return min(taken)[2]


def _seconds(decoder: Any, torch: Any, device: str) -> float:
    best = float("inf")
    for _ in range(5):
        begin = time.perf_counter()
        decoder.run()
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - begin)
    return best
