"""A stored SVG made fit to stand inside a page: plain shapes and text, or nothing.

The file comes from our own store, but a page that is mailed around must not depend on nobody having touched it.
What is not on the short list of plain SVG refuses the whole file; nothing is repaired.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

from markupsafe import Markup

_SVG = "http://www.w3.org/2000/svg"
_XLINK = "http://www.w3.org/1999/xlink"
_ELEMENTS = frozenset(
    "svg g path rect circle ellipse line polyline polygon text tspan defs clipPath mask pattern linearGradient "
    "radialGradient stop marker symbol use".split()
)
_ATTRIBUTES = frozenset(
    """
    id href d x y x1 y1 x2 y2 cx cy r rx ry dx dy fx fy fr width height viewBox preserveAspectRatio points offset
    transform rotate orient refX refY textLength lengthAdjust patternUnits patternContentUnits patternTransform
    gradientUnits gradientTransform spreadMethod clipPathUnits maskUnits maskContentUnits markerWidth markerHeight
    markerUnits fill fill-opacity fill-rule stroke stroke-width stroke-opacity stroke-linecap stroke-linejoin
    stroke-miterlimit stroke-dasharray stroke-dashoffset opacity color display visibility overflow clip-path clip-rule
    mask marker-start marker-mid marker-end stop-color stop-opacity font font-family font-size font-style font-weight
    font-variant text-anchor text-decoration dominant-baseline alignment-baseline baseline-shift letter-spacing
    word-spacing paint-order vector-effect shape-rendering text-rendering
    """.split()
)
# Harmless but unwanted: inside an image roles and labels are noise, classes and styles would meet the page's own.
_DROPPED = re.compile(r"aria-[\w-]+|data-[\w-]+|role|class|style|tabindex|focusable|version|pointer-events")
_LOCAL = re.compile(r"url\(\s*(['\"]?)#([\w.:-]+)\1\s*\)")
# What fetches; backslashes and comments are how a value hides such a word from a reader like this one.
_FETCHES = re.compile(r"(url|image|image-set|cross-fade|src)\s*\(|\\|/\*", re.IGNORECASE)
_LIMIT = 500_000  # characters; a page stays below one megabyte with it


class _Refused(Exception):  # noqa: N818 - read as a sentence
    """The file holds something that is not plain SVG."""


def plain_svg(text: str, label: str, prefix: str = "plot-") -> Markup | None:
    """The drawing as markup with an accessible name and ids that begin with `prefix`; None if it is not plain SVG.

    >>> str(plain_svg('<svg xmlns="http://www.w3.org/2000/svg"><g id="a"/></svg>', "A plot"))
    '<svg role="img" aria-label="A plot"><g id="plot-a" /></svg>'
    >>> plain_svg('<svg xmlns="http://www.w3.org/2000/svg"><script>alert(1)</script></svg>', "A plot")
    """
    # Entities are the one way for a small file to become a large one, and no chart needs a document type.
    if len(text) > _LIMIT or "<!DOCTYPE" in text.upper() or "<!ENTITY" in text.upper():
        return None
    try:
        root = ElementTree.fromstring(text)
        if root.tag != f"{{{_SVG}}}svg":
            raise _Refused(root.tag)
        for element in root.iter():
            _clean(element, prefix)
    except (ElementTree.ParseError, _Refused, RecursionError):
        return None
    root.attrib = {"role": "img", "aria-label": label, **root.attrib}
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _clean(element: ElementTree.Element, prefix: str) -> None:
    """Check one element, strip its namespace and rename its ids; raise at what is not plain."""
    namespace, _, name = str(element.tag).removeprefix("{").partition("}")
    if namespace != _SVG or name not in _ELEMENTS:
        raise _Refused(element.tag)
    element.tag = name
    kept = {}
    for attribute, value in element.attrib.items():
        plain = attribute.replace(f"{{{_XLINK}}}href", "href")
        if _DROPPED.fullmatch(plain) or plain.startswith("{http://www.w3.org/XML/1998/namespace}"):
            continue
        if plain not in _ATTRIBUTES:
            raise _Refused(attribute)
        kept[plain] = _value(plain, value, prefix)
    element.attrib = kept


def _value(name: str, value: str, prefix: str) -> str:
    """An attribute's value with its ids renamed; only references within the drawing are allowed."""
    if name == "id":
        return prefix + value
    if name == "href":
        if not value.startswith("#"):
            raise _Refused(value)
        return f"#{prefix}{value[1:]}"
    if _FETCHES.search(_LOCAL.sub("", value)):
        raise _Refused(value)
    return _LOCAL.sub(lambda found: f"url(#{prefix}{found[2]})", value)
