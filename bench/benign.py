"""Are unusual but right ways ever called wrong? Every benign way of a kind, on every property and type, over many seeds.

    python bench/benign.py [--seeds 20] [--first SEED] [--workers N] KIND ...    # adds to bench/benign.json

The doctor judges them with one seed; here each seed draws other examples. A kind's row holds the cases judged, those
called wrong (0, or assay is unsound) and those that could not decide.
"""
from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

from assay.run import doctor
from assay.run.events import RED

OUT = Path(__file__).with_suffix(".json")


def add_seed(kind: str, seed: int, workers: int | None) -> None:
    """Judge with this seed and add the counts to the kind's row; what is called wrong is printed."""
    report = doctor.run([kind], seeds=(seed,), workers=workers, faults=False)
    counts = Counter(attempt.status for attempt in report.benign_attempts)
    for attempt in report.benign_attempts:
        if attempt.status in RED:
            print(f"{kind} seed {seed}: {attempt.property} calls {attempt.planted} wrong in {attempt.dtype}:", attempt.message)
    rows = json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {}
    row = rows.get(kind, {}) if seed else {}
    wrong = sum(counts[status] for status in RED)
    counted = {"seeds": 1, "cases": counts.total(), "wrong": wrong, "undecided": counts.total() - wrong - counts["pass"]}
    for name, count in counted.items():
        row[name] = row.get(name, 0) + count
    rows[kind] = row
    OUT.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(f"{kind} seed {seed}: {row}, {report.seconds:.0f} s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="+", metavar="KIND")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="go on from here; 0 begins the kind's row anew")
    parser.add_argument("--workers", type=int)
    options = parser.parse_args()
    for kind in options.kinds:
        for seed in range(options.first, options.seeds):
            add_seed(kind, seed, options.workers)


if __name__ == "__main__":
    main()
