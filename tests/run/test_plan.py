"""Plans: large ones at once, and shards that are whole, apart and of even length."""
from __future__ import annotations

import dataclasses

from assay import registry
from assay.run.plan import CaseSpec, Selection, cost_of, make_plan, shard_of

COSTS = {f"kind/property_{place}": 0.01 * (place % 17 + 1) ** 2 for place in range(100)}
CASES = [CaseSpec(name, "kind", f"maker-{maker}", "cpu", "float32") for name in COSTS for maker in range(3)]


def test_shards_are_apart_and_together_the_whole() -> None:
    for count in (1, 2, 7, 400):
        shards = [shard_of(CASES, index, count, COSTS) for index in range(1, count + 1)]
        assert sorted(case.id for shard in shards for case in shard) == sorted(case.id for case in CASES)
        assert all(shard == [case for case in CASES if case in set(shard)] for shard in shards), "a shard keeps the plan's order"


def test_shards_are_of_even_length_by_recorded_costs() -> None:
    loads = [sum(cost_of(case, COSTS) for case in shard_of(CASES, index, 5, COSTS)) for index in range(1, 6)]
    assert max(loads) - min(loads) <= max(COSTS.values())


def test_a_property_without_a_recorded_cost_counts_as_the_mean() -> None:
    assert cost_of(CaseSpec("kind/new", "kind", "maker", "cpu", "float32"), {"kind/a": 1.0, "kind/b": 3.0}) == 2.0


def test_a_hundred_thousand_cases_are_planned() -> None:
    sdpa = next(made for made in registry.declarations("attention") if made.name == "sdpa")
    many = [dataclasses.replace(sdpa, name=f"copy-{place}") for place in range(750)]
    planned = make_plan(many, registry.properties("attention"), Selection())
    assert len(planned.cases) > 100_000 and len({case.id for case in planned.cases}) == len(planned.cases)


def test_built_in_implementations_without_their_library_are_left_out_with_the_reason() -> None:
    declared = registry.declarations("softmax")[:1]
    absent = [("softmax", "far-softmax", "needs far, not installed")]
    planned = make_plan(declared, registry.properties("softmax"), Selection(), absent)
    told = [row for row in planned.left_out if row["implementation"] == "far-softmax"]
    assert len(told) == len(registry.properties("softmax"))
    assert {row["status"] for row in told} == {"not-supported"}
    assert {row["reason"] for row in told} == {"needs far, not installed"}
