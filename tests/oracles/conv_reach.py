"""Which inputs each output of a convolution along one dimension touches, one product at a time."""

from __future__ import annotations


def touched(length: int, kernel: int, stride: int, padding: int, dilation: int) -> list[set[int]]:
    """For each output, the inputs under its kernel."""
    outputs = max(0, (length + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1)
    found = []
    for j in range(outputs):
        places = {j * stride - padding + dilation * tap for tap in range(kernel)}
        found.append({i for i in places if 0 <= i < length})
    return found


def touched_transposed(
    length: int, kernel: int, stride: int, padding: int, dilation: int, extra: int
) -> list[set[int]]:
    """For each output of the transposed convolution, the inputs that reach into it."""
    outputs = (length - 1) * stride - 2 * padding + dilation * (kernel - 1) + extra + 1
    found: list[set[int]] = [set() for _ in range(max(0, outputs))]
    for i in range(length):
        for tap in range(kernel):
            j = i * stride - padding + dilation * tap
            if 0 <= j < outputs:
                found[j].add(i)
    return found
