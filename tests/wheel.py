"""assay as who installs it has it: `python -m tests.wheel [--all]`.

A wheel and an sdist are built from a clean clone: their files are those that git knows, byte by byte, and the sdist
builds the same wheel. The wheel is installed into a new environment, and the commands that people try first run there,
in an empty folder with a new home, outside of any checkout. With `--all` this is done for every Python from 3.11 on
that is at hand; for others, `assay doctor` says which extras have no wheels.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHONS = ("3.11", "3.12", "3.13")

# What is typed first, and a word that it prints.
COMMANDS = (
    ("assay list", "134 papers"),
    ("assay show lmetric", "LMetric"),
    ("assay doctor", "extra torch"),
    ("assay examples examples", "README.md says what they are"),
    ("assay feed examples/listing.bib", "2 in the record"),
    ("assay compare serving --trace examples/chats.jsonl --fleet 4xh200:qwen3-8b", "lmetric"),
    ("assay run div", "claim"),
    ("assay demo --html report", "report/index.html"),
)


def main(arguments: Sequence[str]) -> int:
    """Build, compare, install, try; 0 if all is well."""
    with tempfile.TemporaryDirectory(
        prefix="assay-wheel-", dir="/tmp"
    ) as place:  # outside the checkout, which TMPDIR is not
        folder = Path(place)
        wheel = built(folder)
        pythons = at_hand() if "--all" in arguments else {running(): Path(sys.executable)}
        for version, python in pythons.items():
            began = time.monotonic()
            tried(wheel, python, folder / version)
            print(f"== Python {version}: {len(COMMANDS) + 3} commands, {time.monotonic() - began:.0f} s", flush=True)
    print(f"{len(pythons)} passed, 0 failed")
    return 0


def built(folder: Path) -> Path:
    """The wheel of a clean clone, which has the files that git knows; that of the sdist has the same."""
    clone = folder / "clone"
    run(["git", "clone", "--quiet", str(ROOT), str(clone)])
    builder = environment(Path(sys.executable), folder / "builder", "hatchling>=1.27")
    run([str(builder), "-m", "hatchling", "build", "-d", str(folder / "dist")], at=clone)
    [wheel], [sdist] = (folder / "dist").glob("*.whl"), (folder / "dist").glob("*.tar.gz")
    listed = run(["git", "ls-files", "-z", "src"], at=clone).split("\0")
    same("the wheel", contents(wheel), {path[4:]: digest((clone / path).read_bytes()) for path in listed if path})
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    [unpacked] = (folder / "unpacked").iterdir()
    run([str(builder), "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder / "again")], at=unpacked)
    [again] = (folder / "again").glob("*.whl")
    same("the sdist's wheel", contents(again), contents(wheel))
    for path in ("Makefile", "constraints.txt", "examples/chats.jsonl", "tests/suite.py", "docs/build.py"):
        check((unpacked / path).is_file(), f"the sdist lacks {path}")
    print(f"== {wheel.name}: {len(contents(wheel))} files, as git lists them; {sdist.name} builds the same", flush=True)
    return wheel


def tried(wheel: Path, python: Path, folder: Path) -> None:
    """Install the wheel into a new environment and type what people type."""
    pin = ["--constraint", str(ROOT / "constraints.txt")]
    installed = environment(python, folder / "environment", f"{wheel}[web]", *pin)
    empty = folder / "anywhere"
    for path in (empty, folder / "home"):
        path.mkdir()
    own = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("ASSAY", "XDG", "PYTHON", "NUMBA", "VIRTUAL"))
    }
    own |= {"HOME": str(folder / "home"), "PATH": f"{installed.parent}:{os.environ['PATH']}", "TMPDIR": str(folder)}
    where = run([str(installed), "-c", "import assay; print(assay.__file__)"], at=empty, environment=own)
    check(str(folder) in where, f"another assay was imported: {where}")
    for command, word in COMMANDS:
        said = run(command.split(), at=empty, environment=own)
        check(word in said, f"{command} did not say {word!r}:\n{said}")
    cures = [finding["cure"] for finding in json.loads(run(["assay", "doctor", "--json"], at=empty, environment=own))]
    extras = [cure for cure in cures if "assay[" in cure]
    check(extras != [], "the doctor names no extra")
    odd = [cure for cure in extras if not cure.startswith(f"{installed} -m pip install 'assay[")]
    check(odd == [], f"cures that somebody without a checkout cannot follow: {odd}")
    said = run([str(installed), "-m", "pip", "install", "--dry-run", "assay[mpi]"], at=empty, environment=own)
    check(
        "Would install" in said and " assay-" not in said.partition("Would install")[2],
        f"an extra beside the wheel:\n{said}",
    )
    with served(empty, own) as address:
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())  # the token moves into a cookie
        page = browser.open(address, timeout=60).read().decode()
        check("<title>" in page and "assay" in page, f"the workbench's front page:\n{page[:400]}")


@contextmanager
def served(folder: Path, environment: dict[str, str]) -> Iterator[str]:
    """The workbench, until it is interrupted; its address."""
    process = subprocess.Popen(
        ["assay", "web"], cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    try:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if "http://" in line:
                yield "http://" + line.partition("http://")[2].split()[0]
                break
        else:
            check(False, f"assay web ended:\n{''.join(lines)}")
        process.send_signal(2)
        check(process.wait(60) == 130, "assay web does not end as programs do that are interrupted")
    finally:
        process.kill()
        process.wait()


def environment(python: Path, folder: Path, *requirements: str) -> Path:
    """A new environment with these installed; its Python."""
    run([str(python), "-m", "venv", str(folder)])
    run([str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *requirements])
    return folder / "bin" / "python"


def at_hand() -> dict[str, Path]:
    """The Pythons of this machine by version: on the path, or, where versions lie side by side, beside this one."""
    found = {running(): Path(sys.executable)}
    for version in PYTHONS:
        beside = sorted(Path(sys.base_prefix).parent.glob(f"{version}.*/bin/python3"))
        for candidate in [shutil.which(f"python{version}"), *beside]:
            # A name on the path may be a shim of a version that is not chosen.
            if candidate and subprocess.run([candidate, "-c", ""], capture_output=True, check=False).returncode == 0:
                found.setdefault(version, Path(candidate))
    return dict(sorted(found.items()))


def running() -> str:
    """The version of the Python that runs this."""
    return ".".join(map(str, sys.version_info[:2]))


def contents(wheel: Path) -> dict[str, str]:
    """A digest by name of what a wheel brings, its metadata left out."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if ".dist-info/" not in name]
        return {name: digest(archive.read(name)) for name in names}


def digest(data: bytes) -> str:
    """A digest of a file's bytes."""
    return hashlib.sha256(data).hexdigest()


def same(what: str, files: dict[str, str], wanted: dict[str, str]) -> None:
    """End the run where two sets of files differ."""
    odd = sorted(name for name in files.keys() | wanted if files.get(name) != wanted.get(name))
    check(not odd, f"{what} differs from the checkout in {len(odd)} files: {', '.join(odd[:8])}")


def check(holds: bool, message: str) -> None:
    """End the run with a message unless something holds."""
    if not holds:
        raise SystemExit(f"failed: {message}")


def run(command: Sequence[str], at: Path = ROOT, environment: dict[str, str] | None = None) -> str:
    """What a command prints; the end of the run if it fails."""
    path = (environment or os.environ)["PATH"]
    found = shutil.which(command[0], path=path) or command[0]
    done = subprocess.run([found, *command[1:]], cwd=at, env=environment, capture_output=True, text=True, check=False)
    check(done.returncode == 0, f"{' '.join(command)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    check("Traceback" not in done.stderr, f"{' '.join(command)}:\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
