"""Every interleaving of a card that fills slots and a reader that empties them: can the reader see a wrong chunk?"""

from __future__ import annotations


def races(chunks: int, depth: int, scope: str) -> bool:
    """Whether some order of deliveries and reads that the waits allow reads something else than its chunk."""
    seen: set[tuple[int, int]] = set()
    todo = [(0, 0)]  # chunks delivered, chunks read
    while todo:
        delivered, read = state = todo.pop()
        if state in seen:
            continue
        seen.add(state)
        if delivered < chunks and (scope in ("arrival", "none") or delivered - read < depth):
            todo.append((delivered + 1, read))
        if read < chunks and (scope == "none" or delivered > read):
            held = max((k for k in range(delivered) if k % depth == read % depth), default=None)
            if held != read:
                return True
            todo.append((delivered, read + 1))
    return False
