"""`assay audit`: every model type of a library, a line as each is finished, a table at the end."""
from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from assay.report import audit as report
from assay.report.render import PAGE, write_all, write_text
from assay.run import audit, events
from assay.run.audit_report import as_report


def run(library: str, only: Sequence[str], *, workers: int, timeout: float, seed: int, out: Path, command: str,
        as_json: bool) -> int:
    """Audit, write the table, return the exit code: 1 where any type fails, 3 where none could be built, 4 for a fault of ours."""
    names, began = audit.targets(library, only), time.monotonic()
    found: list[audit.Row] = []
    for row in audit.run(names, workers=workers, timeout=timeout, seed=seed):
        found.append(row)
        told = f"{row.type}: {row.verdict}" + (f": {', '.join(row.failing) or row.reason}" if row.failing or row.reason else "")
        print(f"{len(found):>4} of {len(names)}  {told}", file=sys.stderr, flush=True)
    found.sort(key=lambda row: row.type)
    rows = [row.to_json() for row in found]
    place = out / f"audit-{library}-{version(library)}"
    text = report.render(library, version(library), command, rows, audit.bridge(library).notes())
    write_text(place.with_name(place.name + ".md"), text)
    write_text(place.with_name(place.name + ".jsonl"), "".join(events.dumps(row) + "\n" for row in rows))
    whole = as_report(found, command=command, seed=seed, seconds=time.monotonic() - began)
    write_all(whole, out)
    summary = {"types": len(rows), "built": sum(row["built"] for row in rows),
               **{verdict: sum(row["verdict"] == verdict for row in rows) for verdict in report.VERDICTS}}
    print(events.dumps(summary) if as_json else f"{report.headline(rows)}\nwrote {place}.md and {out / PAGE}")
    return 4 if whole.summary["exit_code"] == 4 else 1 if summary["non-conformant"] else 0 if summary["built"] else 3
