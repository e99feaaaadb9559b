"""Small charts as inline SVG: no script, no network, colours from the page, numbers beside them as text."""
from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

WIDTH, BOUND_AT = 120, 90  # a bar's width, and where error = bound stands in it
BINS = 10


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


def histogram(ratios: Sequence[float], title: str) -> Markup:
    """How many cases lie where between 0 and their bound, in tenths, and beyond it."""
    counts = [0] * (BINS + 1)
    for ratio in ratios:
        counts[min(int(ratio * BINS), BINS - 1) if ratio <= 1 else BINS] += 1
    top = max(counts) or 1
    bars = Markup("").join(_column(place, count, top) for place, count in enumerate(counts))
    told = ", ".join(f"{count} {_range(place)}" for place, count in enumerate(counts) if count)
    return Markup(
        '<svg class="histogram" viewBox="0 0 344 118" role="img" aria-label="{}: {}">{}'
        '<path class="axis" d="M4 96h336"/><path class="bound" d="M309 8v88"/>'
        '<text x="4" y="112">0</text><text x="156" y="112" text-anchor="middle">half the bound</text>'
        '<text x="304" y="112" text-anchor="end">bound</text>'
        '<text x="325" y="112" text-anchor="middle">over</text></svg>'
    ).format(title, told or "nothing measured", bars)


def _column(place: int, count: int, top: int) -> Markup:
    height = round(70 * count / top) if count else 0
    height = max(height, 2) if count else 0
    left = 4 + 30 * place + (6 if place == BINS else 0)
    text = Markup('<text x="{}" y="{}" text-anchor="middle">{}</text>').format(left + 13, 91 - height, count)
    label = text if count else ""
    return Markup('<rect class="{}" x="{}" y="{}" width="26" height="{}"/>{}').format(
        "over" if place == BINS else "fill", left, 96 - height, height, label)


def _range(place: int) -> str:
    return "over the bound" if place == BINS else f"from {place / BINS:.1f} to {(place + 1) / BINS:.1f} of the bound"
