"""Are unusual but right ways ever called wrong? Every benign way of a kind, on every property and type, over many seeds.

    python bench/benign.py [--seeds 20] [--anew] [--workers N] KIND ...    # goes on where bench/benign.json ends

The doctor judges them with one seed; here each seed draws other examples. A kind's row holds the cases judged, those
called wrong (0, or assay is unsound: exit 1) and those that could not decide.
"""
from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path

from assay.run import doctor
from assay.run.events import RED

OUT = Path(__file__).with_suffix(".json")
Rows = dict[str, dict[str, int]]


def add_seed(kind: str, rows: Rows, workers: int | None) -> None:
    """Judge with the next seed and add the counts to the kind's row; what is called wrong is printed."""
    row = rows.setdefault(kind, dict.fromkeys(("seeds", "cases", "wrong", "undecided"), 0))
    report = doctor.run([kind], seeds=(row["seeds"],), workers=workers, faults=False)
    for attempt in report.benign_attempts:
        if attempt.status in RED:
            print(f"{attempt.property} calls {attempt.planted} wrong in {attempt.dtype}, seed {row['seeds']}:", attempt.message)
    counts = Counter(attempt.status for attempt in report.benign_attempts)
    wrong = sum(counts[status] for status in RED)
    row["seeds"] += 1
    row["cases"] += counts.total()
    row["wrong"] += wrong
    row["undecided"] += counts.total() - wrong - counts["pass"]
    OUT.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(f"{kind}: {row}, {report.seconds:.0f} s", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="+", metavar="KIND")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--anew", action="store_true", help="begin the rows of these kinds anew")
    parser.add_argument("--workers", type=int)
    options = parser.parse_args()
    rows: Rows = json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {}
    for kind in options.kinds:
        if options.anew:
            rows.pop(kind, None)
        while rows.get(kind, {}).get("seeds", 0) < options.seeds:
            add_seed(kind, rows, options.workers)
    return int(any(rows[kind]["wrong"] for kind in options.kinds))


if __name__ == "__main__":
    sys.exit(main())
