"""Looking after a store without any key: random chunks against the manifests that name them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256

from assay.data.engine.version_log import Damaged
from assay.data.interface import NotFound, Store
from assay.data.safecloud.vault import read_manifest
from assay.sim.streams import stream


@dataclass
class StoreAudit:
    """What was looked at, and what was wrong."""

    chunks: int = 0
    looked: int = 0
    wrong: list[tuple[str, str]] = field(default_factory=list)

    @property
    def sure(self) -> str:
        """What the sample shows, with 95 % certainty.

        >>> StoreAudit(chunks=10_000, looked=300).sure
        'with 95 % certainty at most 0.99% of the chunks are damaged or lost'
        """
        if self.wrong:
            return "what is wrong cannot be read any more, restore it from a copy"
        if self.looked >= self.chunks:
            return "every chunk is there and whole"
        most = 1 - 0.05 ** (1 / max(1, self.looked))
        return f"with 95 % certainty at most {most:.2%} of the chunks are damaged or lost"


async def audit_store(
    store: Store, samples: int, seed: int = 0, progress: Callable[[int, int], None] = lambda done, total: None
) -> StoreAudit:
    """Read some chunks and hash them; every manifest is checked against its own root."""
    found = StoreAudit()
    places: dict[str, bytes] = {}
    async for meta in store.list("manifests/"):
        try:
            manifest = await read_manifest(store, meta.key.rpartition("/")[2])
        except Damaged:
            found.wrong.append((meta.key, "the manifest is damaged"))
            continue
        for track in manifest.tracks.values():
            places.update((track.place(chunk), track.digest(chunk)) for chunk in range(track.chunks))
    names = sorted(places)
    found.chunks, found.looked = len(names), min(samples, len(names))
    chosen = stream(seed, "audit").permutation(len(names))[: found.looked]
    for done, at in enumerate(chosen):
        name = names[at]
        try:
            if sha256(await store.get(name)).digest() != places[name]:
                found.wrong.append((name, "its bytes have changed"))
        except NotFound:
            found.wrong.append((name, "it is gone"))
        progress(done + 1, found.looked)
    return found
