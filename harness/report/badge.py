"""A badge: the verdict with its denominator, as shields.io endpoint JSON and as SVG."""
from __future__ import annotations

import json

from markupsafe import Markup

from assay.report import overview
from assay.report.jsonl import Report
from assay.run import events

COLOURS = {
    "conformant": ("brightgreen", "#2a7f3f"), "non-conformant": ("red", "#b3261e"),
    "inconclusive": ("yellow", "#8a6100"),
}
# Average advance of the 11 px sans-serif face that shields uses; textLength makes any font fit.
ADVANCE, PADDING = 6.6, 10


def message(report: Report) -> str:
    """`conformant 61/61`: the verdict and how many of the planned cases were decided, or went wrong."""
    found, verdict = overview.totals(report), report.summary["verdict"]
    if verdict == "non-conformant":
        return f"{verdict} {found.red}/{found.planned} wrong"
    return f"{verdict} {found.decided}/{found.planned}"


def shields(report: Report, label: str = "assay") -> str:
    """JSON for a shields.io endpoint badge."""
    colour = COLOURS[report.summary["verdict"]][0]
    name = events.clean(label, events.NAME_LENGTH)
    return json.dumps({"schemaVersion": 1, "label": name, "message": message(report), "color": colour}, sort_keys=True)


def svg(report: Report, label: str = "assay") -> str:
    """The badge as a picture of its own."""
    name, text = events.clean(label, events.NAME_LENGTH), message(report)
    left, right = (round(len(one) * ADVANCE) + 2 * PADDING for one in (name, text))
    return str(Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" width="{w}" height="20" role="img" aria-label="{name}: {text}">'
        '<title>{name}: {text}</title><clipPath id="r"><rect width="{w}" height="20" rx="3"/></clipPath>'
        '<g clip-path="url(#r)"><rect width="{left}" height="20" fill="#3d4148"/>'
        '<rect x="{left}" width="{right}" height="20" fill="{colour}"/></g>'
        '<g fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11" text-anchor="middle">'
        '<text x="{lx}" y="14" textLength="{ll}">{name}</text>'
        '<text x="{rx}" y="14" textLength="{rl}">{text}</text></g></svg>\n'
    ).format(
        w=left + right, left=left, right=right, name=name, text=text, colour=COLOURS[report.summary["verdict"]][1],
        lx=left / 2, rx=left + right / 2, ll=left - 2 * PADDING, rl=right - 2 * PADDING,
    ))
