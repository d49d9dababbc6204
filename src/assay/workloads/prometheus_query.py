"""Answers of Prometheus's HTTP interface (`query_range`, `query`) as series.

A folder of them holds the history of a cluster, so this is read fast: the outer layers once, with each series' values
left as bytes, then the values of one series at a time. An answer that breaks off keeps what came before, and says so.

>>> series = Labelled()
>>> add(series, b'{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"__name__":"up",'
...     b'"instance":"n1"},"values":[[1700000000,"1"],[1700000030.5,"NaN"]]}]}}', "up.json")
>>> frame = series.frame("up.json")
>>> frame.samples.select("t", "metric", "value").rows(), dict(frame.repairs)
([(1700000000000000000, 'up', 1.0)], {'samples without a number left out': 1})
"""

from __future__ import annotations

import re
from itertools import chain
from typing import TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from assay.record.errors import BadInput
from assay.workloads.labelled_series import Labelled, nanoseconds

T = TypeVar("T")
_RIGHT = "an answer of Prometheus's query_range or query would be right"
_WORDS = re.compile(rb'"([+-]?)inf(?:inity)?"', re.IGNORECASE)


class _Series(msgspec.Struct):
    metric: dict[str, str] | None = None
    value: msgspec.Raw = msgspec.Raw()
    values: msgspec.Raw = msgspec.Raw()
    histogram: msgspec.Raw = msgspec.Raw()
    histograms: msgspec.Raw = msgspec.Raw()


class _Data(msgspec.Struct):
    result_type: str = msgspec.field(default="", name="resultType")
    result: msgspec.Raw = msgspec.Raw(b"[]")


class _Answer(msgspec.Struct):
    status: str = ""
    error: str = ""
    data: _Data | None = None


class _Histogram(msgspec.Struct):
    count: float
    sum: float


_answer = msgspec.json.Decoder(_Answer)
_result = msgspec.json.Decoder(list[_Series])
_pairs = msgspec.json.Decoder(list[tuple[float, float]], strict=False)
_pair = msgspec.json.Decoder(tuple[float, float], strict=False)
_histograms = msgspec.json.Decoder(list[tuple[float, _Histogram]], strict=False)
_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def add(series: Labelled, content: bytes, source: str) -> None:
    """Put the samples of one answer with the others."""
    try:
        answer = _answer.decode(content)
        found = _listed(answer.data, source) if answer.data is not None else []
    except _ERRORS as error:
        answer, found = _salvaged(series, content, source, error)
    if answer.status == "error" or answer.error:
        raise BadInput(f"{source}: the server answered with an error: {answer.error[:200]!r}; {_RIGHT}")
    if answer.data is None:
        raise BadInput(f"{source}: no 'data' in it; {_RIGHT}")
    for place, one in enumerate(found):
        _take(series, one, f"{source}: result {place}", source)


def _listed(data: _Data, source: str) -> list[_Series]:
    if data.result_type in ("matrix", "vector"):
        return _result.decode(data.result)
    if data.result_type == "scalar":
        return [_Series({"__name__": "scalar"}, value=data.result)]
    raise BadInput(f"{source}: a result of the type '{data.result_type[:40]}' has no series; matrix or vector has")


def _take(series: Labelled, one: _Series, where: str, source: str) -> None:
    labels = dict(one.metric or {})
    name = labels.pop("__name__", "") or source.replace("\\", "/").rpartition("/")[2].split(".")[0]
    number = series.series(name, labels)
    times, values = _samples(one, where)
    series.extend(number, times, values)
    native = bytes(one.histograms) or (b"[" + bytes(one.histogram) + b"]" if bytes(one.histogram) else b"")
    if native:
        rows = _decoded(_histograms, native, where)
        at = nanoseconds(np.array([t for t, _ in rows]), where)
        for suffix in ("count", "sum"):
            taken = np.array([getattr(histogram, suffix) for _, histogram in rows])
            series.extend(series.series(f"{name}_{suffix}", labels), at, taken)
        series.count("native histograms kept as their count and sum", len(rows))


def _samples(one: _Series, where: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    flat: NDArray[np.float64]
    if bytes(one.value):
        flat = np.array(_decoded(_pair, bytes(one.value), where))
    else:
        pairs = _decoded(_pairs, bytes(one.values) or b"[]", where)
        flat = np.fromiter(chain.from_iterable(pairs), float, 2 * len(pairs))
    return nanoseconds(flat[::2], where), flat[1::2].copy()


def _decoded(decoder: msgspec.json.Decoder[T], content: bytes, where: str) -> T:
    if b"nf" in content or b"NF" in content:
        content = _WORDS.sub(lambda m: b'"-Infinity"' if m[1] == b"-" else b'"Infinity"', content)
    try:
        return decoder.decode(content)
    except _ERRORS as error:
        raise BadInput(f'{where}: {error}; [seconds, "value"] would be right') from None


def _salvaged(series: Labelled, content: bytes, source: str, error: Exception) -> tuple[_Answer, list[_Series]]:
    """What stands before the place where the answer breaks off: whole samples, and only of series with a name."""
    if "truncated" not in str(error):
        raise BadInput(f"{source}: {error}; {_RIGHT}") from None
    pair, whole = content.rfind(b'"]'), max(content.rfind(b"]}"), content.rfind(b"}}"))
    for kept, ending in ((content[: pair + 2], b"]}]}}"), (content[: whole + 2], b"]}}")):
        try:
            answer = _answer.decode(kept + ending)
            found = _listed(answer.data, source) if answer.data is not None else []
        except (*_ERRORS, BadInput):
            continue
        if found and found[-1].metric is not None:
            series.count("answers cut off: what came before is kept")
            return answer, found
    raise BadInput(f"{source}: breaks off at byte {len(content)}, before the first sample; {_RIGHT}") from None
