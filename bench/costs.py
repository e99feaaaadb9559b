"""What a case of each property costs, for shards of even length: python bench/costs.py REPORT [REPORT ...]

Reads reports of `assay check reference` and writes the mean seconds of a case, by property, to harness/run/costs.json. Only the
ratios between properties matter, so any machine will do, as long as it does nothing else meanwhile.
"""
from __future__ import annotations

import json
import statistics
import sys
from collections import defaultdict
from pathlib import Path

from assay.report import jsonl
from assay.run import plan


def costs(reports: list[jsonl.Report]) -> dict[str, float]:
    """Mean seconds of a case by property, to three digits."""
    seconds = defaultdict(list)
    for report in reports:
        for result in report.results:
            seconds[result["property"]].append(result["seconds"])
    return {name: float(f"{max(statistics.mean(spent), 1e-3):.3g}") for name, spent in sorted(seconds.items())}


if __name__ == "__main__":
    if not sys.argv[1:]:
        raise SystemExit(__doc__)
    place = Path(plan.__file__).with_name("costs.json")
    place.write_text(json.dumps(costs([jsonl.read(name) for name in sys.argv[1:]]), indent=0) + "\n", encoding="utf-8")
    print(f"{place}: {len(plan.recorded_costs())} properties")
