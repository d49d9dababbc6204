"""Vision encoders by the numbers that their cost depends on, as :class:`assay.sim.models.Model` without a vocabulary.

Patches of an image see all patches of the same image. Some encoders join `merge` patches into the one token that the
language model gets. Shapes marked "assumed" have the stated number of parameters and proportions that are usual.

>>> vision("clip-vit-l").shape.params // 10**6, vision("qwen2.5-vl").merge
(301, 4)
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from assay.record.errors import BadInput
from assay.sim.hardware import nearest
from assay.sim.models import Model


@dataclass(frozen=True)
class Vision:
    """An encoder's shape, and how many of its patches make one token of the language model."""

    shape: Model
    merge: int = 1


def vit(name: str, *, layers: int, hidden: int, heads: int, ffn: int, gated: bool = False, full: int = 0,
        window: int = 0) -> Model:  # fmt: skip
    """A vision transformer; with a `window`, `full` of its layers see the whole image and the others so many patches.

    >>> vit("small", layers=12, hidden=384, heads=6, ffn=1536).params
    21233664
    """
    seeing = full if window else layers
    return Model(name, hidden, 0, True, seeing, layers - seeing, 0, layers, 0, heads, heads, hidden // heads, ffn,
                 window=window, gated_mlp=gated)  # fmt: skip


_KNOWN = {
    "clip-vit-l": Vision(
        vit("clip-vit-l", layers=24, hidden=1024, heads=16, ffn=4096)
    ),  # openai/clip-vit-large-patch14
    "siglip-so400m": Vision(vit("siglip-so400m", layers=27, hidden=1152, heads=16, ffn=4304)),  # google/siglip-so400m
    "qwen2.5-vl": Vision(  # Qwen/Qwen2.5-VL: 4 of 32 layers see the whole image, the others 8 x 8 patches
        vit("qwen2.5-vl", layers=32, hidden=1280, heads=16, ffn=3420, gated=True, full=4, window=64), merge=4
    ),
    "vit-1b": Vision(vit("vit-1b", layers=40, hidden=1408, heads=16, ffn=6144), merge=4),  # ViT-g's proportions
    "vit-2.4b": Vision(vit("vit-2.4b", layers=48, hidden=2048, heads=16, ffn=8192), merge=4),  # assumed
    "internvit-6b": Vision(vit("internvit-6b", layers=45, hidden=3200, heads=25, ffn=12800), merge=4),  # OpenGVLab
    "vit-10b": Vision(vit("vit-10b", layers=48, hidden=4096, heads=32, ffn=16384), merge=4),  # assumed
}


def vision(name: str) -> Vision:
    """The encoder of this name, or `LAYERSxHIDDENxHEADS` for a plain one with a feed-forward part four times as wide.

    >>> vision("12x384x6").shape.layers
    12

    Raises:
        BadInput: no such encoder; the message names the nearest.
    """
    wanted = name.strip().lower()
    if wanted in _KNOWN:
        return _KNOWN[wanted]
    if sizes := re.fullmatch(r"([1-9]\d{0,3})x([1-9]\d{0,5})x([1-9]\d{0,3})", wanted):
        layers, hidden, heads = map(int, sizes.groups())
        if hidden % heads == 0:
            return Vision(vit(wanted, layers=layers, hidden=hidden, heads=heads, ffn=4 * hidden))
    raise BadInput(f"unknown encoder {name!r}{nearest(wanted, _KNOWN)} (or give LAYERSxHIDDENxHEADS, heads dividing)")
