"""What turns of a session share, token by token: every prompt is written out, and prompts are laid side by side."""

from __future__ import annotations

from itertools import count, takewhile


def reused(prompts: list[int], outputs: list[int], before: list[int]) -> list[int]:
    """Of each prompt, the leading tokens that an earlier prompt with its answer holds, if turns carry their history.

    A prompt holds the one before it where it is longer, and its answer too where there is room for both.
    """
    fresh = count()
    written: list[list[int]] = []  # prompt, then answer
    found = []
    for r, (prompt, output) in enumerate(zip(prompts, outputs, strict=True)):
        text: list[int] = []
        b = before[r]
        if b >= 0 and prompt > prompts[b]:
            text = written[b] if prompt >= len(written[b]) else written[b][: prompts[b]]
        text = text + [next(fresh) for _ in range(prompt - len(text))]
        pairs = (zip(text, other, strict=False) for other in written)
        found.append(max((sum(1 for _ in takewhile(lambda p: p[0] == p[1], pair)) for pair in pairs), default=0))
        written.append(text + [next(fresh) for _ in range(output)])
    return found
