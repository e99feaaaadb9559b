"""Small charts as inline SVG: no script, no network, colours from the page, numbers beside them as text."""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from assay.report.status import short
from assay.run.events import SPREAD

WIDTH, BOUND_AT = 120, 90  # a bar's width, and where error = bound stands in it
# The places of a distribution (`events.place_of`) in words; the last is beyond the bound.
RANGES = ("exact", "under 10⁻⁴", "10⁻⁴ to 3·10⁻⁴", "3·10⁻⁴ to 10⁻³", "10⁻³ to 3·10⁻³", "3·10⁻³ to 0.01", "0.01 to 0.03",
          "0.03 to 0.1", "0.1 to 0.3", "0.3 to 1", "over 1")
LABELS = {0: "0", 2: "10⁻⁴", 4: "10⁻³", 6: "10⁻²", 8: "0.1", 10: "1"}
ROW, FROM, TO = 17, 150, 300  # of a strip: height of a row, and where 10⁻⁴ and the bound stand
FLOOR = 1e-4


@dataclass(frozen=True)
class Strip:
    """One row of strips: over these right examples the error was typically `median` of its bound, and `worst` at most."""

    name: str
    examples: int
    median: float
    worst: float


def ratio_bar(ratio: float | None) -> Markup:
    """Error over bound as a bar against a line at 1; beyond it the bar runs to the end. The label stands beside it."""
    if ratio is None:
        return Markup("")
    over = not ratio <= 1  # NaN is over
    width = WIDTH if over else max(1, round(ratio * BOUND_AT))
    return Markup(
        '<svg class="bar{}" viewBox="0 0 {} 12" aria-hidden="true"><rect class="track" width="{}" height="12"/>'
        '<rect class="fill" y="2" width="{}" height="8"/><path d="M{} 0v12"/></svg>'
    ).format(" over" if over else "", WIDTH, BOUND_AT, width, BOUND_AT)


def histogram(counts: Sequence[int], title: str, what: str = "example") -> Markup:
    """How many lie where between an exact result and the bound, by half decades, and beyond it."""
    top = max(counts, default=0) or 1
    bars = Markup("").join(_column(place, count, top) for place, count in enumerate(counts))
    told = ", ".join(f"{count} {RANGES[place]}" for place, count in enumerate(counts) if count)
    labels = Markup("").join(Markup('<text x="{}" y="112" text-anchor="middle">{}</text>').format(
        _left(place) + (13 if not place else -4 if place == SPREAD else 0), text)
                             for place, text in LABELS.items())
    return Markup(
        '<svg class="histogram" viewBox="0 0 352 118" role="img" aria-label="{}: {}s by error over bound: {}">{}'
        '<path class="axis" d="M4 96h344"/><path class="bound" d="M{} 8v88"/>{}'
        '<text x="350" y="112" text-anchor="end">over</text></svg>'
    ).format(title, what, told or "nothing measured", bars, _left(SPREAD), labels)


def _left(place: int) -> int:
    return 4 + 31 * place + (5 if place == SPREAD else 0)


def _column(place: int, count: int, top: int) -> Markup:
    if not count:
        return Markup("")
    height, left = max(2, round(70 * count / top)), _left(place)
    return Markup('<rect class="{}" x="{}" y="{}" width="26" height="{}"/>'
                  '<text x="{}" y="{}" text-anchor="middle">{:,}</text>').format(
        "over" if place == SPREAD else "fill", left + 2, 96 - height, height, left + 15, 91 - height, count)


def strips(groups: Sequence[tuple[str, Sequence[Strip]]], title: str) -> Markup:
    """Rows under headings: a line from the median to the worst error on a scale from 10⁻⁴ of the bound to all of it."""
    texts, lines, dots, y = Markup(""), "", "", 12
    for heading, rows in groups:
        texts += Markup('<text class="h" x="0" y="{}">{}</text>').format(y, heading)
        for row in rows:
            y += ROW
            left, right = _place(row.median), _place(row.worst)
            lines += f"M{left} {y - 4}H{right}"
            dots += f"M{right} {y - 4}h0"
            texts += Markup('<text x="8" y="{y}">{}</text><text x="{end}" y="{y}">{}</text>').format(
                row.name, headroom(row.worst), y=y, end=TO + 12)
        y += ROW + 6
    height = y - ROW
    scale = Markup('<path class="axis" d="M{a} 2V{h}M{b} 2V{h}"/><path class="bound" d="M{c} 2V{h}"/>').format(
        a=FROM, b=(FROM + TO) // 2, c=TO, h=height)
    ends = Markup('<text class="e" x="{}" y="{y}">10⁻⁴</text><text class="e" x="{}" y="{y}">10⁻²</text>'
                  '<text class="e" x="{}" y="{y}">bound</text><text class="e" x="{}" y="{y}">headroom</text>').format(
        FROM, (FROM + TO) // 2, TO, TO + 42, y=height + 12)
    return Markup('<svg class="strips" viewBox="0 0 370 {}" role="img" aria-label="{}: {}">{}<path class="line" d="{}"/>'
                  '<path class="dot" d="{}"/>{}{}</svg>').format(height + 18, title, _said(groups), scale, lines, dots, texts, ends)


def headroom(worst: float) -> str:
    """How many times the worst error would fit into its bound."""
    if worst == 0:
        return "exact"
    return f"{short(float(f'{1 / worst:.2g}'))} ×"


def _place(ratio: float) -> int:
    """On the scale; what is smaller than it shows stands at its beginning."""
    return round(FROM + (TO - FROM) * (1 - math.log10(min(1.0, max(ratio, FLOOR))) / math.log10(FLOOR)))


def _said(groups: Sequence[tuple[str, Sequence[Strip]]]) -> str:
    return "; ".join(f"{heading}: " + ", ".join(f"{row.name} {headroom(row.worst)}" for row in rows) for heading, rows in groups)
