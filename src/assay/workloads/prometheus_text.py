r"""What Prometheus sees: scraped text (its own format and OpenMetrics) and answers of `query` and `query_range`.

:func:`read` takes a file or a folder of them and gives a :class:`~assay.sim.telemetry.Frame`. Each sample of a
histogram or a summary is a series of its own (`x_bucket{le="0.5"}`, `x_sum`, `x{quantile="0.9"}`); an exemplar is an
event that holds its trace's id. Values that are no numbers, stale markers among them, are left out, never zero.

Scraped text rarely has times. Such samples get the time in the file's name (`node7-1700000000.prom`) or, failing that,
the file's own, and the frame says so. Nor does it say whom it was scraped from: that is the file's name.

>>> text = '''# TYPE queue_seconds gauge
... queue_seconds{rank="3",note="a \\"b\\""} 1.5 1700000000000
... queue_seconds{rank="4"} NaN 1700000000000
... '''
>>> frame = parse(text, "n1")
>>> frame.entities["name"].to_list(), frame.samples["value"].to_list(), dict(frame.repairs)
(['n1', 'n1/rank 3', 'n1/rank 4'], [1.5], {'samples without a number left out': 1})
>>> frame.samples["metric"][0], frame.units["queue_seconds"]
('queue_seconds{note="a \\"b\\""}', 'seconds')
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from itertools import chain
from pathlib import Path

from assay.record.errors import BadInput, unreadable
from assay.sim.telemetry import Frame
from assay.workloads import prometheus_query
from assay.workloads.labelled_series import LATEST, Labelled

_TEXT = r'"(?:[^"\\]++|\\.)*+"'
_LINE = re.compile(
    rf"([a-zA-Z_:][a-zA-Z0-9_:]*+)?[ \t]*+(\{{(?:[^\"}}]++|{_TEXT})*+\}})?[ \t]*+([^ \t#]++)"
    r"(?:[ \t]++([^ \t#]++))?[ \t]*+(?:#[ \t]*+(.*+))?"
)
_LABEL = re.compile(rf"[ \t]*+(?:([a-zA-Z_][a-zA-Z0-9_]*+)|({_TEXT}))[ \t]*+(?:=[ \t]*+({_TEXT}))?[ \t]*+(,|$)")
_SIMPLE = re.compile(r'(?:(?<=\{)|(?<=,))([a-zA-Z_][a-zA-Z0-9_]*+)="([^"\\]*+)"')
_META = re.compile(r"#[ \t]*+(TYPE|UNIT|EOF)\b[ \t]*+(\S*+)[ \t]*+(\S*+)")
_ESCAPE = re.compile(r"\\(.)")
_STAMP = re.compile(r"^(.*?)[-_.@]?(\d+)$")
_LARGEST = 2 << 30  # bytes that a packed file may unpack to
SUFFIXES = (".prom", ".txt", ".text", ".metrics", ".om", ".openmetrics", ".json", "")


def read(paths: Path | str | Sequence[Path | str]) -> Frame:
    """A file, a folder (with all below it) or several of either, of scraped text and query answers."""
    given = [Path(paths)] if isinstance(paths, str | Path) else [Path(path) for path in paths]
    series = Labelled()
    files = [file for path in given for file in _below(path)]
    if not files:
        raise BadInput(f"{', '.join(map(str, given))}: no file in it; scraped text or query_range JSON would be right")
    for file in files:
        content = unpacked(file)
        if content.lstrip()[:1] == b"{" and not re.match(rb'\s*\{\s*"[^"]*"\s*[,}]', content[:4096]):
            prometheus_query.add(series, content, str(file))
        else:
            target, at = _of_name(file)
            if at is None and content:
                at = file.stat().st_mtime_ns
            _add(series, _text(content, str(file)), target, at, str(file))
    source = ", ".join(str(path) for path in given)
    frame = series.frame(source)
    if frame.samples.is_empty():
        raise BadInput(f"{source}: no sample with a number in it; scraped text or query_range JSON would be right")
    return frame


def parse(text: str, target: str, at: int | None = None) -> Frame:
    """Scraped text of one target; `at` is when (ns), for samples that do not say."""
    series = Labelled()
    _add(series, text, target, at, target)
    return series.frame(target)


def looks_like(head: bytes) -> bool:
    """Whether a file that begins so is scraped text: its first line that is no remark has a name and a number.

    >>> looks_like(b"# a remark\\nup 1\\n"), looks_like(b"time,value\\n1,2\\n")
    (True, False)
    """
    text = head.decode("utf-8", "replace")
    for line in text.split("\n"):
        if re.match(r"# (HELP|TYPE|UNIT|EOF)\b", line):
            return True
        if line.startswith("#") or not line.strip():
            continue
        found = _LINE.fullmatch(line.strip())
        try:
            return found is not None and (found[1] or found[2]) is not None and _value(found[3]) is not None
        except _LineError:
            return False
    return False


def unpacked(file: Path) -> bytes:
    """The bytes of a file, unpacked if it is gzipped."""
    try:
        with file.open("rb") as raw:
            if raw.read(2) != b"\x1f\x8b":
                raw.seek(0)
                return raw.read()
            raw.seek(0)
            with gzip.GzipFile(fileobj=raw) as packed:
                content = packed.read(_LARGEST + 1)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise BadInput(f"{file}: damaged gzip data: {error}") from None
    except OSError as error:
        raise unreadable(file, error, "scraped text or query_range JSON would be right") from None
    if len(content) > _LARGEST:
        raise BadInput(f"{file}: unpacks to more than {_LARGEST >> 30} GiB; split it")
    return content


def _below(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.rglob("*") if file.is_file() and not file.name.startswith("."))


def _of_name(file: Path) -> tuple[str, int | None]:
    """Whom a file was scraped from and when, by its name: `n7-1700000000.prom` is n7 at that second.

    A shorter number is a machine's, or counts the scrapes of one.

    >>> _of_name(Path("n7-1700000000.prom")), _of_name(Path("node12.prom"))
    (('n7', 1700000000000000000), ('node12', None))
    """
    stem = file.name.removesuffix(".gz")
    stem = stem.rsplit(".", 1)[0] if stem.rpartition(".")[2].lower() in {s[1:] for s in SUFFIXES} else stem
    found = _STAMP.match(stem)
    if found and (power := {10: 9, 13: 6, 16: 3, 19: 0}.get(len(found[2]))) is not None:
        at = int(found[2]) * 10**power
        return found[1] or file.parent.name or "unnamed", at if at <= LATEST else None
    return stem, None


def _text(content: bytes, source: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise BadInput(
            f"{source}:{line}: byte {error.start} is not UTF-8; scraped text or query_range JSON would be right"
        ) from None


class _LineError(ValueError):
    """What is wrong with a line, without its place."""


def _add(series: Labelled, text: str, target: str, at: int | None, source: str) -> None:
    lines = text.split("\n")
    if lines.pop().strip() not in ("", "# EOF"):
        series.count("last lines without a line end left out (the file was cut)")
    place = 0
    try:
        types, in_seconds = _declared(series, lines)
        known: dict[str, int] = {}
        numbers: list[int] = []
        times: list[int] = []
        values: list[float] = []
        untimed = 0
        for place, line in enumerate(lines, 1):  # noqa: B007 - the place of an error
            if line.startswith("#") or not line or line.isspace():
                continue
            found = _LINE.fullmatch(line.strip())
            if found is None:
                raise _LineError(f'no sample: {_short(line)}; `name{{label="x"}} 1.5` would be right')
            name, labels, value, stamp, exemplar = found.groups()
            key = f"{name}{labels}"
            number = known.get(key)
            if number is None:
                number = known[key] = _series(series, name, labels, types, target)
            t = at if stamp is None else _time(stamp, in_seconds)
            if t is None:
                raise _LineError("a sample without a time; say when it was scraped")
            untimed += stamp is None
            numbers.append(number)
            times.append(t)
            values.append(_value(value))
            if exemplar is not None:
                _exemplar(series, number, exemplar, t)
    except _LineError as error:
        raise BadInput(f"{source}:{place}: {error}") from None
    series.scatter(numbers, times, values)
    series.count("samples without a time given that of their file", untimed)


def _declared(series: Labelled, lines: list[str]) -> tuple[dict[str, str], bool]:
    """The types of metrics, and whether times are seconds (OpenMetrics) or milliseconds (Prometheus's own format)."""
    types: dict[str, str] = {}
    ended = units = False
    for line in lines:
        if not line.startswith("#") or (found := _META.match(line)) is None:
            continue
        word, name, what = found.groups()
        if word == "TYPE":
            types[name.strip('"')] = what
        elif word == "UNIT":
            units = True
            for suffix in ("", "_total", "_sum", "_bucket"):
                series.units[name.strip('"') + suffix] = what
        else:
            ended = True
    if units and not ended:
        series.count("OpenMetrics without its # EOF (the file was cut)")
    return types, ended or units


def _series(series: Labelled, name: str | None, text: str | None, types: dict[str, str], target: str) -> int:
    labels: dict[str, str] = {}
    if text is not None:
        simple = _SIMPLE.findall(text)
        labels = dict(simple)
        if len(labels) != len(simple) or len("".join(chain.from_iterable(simple))) + 4 * len(simple) + 1 != len(text):
            name, labels = _labels(name, text)
    if not name:
        raise _LineError('a sample without a name; `name{label="x"} 1.5` would be right')
    return series.series(name, labels, target, counter=_rises(name, types))


def _labels(name: str | None, text: str) -> tuple[str | None, dict[str, str]]:
    """Labels with escapes, spaces or quoted names, one by one."""
    labels: dict[str, str] = {}
    position, end = 1, len(text) - 1
    while position < end:
        found = _LABEL.match(text, position, end)
        if found is None or (found[3] is None and (found[2] is None or name is not None)):
            if not text[position:end].strip():
                break
            raise _LineError(f'labels that cannot be read: {_short(text)}; {{label="x",other="y"}} would be right')
        if found[3] is None:
            name = _plain(found[2])  # a quoted name, which may hold any letters
        elif (key := found[1] or _plain(found[2])) in labels:
            raise _LineError(f"the label {_short(key)} is given twice")
        else:
            labels[key] = _plain(found[3])
        position = found.end()
    return name, labels


def _rises(name: str, types: dict[str, str]) -> bool | None:
    """Whether a metric only goes up, by its declared type; None where it has none."""
    base = re.sub(r"_(total|count|sum|bucket|created)$", "", name) if types and name not in types else name
    declared = types.get(base)
    return None if declared is None else declared == "counter" or (declared == "histogram" and name != base)


def _plain(quoted: str) -> str:
    inner = quoted[1:-1]
    if "\\" not in inner:
        return inner
    return _ESCAPE.sub(lambda m: {"n": "\n", '"': '"', "\\": "\\"}.get(m[1], m[0]), inner)


def _value(text: str) -> float:
    try:
        if "_" not in text:
            return float(text)
    except ValueError:
        pass
    raise _LineError(f"the value {_short(text)} is no number")


def _time(text: str, in_seconds: bool) -> int:
    """Nanoseconds, without passing through a float. A fraction means seconds: Prometheus's own format has none."""
    try:
        if not in_seconds and text.isascii() and text.removeprefix("-").isdigit():
            t = int(text[:25]) * 1_000_000
        else:
            exact = Decimal(text)
            t = round(exact.scaleb(9)) if exact.is_finite() and exact.adjusted() < 12 else LATEST + 1
    except InvalidOperation:
        raise _LineError(f"the time {_short(text)} is no number") from None
    if abs(t) > LATEST:
        raise _LineError(f"the time {_short(text)} is none; one before the year 2262 would be right")
    return t


def _exemplar(series: Labelled, number: int, text: str, t: int) -> None:
    found = _LINE.fullmatch(text.strip())
    if found is None or found[1] or not found[2]:
        raise _LineError(f'an exemplar that cannot be read: {_short(text)}; `# {{trace_id="x"}} 0.5` would be right')
    when = t if found[4] is None else _time(found[4], True)
    series.event(when, number, "exemplar", f"{found[2]} {_value(found[3]):g}")


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "…")
