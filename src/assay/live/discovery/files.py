"""A file of engines that somebody else writes: read again whenever it changed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from assay.live.discovery import Found
from assay.live.settings import DiscoverSettings, EngineSettings, read
from assay.record.errors import unreadable


async def watch(path: str, settings: DiscoverSettings) -> AsyncIterator[Found]:
    """Its `[[engine]]` tables, as in the settings; what they do not say is as the source says."""
    before: bytes | None = None
    while True:
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise unreadable(Path(path), error) from error
        if content != before:  # a ConfigMap's file is a link to another one: times and sizes may be the same
            before = content
            yield tuple(_with(engine, settings) for engine in read(content, path).engine)
        await asyncio.sleep(settings.every)


def _with(engine: EngineSettings, settings: DiscoverSettings) -> EngineSettings:
    told = {name: getattr(settings, name) for name in ("key", "tp", "layout", "limit", "role")}
    blank = {field.name: field.default for field in msgspec.structs.fields(EngineSettings)}
    changed = {name: value for name, value in told.items() if getattr(engine, name) == blank[name]}
    return msgspec.structs.replace(engine, **changed)
