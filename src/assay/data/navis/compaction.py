"""An index without its dead: the graph is built anew of the living, in pages of their own, and taken over at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from assay.data.navis import building, pages
from assay.data.navis.records import Kept

if TYPE_CHECKING:
    from assay.data.navis.index import Navis

DEAD = 0.3  # of the nodes: where more are, walks lose more on passing by them than building costs a deletion


async def compact(index: Navis, dead: float = DEAD) -> None:
    """Build the graph anew where many nodes are dead. Until its state is durable, the old one is the index."""
    while index.nodes is not None and index.nodes.lost > dead * index.nodes.count:
        live = np.flatnonzero(~index.nodes.dead[: index.nodes.count]).astype(np.int32)
        if len(live) < 2:
            return
        rows, ids, config = pages.vectors(index, live), index.nodes.ids[live].copy(), index.config
        names = list(index.nodes.tags)
        tags = [names[at] for at in index.nodes.tag[live].tolist()] if len(names) > 1 else []
        begun = building.base(rows, config.degree, config.breadth, config.alpha)
        if not await index._commit(Kept()):
            await index._reload()
            continue
        other = index._twin()
        other._lay(rows, ids, begun, tags)
        await other._write_first(rows, begun)
        index._adopt(other)
        await pages.collect(index)
