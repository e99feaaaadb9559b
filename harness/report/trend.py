"""The reports of a folder over time: one line each, and a small chart as SVG."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from assay.errors import UsageError
from assay.report import jsonl
from assay.report.jsonl import Report
from assay.report.overview import BROKEN
from assay.run import events

WIDTH, HEIGHT, LEFT, TOP, BOTTOM, MARGIN = 640, 220, 44, 26, 42, 40
LABELS = 6  # dates under the axis at most
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#222}.axis{stroke:#777;fill:none}.right{stroke:#1b6e34;fill:#1b6e34}"
    ".wrong{stroke:#a3231c;fill:#a3231c;stroke-dasharray:6 3}.open{stroke:#75590a;fill:#75590a;stroke-dasharray:2 3}"
    "polyline{fill:none!important;stroke-width:2}rect.page{fill:#fff}"
    "@media(prefers-color-scheme:dark){rect.page{fill:#16181d}text{fill:#e8e8e8}.right{stroke:#6cc788;fill:#6cc788}"
    ".wrong{stroke:#ff8f87;fill:#ff8f87}.open{stroke:#e3bd5b;fill:#e3bd5b}}")


@dataclass(frozen=True)
class Point:
    """One report in the trend."""

    started: str
    name: str
    verdict: str
    right: int
    wrong: int
    planned: int

    @property
    def open(self) -> int:
        """Planned cases that are neither shown right nor wrong."""
        return self.planned - self.right - self.wrong

    def line(self) -> str:
        return f"{self.started}  {self.verdict:14}  {self.right} right  {self.wrong} wrong  {self.open} open  {self.name}"


def points(folder: Path) -> list[Point]:
    """All reports in the folder and one level below, in the order in which the runs began."""
    if not folder.is_dir():
        raise UsageError(f"folder={folder} must be a folder of reports; give one that is there")
    places = sorted({*folder.glob("*.jsonl"), *folder.glob(f"*/{jsonl.FILE_NAME}")})
    if not places:
        raise UsageError(f"folder={folder} must hold reports (*.jsonl, or */{jsonl.FILE_NAME}), got none")
    found = [_point(jsonl.read(place), place, folder) for place in places]
    return sorted(found, key=lambda point: (point.started, point.name))


def _point(report: Report, place: Path, folder: Path) -> Point:
    counts = report.summary["counts"]
    wrong = sum(counts.get(status, 0) for status in BROKEN | {"blocked"})
    name = place.parent if place.name == jsonl.FILE_NAME and place.parent != folder else place
    return Point(report.header["started"], events.clean(name.relative_to(folder), events.NAME_LENGTH), report.summary["verdict"],
                 counts.get("pass", 0), wrong, len(report.plan["cases"]))


def svg(found: Sequence[Point]) -> str:
    """Right, wrong and open cases of each run: three lines, told apart by dashes and labels too."""
    top = max(1, *(point.planned for point in found))
    told = "; ".join(f"{point.started[:10]}: {point.right} right, {point.wrong} wrong, {point.open} open"
                     for point in found[-LABELS:])
    series = {"right": [point.right for point in found], "wrong": [point.wrong for point in found],
              "open": [point.open for point in found]}
    lines = Markup("").join(_line(name, values, top) for name, values in series.items())
    legend = Markup("").join(_legend(place, name) for place, name in enumerate(series))
    floor = HEIGHT - BOTTOM
    return str(Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" role="img" aria-label="Cases over {n} runs. {told}">'
        '<style>{style}</style><rect class="page" width="{w}" height="{h}"/><path class="axis" d="M{left} {top}V{floor}H{w}"/>'
        '<text x="{before}" y="{lower}" text-anchor="end">{most}</text><text x="{before}" y="{floor}" text-anchor="end">0</text>'
        '{legend}{lines}{dates}</svg>\n').format(
            w=WIDTH, h=HEIGHT, n=len(found), told=told, style=Markup(STYLE), left=LEFT, top=TOP, floor=floor, before=LEFT - 6,
            lower=TOP + 8, most=top, legend=legend, lines=lines, dates=_dates(found)))


def _x(place: int, count: int) -> float:
    room = WIDTH - LEFT - 2 * MARGIN
    return LEFT + MARGIN + (room * place / (count - 1) if count > 1 else room / 2)


def _y(value: int, top: int) -> float:
    return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - TOP) * value / top


def _line(name: str, values: Sequence[int], top: int) -> Markup:
    spots = [(_x(place, len(values)), _y(value, top)) for place, value in enumerate(values)]
    dots = Markup("").join(Markup('<circle cx="{:.1f}" cy="{:.1f}" r="3"><title>{} {}</title></circle>').format(x, y, value, name)
                           for (x, y), value in zip(spots, values, strict=True))
    return Markup('<g class="{}"><polyline points="{}"/>{}</g>').format(
        name, " ".join(f"{x:.1f},{y:.1f}" for x, y in spots), dots)


def _legend(place: int, name: str) -> Markup:
    left = LEFT + 12 + 110 * place
    return Markup('<g class="{}"><path d="M{} 12h26" stroke-width="2"/></g><text x="{}" y="16">{}</text>').format(
        name, left, left + 32, name)


def _dates(found: Sequence[Point]) -> Markup:
    """The day of some runs, the first and the last among them."""
    count = min(LABELS, len(found))
    shown = sorted({round(place * (len(found) - 1) / max(1, count - 1)) for place in range(count)})
    return Markup("").join(Markup('<text x="{:.1f}" y="{}" text-anchor="middle">{}</text>').format(
        _x(place, len(found)), HEIGHT - BOTTOM + 18, found[place].started[:10]) for place in shown)
