"""`assay bundle`, `assay verify` and `assay trend`."""
from __future__ import annotations

import sys
from pathlib import Path

from assay.report import bundle as bundles
from assay.report import jsonl, speed, trend
from assay.report.render import write_bytes
from assay.report.status import plural
from assay.run import waivers as waiver_files
from assay.run.rerun import again, changed_sources, sample
from assay.run.session import Request


def bundle(source: Path, out: Path, waivers: Path | None) -> None:
    """Pack a report, the waivers where they are given, and what lies beside it and was timed for it."""
    report = jsonl.read(source)
    timed = speed.beside(source if source.is_dir() else source.parent, report)
    if waivers is not None:
        waiver_files.read(waivers)  # refused here, rather than by whoever unpacks
    written = bundles.pack(report, out, None if waivers is None else waivers.read_bytes(), timed)
    print(f"wrote {written}")


def verify(path: Path, count: int, request: Request) -> int:
    """Hashes and sums first, then some cases again; 0 when all agrees, 1 when anything does not."""
    found = bundles.unpack(path)
    for line in found.edited:
        print(f"edited: {line}")
    if found.edited:
        return 1
    verdict = found.report.summary["verdict"]
    print(f"whole: {plural(len(found.hashes), 'file')} as packed, {plural(len(found.report.results), 'result')}, {verdict}")
    if count == 0:
        return 0
    for place in changed_sources(found.report):
        print(f"note: {place} is not the file that was checked", file=sys.stderr)
    chosen = sample(found.report, count)
    names = sorted({one["implementation"] for one in chosen})
    print(f"running again: {plural(len(chosen), 'case')} of {', '.join(names) or 'nothing'}", file=sys.stderr)
    compared = list(again(found.report, chosen, request))
    for one in compared:
        print(f"{'same' if one.same else 'differs'}: {one.id}  then {one.then}, now {one.now}")
    differing = sum(not one.same for one in compared)
    print(f"{len(compared) - differing} of {plural(len(compared), 'case')} the same when run again")
    return 1 if differing else 0


def show_trend(folder: Path, out: Path | None) -> None:
    """A line a report, and the chart where it is asked for."""
    found = trend.points(folder)
    chart = trend.svg(found)
    print("\n".join(point.line() for point in found))
    if out is not None:
        print(f"wrote {write_bytes(out, chart.encode())}")
