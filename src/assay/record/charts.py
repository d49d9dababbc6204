"""Charts in one quiet style: as SVG for pages, as PNG, PDF or HTML for files.

Text and axes take the page's own colour (`currentColor`), so one SVG reads well on light and dark pages alike. Its
letters are the reader's, which may be wider than those it was laid out with: it is laid out for larger ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from assay.record.errors import BadInput
from assay.record.store import write_whole

# Okabe and Ito's palette: told apart by people with any colour vision, on white and on near-black.
PALETTE = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6BB1", "#7F7F7F"]
INK, PAPER = "#222222", "white"
FORMATS = (".svg", ".png", ".pdf", ".html")
_FONT = "ui-sans-serif, system-ui, sans-serif"
_WITH_LEGEND = ("color", "fill", "stroke", "shape", "strokeDash")
_PAGE, _SYMBOL, _LETTER = 640.0, 28.0, 7.5  # pixels: of a page's width, of an entry without its name, of a letter
_ROOMY = 1.2  # DejaVu's and Verdana's letters are by a sixth wider than those of the layout


def _spec(chart: Any, ink: str, background: str, roomy: float = 1.0) -> dict[str, Any]:
    """The chart's Vega-Lite specification in assay's style, laid out for letters so many times as large."""
    sizes = {"labelFontSize": 11 * roomy, "titleFontSize": 12 * roomy}
    quiet = {"labelColor": ink, "titleColor": ink, "labelFont": _FONT, "titleFont": _FONT, "titleFontWeight": 500}
    quiet |= sizes
    grid = {"gridColor": ink, "gridOpacity": 0.12, "tickColor": ink, "tickOpacity": 0.4}
    title = {"color": ink, "font": _FONT, "fontWeight": 600, "anchor": "start", "offset": 12, "frame": "group"}
    spec: dict[str, Any] = chart.to_dict()
    columns = _columns(spec)
    spec["config"] = {
        "background": background,
        "view": {"stroke": None},
        "axis": {"domain": False, **quiet, **grid},
        "axisQuantitative": {"tickCount": 5},
        "legend": {
            "orient": "top",
            "title": None,
            "symbolStrokeWidth": 2,
            "labelLimit": 320,
            "columns": columns,
            "layout": {"top": {"direction": "vertical", "anchor": "start"}},
            **quiet,
        },
        "header": quiet,
        "title": title
        | {
            "fontSize": 13 * roomy,
            "subtitleFontSize": 11 * roomy,
            "subtitleColor": ink,
            "subtitleFont": _FONT,
            "subtitlePadding": 6,
        },
        "text": {"color": ink, "font": _FONT, "fontSize": 11 * roomy},
        "range": {"category": PALETTE},
    }
    return spec


def _columns(spec: dict[str, Any]) -> int:
    """Entries of a legend side by side: as many as fit above a chart that fits a page."""
    longest = max((len(name) for name in _named(spec, spec.get("datasets", {}))), default=0)
    return max(1, int(_PAGE // (_SYMBOL + _LETTER * min(longest, 50))))


def _named(part: Any, data: dict[str, Any]) -> Iterator[str]:
    """What the legends of a specification say."""
    if isinstance(part, list):
        for one in part:
            yield from _named(one, data)
    elif isinstance(part, dict):
        for channel in _WITH_LEGEND:
            field = part.get("encoding", {}).get(channel, {}).get("field")
            if field is not None:
                yield from (str(row[field]) for rows in data.values() for row in rows if field in row)
        for name in ("layer", "hconcat", "vconcat", "concat", "spec"):
            yield from _named(part.get(name, []), data)


def svg(chart: Any) -> str:
    """The chart as SVG text for a page."""
    return _drawn(chart, "currentColor", "transparent")


def _drawn(chart: Any, ink: str, background: str) -> str:
    """SVG whose letters are smaller than the room that was left for them."""
    import vl_convert

    laid_out = str(vl_convert.vegalite_to_svg(_spec(chart, ink, background, _ROOMY)))
    return re.sub(r'font-size="([\d.]+)px"', lambda size: f'font-size="{float(size[1]) / _ROOMY:.4g}px"', laid_out)


def png(chart: Any) -> bytes:
    """The chart as a bitmap, in ink on white."""
    import vl_convert

    return bytes(vl_convert.vegalite_to_png(_spec(chart, INK, PAPER), scale=2))


def write(chart: Any, path: Path) -> None:
    """Write the chart to a file; the suffix chooses the format."""
    import vl_convert

    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise BadInput(f"cannot draw to '{path.name}': the suffix must be one of {', '.join(FORMATS)}")
    spec = _spec(chart, INK, PAPER)
    match suffix:
        case ".svg":
            content = _drawn(chart, INK, PAPER).encode()
        case ".png":
            content = png(chart)
        case ".pdf":
            content = vl_convert.vegalite_to_pdf(spec)
        case _:
            drawing = _drawn(chart, INK, PAPER)
            content = f"<!doctype html><meta charset=utf-8><title>{path.stem}</title>{drawing}".encode()
    write_whole(path, content)
