"""How soon is a wrong implementation found wrong? Processor seconds until the first wrong example, over the kinds' own faults.

    python bench/first_failure.py [KIND ...]    # writes bench/first_failure.json

Each fault is searched for by one property that names it (the formula itself where it is among them), in float32 first, as a
standard run does it; what comes before the search (start-up, other properties) and after it (shrinking, explaining) is not counted.
"""
from __future__ import annotations

import json
import statistics
import sys
import time
from pathlib import Path

import torch
from explanations import killer

from assay import registry
from assay.properties import Property
from assay.registry import Fault
from assay.run.hosts import LocalHost
from assay.run.judge import Judge, Settings, Trial
from assay.run.plan import CaseSpec

OUT = Path(__file__).with_suffix(".json")
DTYPES = ("float32", "bfloat16", "float16")


def until_found(fault: Fault, prop: Property) -> float | None:
    """Seconds of search over the types in turn; None where no example of the property is wrong."""
    host, spent = LocalHost([fault.declaration]), 0.0
    for dtype in (one for one in prop.dtypes or DTYPES if one in DTYPES):
        case = CaseSpec(prop.id, prop.kind, fault.declaration.name, "cpu", dtype)
        started = time.process_time()
        _, failed = Trial(Judge(Settings(profile="standard")), case, prop, fault.declaration, host).search()
        spent += time.process_time() - started
        if failed is not None:
            return spent
    return None


def of_kind(kind: str) -> dict[str, float | None]:
    """Every fault of the kind that a property names."""
    properties = registry.properties(kind)
    found = {}
    for fault in registry.own_faults(kind):
        if any(fault.id in prop.kills for prop in properties):
            found[fault.id] = until_found(fault, killer(fault, properties))
    return found


def main() -> None:
    torch.set_num_threads(1)
    rows: dict[str, dict[str, float | int]] = {}
    every: list[float] = []
    for kind in sys.argv[1:] or sorted({prop.kind for prop in registry.properties()}):
        times = of_kind(kind)
        known = sorted(one for one in times.values() if one is not None)
        every += known
        if known:
            rows[kind] = {"faults": len(times), "found": len(known), "median": round(statistics.median(known), 3),
                          "most": round(known[-1], 2)}
            print(kind, json.dumps(rows[kind]), [id for id, one in times.items() if one is None], flush=True)
    total = {"faults": sum(int(row["faults"]) for row in rows.values()), "found": len(every),
             "median": round(statistics.median(every), 3), "within 1 s": round(sum(one < 1 for one in every) / len(every), 3)}
    OUT.write_text(json.dumps({"total": total, "kinds": rows}, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(total))


if __name__ == "__main__":
    main()
