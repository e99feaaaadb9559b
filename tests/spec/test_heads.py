"""The specifications of paged, blockwise and multi-head attention: costs are counted, and what hides them is not judged."""
from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import assay
from assay import registry
from assay.contract.declaration import Declaration, declare
from assay.reference.blockwise_attention import blockwise_attention
from assay.run.judge import Settings
from assay.run.judging import Bench
from assay.run.plan import Selection, make_plan

KINDS = ("paged_attention", "blockwise_attention", "multi_head_attention")
COSTS = {
    "paged_attention": ("sharing_a_cache_saves_bytes_and_no_products",),
    "blockwise_attention": ("memory_grows_with_the_length_and_not_its_square", "keys_are_read_once_for_each_tile_of_queries",
                            "gradients_make_nothing_of_square_size", "products_are_those_of_attention"),
    "multi_head_attention": ("costs_do_not_depend_on_the_number_of_heads", "window_needs_the_products_of_its_pairs",
                             "sharing_heads_saves_parameters_and_cache"),
}
PAIRS = [(kind, name) for kind, names in COSTS.items() for name in names]


def results(declaration: Declaration, *only: str, dtypes: tuple[str, ...] = ("float32",)) -> list[dict[str, Any]]:
    """The results of some properties on one implementation, in this process."""
    plan = make_plan([declaration], registry.properties(declaration.kind), Selection(only=only, dtypes=dtypes))
    bench = Bench([{"isolated": False, "declared": [declaration]}], Settings(profile="quick"), None)
    return [bench.run(case) for case in plan.cases]


def named(kind: str, name: str) -> Declaration:
    return next(made for made in registry.declarations(kind) if made.name == name)


def planted(id: str) -> Declaration:
    return next(made.declaration for made in registry.faults() if made.id == id)


@pytest.mark.parametrize(("kind", "name"), PAIRS)
def test_reference_keeps_its_costs(kind: str, name: str) -> None:
    (found,) = results(named(kind, "reference"), name)
    assert found["status"] == "pass", found["message"]


@pytest.mark.parametrize(("kind", "name"), PAIRS)
def test_planted_waste_is_told(kind: str, name: str) -> None:
    prop = next(made for made in registry.properties(kind) if made.id == f"{kind}/{name}")
    for id in prop.kills:
        (found,) = results(planted(id), name)
        assert found["status"] == "fail", f"{id}: {found['message']}"


def hidden_from_torch(q: Tensor, k: Tensor, v: Tensor, *, block_q: int, block_k: int, causal: bool = False,
                      scale: float | None = None) -> tuple[Tensor, Tensor]:
    """Right, and out of the dispatcher's sight: everything happens in NumPy."""
    a, b, c = (one.detach().double().numpy() for one in (q, k, v))
    scores = a @ b.swapaxes(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    return torch.from_numpy(scores @ c), torch.from_numpy(scores.sum(-1))


def test_costs_out_of_sight_are_not_exercised() -> None:
    made = declare("blockwise_attention", hidden_from_torch, name="hidden", grad=False, lacks={"gqa"})
    (found,) = results(made, "products_are_those_of_attention")
    assert found["status"] == "not-exercised", found["message"]
    assert "cost=" in found["message"]


@pytest.mark.parametrize(("factor", "status"), [(1, "pass"), (5, "fail")])
def test_declared_cost_is_judged(factor: int, status: str) -> None:
    def cost(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> int:
        return factor * q.shape[2] * k.shape[2] * (q.shape[3] + v.shape[3])

    made = declare("blockwise_attention", hidden_from_torch, name="hidden", grad=False, lacks={"gqa"}, cost=cost)
    (found,) = results(made, "products_are_those_of_attention")
    assert found["status"] == status, found["message"]


def test_counts_of_one_call() -> None:
    bench = Bench([{"isolated": False, "declared": [declare("blockwise_attention", blockwise_attention, name="one")]}],
                  Settings(), None)
    host = bench._hosts["blockwise_attention", "one"]
    from assay.hosting import Call

    q = torch.ones(1, 1, 4, 2)
    answer = host.call(Call("blockwise_attention", "one", {"q": q, "k": q, "v": q, "block_q": 2, "block_k": 4},
                            grad_mode=False, count=True))
    assert answer.counts["multiply_adds"] == 4 * 4 * (2 + 2)
    assert answer.counts["read/k"] == 2 * 4 * 2  # two tiles of queries
    assert 0 < answer.counts["largest_bytes"] <= answer.counts["peak_bytes"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_property_names_planted_faults_that_exist(kind: str) -> None:
    known = {made.id for made in registry.faults(kind)}
    for prop in registry.properties(kind):
        assert set(prop.kills) <= known, prop.id


@pytest.mark.parametrize("kind", ["multi_head_attention", "blockwise_attention"])
def test_who_lacks_empty_rows_is_given_none(kind: str) -> None:
    """No mask leaves a query without keys, where there are more queries than keys neither."""
    made = declare(kind, assay.get(kind, "reference"), name="sees_something", lacks={"empty_rows"})
    for prop in registry.properties(kind):
        for configuration in prop.cases.boundary(made, prop.given):
            mask = prop.cases.example(configuration, torch.float32).arguments.get("mask")
            if mask is not None and mask.numel():
                assert bool(mask.any(-1).all()), f"{prop.id}: {configuration}"
