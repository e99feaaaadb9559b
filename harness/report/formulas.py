"""Formulas of statements as MathML, by a library; what it cannot read is shown as the text that it is."""
from __future__ import annotations

from functools import lru_cache
from xml.etree import ElementTree

from latex2mathml import exceptions
from latex2mathml.converter import convert
from markupsafe import Markup

from assay.run.events import FORMULA_LENGTH

BETWEEN = r", \quad "  # parts of a formula that may stand below each other
SPACE = "{http://www.w3.org/1998/Math/MathML}"
# A report may be anyone's: what else the library could be talked into (links, styles, images) is shown as text instead.
ELEMENTS = frozenset({
    "math", "mfrac", "mi", "mn", "mo", "mover", "mrow", "mspace", "msqrt", "msub", "msubsup", "msup", "mtable", "mtd", "mtext",
    "mtr", "munder", "munderover", "mroot", "mpadded",
})
ATTRIBUTES = frozenset({"columnalign", "display", "fence", "form", "mathvariant", "stretchy", "width", "linethickness", "accent"})
# The library's complaints have no common base, and what is malformed runs it into built-in ones too.
UNREADABLE: tuple[type[Exception], ...] = (
    *(one for one in vars(exceptions).values() if isinstance(one, type) and issubclass(one, Exception)),
    ValueError, LookupError, TypeError, AttributeError, StopIteration, RecursionError, ElementTree.ParseError)
LONG = 60  # characters of one part that may be too wide for a phone: it scrolls, by keyboard too


@lru_cache(maxsize=1_024)
def mathml(latex: str) -> Markup:
    """The formula as MathML, its parts side by side where there is room; code where it is too long or is none."""
    written = latex.split(BETWEEN) if 0 < len(latex) <= FORMULA_LENGTH else []
    parts = [shown for shown in map(_convert, written) if shown is not None]
    if not written or len(parts) < len(written):
        return Markup('<div class="formula"><code>{}</code></div>').format(latex)
    keyboard = Markup(' tabindex="0" role="group" aria-label="formula"') if max(map(len, written)) > LONG else ""
    return Markup('<div class="formula"{}>{}</div>').format(keyboard, Markup(" ").join(parts))


def _convert(latex: str) -> Markup | None:
    try:
        root = ElementTree.fromstring(convert(latex, display="block"))
    except UNREADABLE:
        return None
    for one in root.iter():
        one.tag = one.tag.removeprefix(SPACE)
        if one.tag not in ELEMENTS or not ATTRIBUTES.issuperset(one.attrib) or "\\" in (one.text or ""):
            return None
    return Markup(ElementTree.tostring(root, encoding="unicode"))
