"""What a person sees of a failure: size of the last counterexample, whether the fault is named, processor seconds until found.

    python bench/explanations.py            # 30 planted faults, of as many kinds; writes bench/explanations.json

Which faults is drawn by a hash of their ids, so nobody picked those that look good. That planted faults are named is to be
expected, for they are among the alternatives that are tried: what is measured is that none of the many others is said instead,
or beside it.
"""
from __future__ import annotations

import hashlib
import json
import re
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from assay import registry
from assay.properties import Property
from assay.registry import Fault
from assay.run.hosts import LocalHost
from assay.run.judge import Judge, Settings, Trial
from assay.run.plan import CaseSpec

COUNT = 30
OUT = Path(__file__).with_suffix(".json")


def drawn() -> list[Fault]:
    """The faults that a property names, in an order by hash: the first of every kind, then the second, and so on."""
    named = {id for prop in registry.properties() for id in prop.kills}
    able = [fault for fault in registry.faults() if fault.id in named and fault.function.__module__.startswith("assay.faults.")]
    order = sorted(able, key=lambda fault: hashlib.sha256(fault.id.encode()).digest())
    turns: dict[str, int] = {}
    ranked = []
    for fault in order:
        turns[fault.kind] = turns.get(fault.kind, 0) + 1
        ranked.append((turns[fault.kind], fault))
    return [fault for _, fault in sorted(ranked, key=lambda pair: pair[0])][:COUNT]


def killer(fault: Fault, properties: list[Property]) -> Property:
    """The property that says that it kills the fault; the formula itself where it is among them."""
    able = [prop for prop in properties if fault.id in prop.kills]
    return min(able, key=lambda prop: not prop.id.endswith("_is_the_formula"))


def numbers(counterexample: dict[str, Any]) -> int:
    """Elements of all tensors of the counterexample, by the shapes that are told."""
    total = 0
    for text in counterexample.get("arguments", {}).values():
        for shape in re.findall(r"(?:float|bfloat|int|bool|uint)\d*\[([\d, ]*)\]", text):
            count = 1
            for size in filter(None, shape.split(", ")):
                count *= int(size)
            total += count
    return total


def examined(fault: Fault, prop: Property) -> dict[str, Any]:
    """One fault: until the first wrong example, then the whole case with its explanation."""
    for dtype in prop.dtypes or ("float32", "bfloat16", "float16"):
        case = CaseSpec(prop.id, prop.kind, fault.declaration.name, "cpu", dtype)
        started = time.process_time()
        _, failed = Trial(Judge(Settings(profile="quick")), case, prop, fault.declaration, LocalHost([fault.declaration])).search()
        found = time.process_time() - started
        if failed is not None:
            break
    else:
        return {"fault": fault.id, "property": prop.id, "status": "not found"}
    started = time.process_time()
    result = Judge(Settings(profile="quick")).judge(case, prop, fault.declaration, LocalHost([fault.declaration]))
    told = result["counterexample"] or {}
    return {"fault": fault.id, "property": prop.id, "dtype": dtype, "status": result["status"], "numbers": numbers(told),
            "named": fault.id in told.get("faults", []), "alike": len(told.get("faults", [])),
            "consistent_with": told.get("consistent_with", []), "when": told.get("when", ""), "where": told.get("where", ""),
            "seconds_to_failure": round(found, 3), "seconds_with_explanation": round(time.process_time() - started, 3)}


def main() -> None:
    torch.set_num_threads(1)
    started = time.process_time()
    properties, faults = registry.properties(), drawn()
    start = time.process_time() - started
    rows = []
    for fault in faults:
        rows.append(examined(fault, killer(fault, properties)))
        print(json.dumps(rows[-1], ensure_ascii=False), flush=True)
    found = [row for row in rows if row["status"] != "not found"]
    summary = {
        "faults": len(rows), "found": len(found), "named": sum(row["named"] for row in found),
        "numbers_median": statistics.median(row["numbers"] for row in found), "numbers_most": max(row["numbers"] for row in found),
        "seconds_to_failure_median": statistics.median(row["seconds_to_failure"] for row in found),
        "seconds_to_failure_most": max(row["seconds_to_failure"] for row in found),
        "seconds_with_explanation_median": statistics.median(row["seconds_with_explanation"] for row in found),
        "seconds_to_import_the_specification": round(start, 2)}
    OUT.write_text(json.dumps({"summary": summary, "rows": rows}, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(json.dumps(summary))


if __name__ == "__main__":
    main()
