"""`blocks.codes` in torch, for many heads at once: what a GPU makes of corners when a group of blocks is full.

Only torch is imported, so that the scripts for a GPU can load this file without assay.
"""

from __future__ import annotations

import torch


def codes(
    numbers: torch.Tensor, bits: int, group: int, carry: tuple[torch.Tensor, torch.Tensor] | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Codes of numbers [heads, blocks, channels]; scales and zeros [heads, groups, channels] in half precision.

    `carry` is (order [heads, channels], shares [heads, channels, channels]).
    """
    blocks, most = numbers.shape[1], 2**bits - 1
    rest = -blocks % group
    padded = torch.cat([numbers, numbers[:, -1:].expand(-1, rest, -1)], 1) if rest else numbers
    parts = padded.unflatten(1, (-1, group))
    low, high = parts.amin(2), parts.amax(2)
    zero = low.clamp(-65504, 65504).half()
    scale = ((high - low) / most).clamp(max=65504).half()
    if carry is None:
        z, s = (x.float().repeat_interleave(group, 1)[:, :blocks] for x in (zero, scale))
        return _steps(numbers, z, s, most).to(torch.uint8), scale, zero
    order, shares = carry
    place = order[:, None].expand(-1, blocks, -1)
    # In the order of rounding, that first: what one step reads and writes then lies together.
    rows = numbers.gather(2, place).permute(2, 0, 1).contiguous()
    parts = order[:, None].expand(-1, zero.shape[1], -1)
    z, s = (x.float().gather(2, parts).repeat_interleave(group, 1)[:, :blocks].permute(2, 0, 1) for x in (zero, scale))
    found = torch.empty_like(rows, dtype=torch.uint8)
    for c in range(len(rows)):
        steps = _steps(rows[c], z[c], s[c], most)
        found[c] = steps.to(torch.uint8)
        off = rows[c] - (z[c] + s[c] * steps)
        rows[c + 1 :] -= shares[:, c, c + 1 :].T[:, :, None] * off
    return torch.empty_like(found.permute(1, 2, 0)).scatter_(2, place, found.permute(1, 2, 0)), scale, zero


def _steps(x: torch.Tensor, zero: torch.Tensor, scale: torch.Tensor, most: int) -> torch.Tensor:
    return ((x - zero) / torch.where(scale > 0, scale, 1)).round().clamp(0, most)


def rounded(
    numbers: torch.Tensor, bits: int, group: int, carry: tuple[torch.Tensor, torch.Tensor] | None = None
) -> torch.Tensor:
    """Numbers as they come back from so many bits each."""
    if bits >= 16:
        return numbers.bfloat16().float() if bits == 16 else numbers
    code, scale, zero = codes(numbers, bits, group, carry)
    s, z = (x.float().repeat_interleave(group, 1)[:, : numbers.shape[1]] for x in (scale, zero))
    return z + s * code
