"""What the crash lab lets owners and nodes do, with a change of the store at every step."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

from assay.data.interface import Fenced
from assay.data.safecloud.drops import Drop
from assay.data.safecloud.vault import Vault


class Owner(Vault):
    """Somebody with two devices who puts, replaces and forgets files and collects what is left."""

    def __init__(self, mode: str = "content") -> None:
        super().__init__(bytes(32), mode=mode, chunk=24)

    roles: tuple[str, ...] = ("laptop", "phone")

    async def work(self, ops: int, promised: list[Any], role: str) -> None:
        """Put, replace, forget and collect, until about so many changes were made; goes on where it stopped."""
        done = [int(path.rpartition("/")[2]) for path in self.paths() if path.startswith(f"{role}/day/")]
        for day in range(max(done, default=-1) + 1, max(2, ops // 8)):
            for path in (f"{role}/latest", f"{role}/day/{day:04d}"):
                text = f"{path} {day // 3}".encode() * (3 + day % 5)  # every third day says something new
                tried = sha256(text).hexdigest()
                promised.append((path, tried, False))
                await self.put(path, text)
                promised.append((path, tried, True))
            old = f"{role}/day/{day - 2:04d}"
            if old in self.state.files:
                promised.append((old, None, False))
                await self.forget(old)
                promised.append((old, None, True))
            if day % 3 == 2:
                await self.collect(grace=0.0)


class Node(Drop):
    """A node that takes chunks and lets the older ones go."""

    def __init__(self) -> None:
        super().__init__(bytes(32))

    roles: tuple[str, ...] = ("node",)

    async def work(self, ops: int, promised: list[Any], role: str) -> None:
        """Hold chunks and let the older ones go, until so many changes were made; stop where another took over."""
        chunks = [sha256(f"chunk {n}".encode()).digest() * 3 for n in range(max(1, ops // 4))]
        seen = {digest for said in self.announced for digest in said.added}
        try:
            for n, stored in enumerate(chunks):
                digest = sha256(stored).digest()
                if digest not in seen:
                    await self.hold(stored)
                    promised.append(digest)
                older = chunks[max(0, n - 3)]
                if n >= 3 and sha256(older).digest() in self._places:
                    await self.evict(sha256(older).digest())
                    if n % 5 == 0:  # and take one back
                        await self.hold(older)
        except Fenced:
            return
