"""`assay data vault`: encrypted files in any store; share a range of one, check what a store holds without a key."""

from __future__ import annotations

import asyncio
import mmap
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import click

from assay.data.interface import NotFound, Span
from assay.data.safecloud.audit import audit_store
from assay.data.safecloud.grants import FOREVER, from_text
from assay.data.safecloud.vault import MODES, Vault, read_granted
from assay.data.store.address import open_store
from assay.record.errors import BadInput
from assay.record.store import write_whole

store_option = click.option("--store", "url", required=True, help="file:///folder, s3://bucket/folder, …")
key_option = click.option(
    "--key", "key_file", required=True, type=click.Path(path_type=Path), help="The file with the master secret."
)


@click.group(epilog="Example:  assay data vault key --out my.key")
def command() -> None:
    """Encrypt files into a store that is not trusted, and share ranges of them."""


@command.command("key", epilog="Example:  assay data vault key --out my.key")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="Where to write it; never overwritten.")
def key(out: Path) -> dict[str, Any]:
    """Make a master secret. Whoever has it has everything; without it nothing can be opened."""
    try:
        handle = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise BadInput(f"{out} is there already; a secret is never overwritten, choose another name") from None
    with os.fdopen(handle, "wb") as file:
        file.write(os.urandom(32))
    return {"key": {"written": str(out)}, "why": "Keep a copy of it elsewhere: it opens everything put with it."}


@command.command("put", epilog="Example:  assay data vault put examples/chats.jsonl --store mem:// --key my.key")
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@store_option
@key_option
@click.option(
    "--mode", type=click.Choice(MODES), default=MODES[0], show_default=True,
    help="content: equal chunks of your files are stored once.",
)  # fmt: skip
def put(files: tuple[Path, ...], url: str, key_file: Path, mode: str) -> dict[str, Any]:
    """Encrypt FILES (or folders) into the store; what is there under the same path is replaced."""
    progress = click.get_current_context().obj
    found = [one for path in files for one in (sorted(path.rglob("*")) if path.is_dir() else [path]) if one.is_file()]
    if not found:
        raise BadInput(f"no files in {', '.join(map(str, files))}")

    async def work(vault: Vault) -> int:
        total = 0
        for done, path in enumerate(found):
            with path.open("rb") as file, mapped(file) as content:
                entry = await vault.put(path.as_posix(), content)
            total += entry.size
            progress(done + 1, len(found))
        return total

    began = time.perf_counter()
    total = _with_vault(url, key_file, work, mode=mode)
    took = time.perf_counter() - began
    return {"vault": {"files": len(found), "bytes": total, "MB_per_s": round(total / 1e6 / took, 1)}}


@command.command("get", epilog="Example:  assay data vault get notes.txt --out notes.txt --store mem:// --key my.key")
@click.argument("path")
@store_option
@key_option
@click.option("--out", required=True, type=click.Path(path_type=Path))
@click.option("--span", help="Only START:END, in bytes.")
def get(path: str, url: str, key_file: Path, out: Path, span: str | None) -> dict[str, Any]:
    """Decrypt PATH from the store into a file."""
    content = _with_vault(url, key_file, lambda vault: vault.get(path, _span(span)))
    _write(out, content)
    return {"vault": {"bytes": len(content), "written": str(out)}}


@command.command("ls", epilog="Example:  assay data vault ls --store mem:// --key my.key")
@store_option
@key_option
def ls(url: str, key_file: Path) -> dict[str, Any]:
    """The files."""

    async def work(vault: Vault) -> list[dict[str, Any]]:
        return [{"path": path, "bytes": vault.state.files[path].size} for path in vault.paths()]

    rows = _with_vault(url, key_file, work)
    return {"vault": {"files": len(rows)}, "table": rows}


@command.command("rm", epilog="Example:  assay data vault rm notes.txt --store mem:// --key my.key")
@click.argument("path")
@store_option
@key_option
def rm(path: str, url: str, key_file: Path) -> dict[str, Any]:
    """Forget PATH, and delete what no file needs any more."""

    async def work(vault: Vault) -> int:
        await vault.forget(path)
        return await vault.collect()

    return {"vault": {"forgotten": path, "objects_deleted": _with_vault(url, key_file, work)}}


@command.command("grant", epilog="Example:  assay data vault grant film.mp4 --span 0:1000 --store mem:// --key my.key")
@click.argument("path")
@store_option
@key_option
@click.option("--span", help="Only START:END, in bytes.")
@click.option("--hours", type=click.FloatRange(0.0, min_open=True), help="Routers refuse it after so long.")
@click.option("--out", type=click.Path(path_type=Path), help="Write it to a file instead of printing it.")
def grant(
    path: str, url: str, key_file: Path, span: str | None, hours: float | None, out: Path | None
) -> dict[str, Any]:
    """What opens PATH, or a span of it, for somebody who has the store but not your key."""
    expires = FOREVER if hours is None else time.time() + 3600 * hours
    capability = _with_vault(url, key_file, lambda vault: vault.grant(path, _span(span), expires=expires))
    text = capability.as_text()
    facts = {"nodes": len(capability.grants), "bytes": len(text), "written": out and str(out)}
    if out is None:
        return {"grant": facts, "why": text}
    _write(out, f"{text}\n".encode())
    return {"grant": facts, "why": "Whoever has this file reads that span: send it as you would send a password."}


@command.command("open", epilog="Example:  assay data vault open grant.json --store mem:// --out part.bin")
@click.argument("capability", type=click.Path(exists=True, path_type=Path))
@store_option
@click.option("--out", required=True, type=click.Path(path_type=Path))
def opened(capability: Path, url: str, out: Path) -> dict[str, Any]:
    """Read what CAPABILITY opens; no key needed."""
    content = asyncio.run(read_granted(open_store(url), from_text(capability.read_bytes())))
    _write(out, content)
    return {"grant": {"bytes": len(content), "written": str(out)}}


@command.command("audit", epilog="Example:  assay data vault audit --store mem:// --samples 100")
@store_option
@click.option("--samples", type=click.IntRange(1), default=100, show_default=True, help="Chunks to look at.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
def audit(url: str, samples: int, seed: int) -> dict[str, Any]:
    """Check random chunks against the public manifests, without any key."""
    progress = click.get_current_context().obj
    found = asyncio.run(audit_store(open_store(url), samples, seed, progress))
    if not found.chunks:
        raise BadInput(f"{url} holds no vault: no manifest in it")
    bad = [{"chunk": name, "what": what} for name, what in found.wrong]
    why = f"{found.looked:,} of {found.chunks:,} chunks looked at, {len(bad)} wrong; {found.sure}."
    return {"audit": {"chunks": found.chunks, "looked_at": found.looked, "wrong": len(bad)}, "why": why,
            "fails": bool(bad)} | ({"table": bad} if bad else {})  # fmt: skip


def _with_vault(url: str, key_file: Path, work: Callable[[Vault], Awaitable[Any]], mode: str = MODES[0]) -> Any:
    try:
        secret = key_file.read_bytes()
    except FileNotFoundError:
        raise BadInput(f"no key at {key_file}; make one with: assay data vault key --out {key_file}") from None

    async def main() -> Any:
        vault = Vault(secret, mode=mode)
        await vault.open(open_store(url))
        return await work(vault)

    try:
        return asyncio.run(main())
    except NotFound as error:
        raise BadInput(str(error)) from None


@contextmanager
def mapped(file: BinaryIO) -> Iterator[memoryview]:
    """A file's bytes without reading them all into memory."""
    if not os.fstat(file.fileno()).st_size:
        yield memoryview(b"")
        return
    content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    try:
        yield memoryview(content)
    finally:
        with suppress(BufferError):  # where something went wrong, its trace still holds parts, and lets them go later
            content.close()


def _write(out: Path, content: bytes) -> None:
    """Whole or not at all; what is no file, a terminal or a pipe, is written to as it is."""
    if out.exists() and not out.is_file():
        out.write_bytes(content)
    else:
        write_whole(out, content)


def _span(text: str | None) -> Span | None:
    if text is None:
        return None
    start, colon, end = text.partition(":")
    if not colon or not start.isdecimal() or not end.isdecimal() or int(end) < int(start):
        raise BadInput(f"--span '{text}': write START:END in bytes, for example 0:1000")
    return int(start), int(end) - int(start)
