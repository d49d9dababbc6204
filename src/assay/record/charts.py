"""Charts in one quiet style: as SVG for pages, as PNG, PDF or HTML for files.

Text and axes take the page's own colour (`currentColor`), so one SVG reads well on light and dark pages alike.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from assay.record.errors import BadInput
from assay.record.store import write_whole

# Okabe and Ito's palette: told apart by people with any colour vision, on white and on near-black.
PALETTE = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8C6BB1", "#7F7F7F"]
FORMATS = (".svg", ".png", ".pdf", ".html")
_FONT = "ui-sans-serif, system-ui, sans-serif"


def _spec(chart: Any, ink: str, background: str) -> dict[str, Any]:
    """The chart's Vega-Lite specification in assay's style."""
    quiet = {"labelColor": ink, "titleColor": ink, "labelFont": _FONT, "titleFont": _FONT, "titleFontWeight": 500}
    grid = {"gridColor": ink, "gridOpacity": 0.12, "tickColor": ink, "tickOpacity": 0.4}
    title = {"color": ink, "font": _FONT, "fontWeight": 600, "anchor": "start", "offset": 12, "frame": "group"}
    spec: dict[str, Any] = chart.to_dict()
    spec["config"] = {
        "background": background,
        "view": {"stroke": None},
        "axis": {"domain": False, "labelFontSize": 11, "titleFontSize": 12, **quiet, **grid},
        "axisQuantitative": {"tickCount": 5},
        "legend": {"orient": "top", "title": None, "labelFontSize": 12, "symbolStrokeWidth": 2, **quiet},
        "header": quiet,
        "title": {**title, "subtitleColor": ink, "subtitleFont": _FONT, "subtitlePadding": 6},
        "text": {"color": ink, "font": _FONT},
        "range": {"category": PALETTE},
    }
    return spec


def svg(chart: Any) -> str:
    """The chart as SVG text for a page."""
    import vl_convert

    return str(vl_convert.vegalite_to_svg(_spec(chart, "currentColor", "transparent")))


def write(chart: Any, path: Path) -> None:
    """Write the chart to a file; the suffix chooses the format."""
    import vl_convert

    suffix = path.suffix.lower()
    if suffix not in FORMATS:
        raise BadInput(f"cannot draw to '{path.name}': the suffix must be one of {', '.join(FORMATS)}")
    spec = _spec(chart, "#222222", "white")
    match suffix:
        case ".svg":
            content = vl_convert.vegalite_to_svg(spec).encode()
        case ".png":
            content = vl_convert.vegalite_to_png(spec, scale=2)
        case ".pdf":
            content = vl_convert.vegalite_to_pdf(spec)
        case _:
            drawing = vl_convert.vegalite_to_svg(spec)
            content = f"<!doctype html><meta charset=utf-8><title>{path.stem}</title>{drawing}".encode()
    write_whole(path, content)
