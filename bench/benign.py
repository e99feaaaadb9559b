"""Are unusual but right ways ever called wrong? Every benign way of a kind, on every property and type, over many seeds.

    python bench/benign.py [--seeds 20] [--workers N] KIND ...    # adds to bench/benign.json

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


def over_seeds(kind: str, seeds: int, workers: int | None) -> dict[str, int]:
    """The statuses of all cases of a kind, told as they are counted; a wrong one is printed with its seed."""
    counts: Counter[str] = Counter()
    for seed in range(seeds):
        report = doctor.run([kind], seeds=(seed,), workers=workers, faults=False)
        for attempt in report.benign_attempts:
            counts[attempt.status] += 1
            if attempt.status in RED:
                print(f"{kind} seed {seed}: {attempt.property} calls {attempt.planted} wrong in {attempt.dtype}:", attempt.message)
        print(f"{kind} seed {seed}: {dict(counts)}, {report.seconds:.0f} s", flush=True)
    return {"seeds": seeds, "cases": counts.total(), "wrong": sum(counts[status] for status in RED),
            "undecided": sum(counts[status] for status in counts if status not in RED and status != "pass")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kinds", nargs="+", metavar="KIND")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--workers", type=int)
    options = parser.parse_args()
    for kind in options.kinds:
        rows = json.loads(OUT.read_text(encoding="utf-8")) if OUT.exists() else {}
        rows[kind] = over_seeds(kind, options.seeds, options.workers)
        OUT.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
