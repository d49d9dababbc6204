"""Checkpoints of whole trees, for components of other papers: found by key, as the kind `checkpoints`."""

from __future__ import annotations

from typing import Any

from assay.data.orbax.checkpointer import _made
from assay.data.orbax.checkpoints import Checkpoints
from assay.data.orbax.tree import flatten, unflatten


class Trees(Checkpoints):
    """Saves and restores a tree in one call, on any store and any clock.

    >>> import asyncio
    >>> from assay.data.store.memory import MemStore
    >>> async def main():
    ...     trees = Trees()
    ...     await trees.open(MemStore())
    ...     await trees.save_tree(3, {"epoch": 3})
    ...     return await trees.steps(), await trees.restore_tree()
    >>> asyncio.run(main())
    ([3], {'epoch': 3})
    """

    async def save_tree(self, step: int, tree: Any) -> None:
        """Save; durable when it returns."""
        await self.save(step, *flatten(tree))

    async def restore_tree(self, step: int | None = None) -> Any:
        """A saved tree; the newest where no step is named."""
        table = await self.table(step)
        skeleton, found, _ = await self.read(table, lambda path: True, lambda array: None)
        return unflatten(skeleton, {path: _made(targets[0]) for path, targets in found.items()})
