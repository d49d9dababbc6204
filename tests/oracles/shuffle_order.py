"""A shuffle as anybody would write it: every record at once into its partition's list."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable


def arrived(sent: Iterable[tuple[str, int, bytes]]) -> dict[tuple[str, int], list[bytes]]:
    """What each partition gets of each producer, in order."""
    found: dict[tuple[str, int], list[bytes]] = defaultdict(list)
    for producer, partition, record in sent:
        found[producer, partition].append(record)
    return dict(found)
