"""Configurations rebuild their examples anywhere, stay within claims, and every option turns up."""
from __future__ import annotations

import json
from dataclasses import replace

import hypothesis
import pytest
import torch
from hypothesis import strategies as st

from assay import registry
from assay.cases import Cases, Configuration, generator
from assay.contract.declaration import Declaration, declare
from assay.properties import Property
from assay.run.plan import why_not
from assay.spec.attention_cases import visible


def softmax_like(x: torch.Tensor, *, dim: int = -1) -> torch.Tensor:
    return x


def bare_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return v


PROPERTIES = {prop.id: prop for prop in registry.properties()}
NUMERIC = [prop for prop in PROPERTIES.values() if isinstance(prop.cases, Cases) and prop.kind in ("softmax", "attention")]


def test_a_configuration_survives_json_and_rebuilds_the_same_tensors() -> None:
    prop = PROPERTIES["attention/output_is_the_formula"]
    reference = next(d for d in registry.declarations("attention") if d.name == "reference")
    for configuration in prop.cases.boundary(reference, {}):
        again = Configuration.from_json(json.loads(json.dumps(configuration.to_json())))
        assert again.key() == configuration.key()
        one, other = prop.cases.build(configuration, torch.bfloat16), prop.cases.build(again, torch.bfloat16)
        assert all(torch.equal(one[name], other[name]) for name in ("q", "k", "v"))


def test_generators_depend_on_seed_and_label_alone() -> None:
    torch.manual_seed(1)
    first = torch.rand(3, generator=generator(5, "q"))
    torch.manual_seed(2)
    assert torch.equal(first, torch.rand(3, generator=generator(5, "q")))
    assert not torch.equal(first, torch.rand(3, generator=generator(5, "k")))


@pytest.mark.parametrize("prop", NUMERIC, ids=lambda prop: prop.id)
def test_boundary_examples_keep_what_the_property_gives(prop: Property) -> None:
    reference = next(d for d in registry.declarations(prop.kind) if d.name == "reference")
    found = prop.cases.boundary(reference, prop.given)
    assert len(found) >= 3
    for configuration in found:
        for name, rule in prop.given.items():
            value = configuration.dims.get(name, configuration.flags.get(name, getattr(configuration, name, None)))
            if callable(rule):
                assert rule(value)
            elif isinstance(rule, tuple):
                assert value in rule
            elif not (isinstance(rule, str) and rule in configuration.dims):
                assert value == rule


@hypothesis.given(st.integers(0, 2**16), st.data())
@hypothesis.settings(max_examples=100, deadline=None)
def test_draws_stay_within_claims(seed: int, data: st.DataObject) -> None:
    claims = declare("attention", bare_attention, name="bare", lacks={"gqa", "value_width", "cross_lengths", "empty", "empty_rows"},
                     limits={"D": {64, 128}, "Tk": range(1, 40)})
    cases = PROPERTIES["attention/output_is_the_formula"].cases
    configuration = data.draw(cases.strategy(claims, {}))
    if configuration is None:
        return
    dims, flags = configuration.dims, configuration.flags
    assert dims["D"] in (64, 128) and dims["Dv"] == dims["D"] and dims["G"] == dims["H"] and dims["Tq"] == dims["Tk"]
    assert 1 <= dims["Tk"] < 40 and min(dims.values()) >= 1
    assert not flags["causal"] and flags["mask"] == "none" and flags["bias"] == "none" and flags["window"] is None


def test_numbers_of_a_limit_that_no_example_has_are_drawn_from_the_limit() -> None:
    prop = PROPERTIES["rms_norm/output_is_the_formula"]
    reference = next(d for d in registry.declarations("rms_norm") if d.name == "reference")
    for limit, drawn in (({3e-4, 2e-3}, {3e-4, 2e-3}), ({1e-6, 7e-7}, {1e-6})):
        claims = replace(reference, limits={"eps": frozenset(limit)})
        assert {one.flags["eps"] for one in prop.cases.boundary(claims, prop.given)} == drawn
        assert not prop.cases.boundary(claims, {"eps": 0.5})
    prop = PROPERTIES["attention/window_hides_what_lies_further_back"]
    reference = next(d for d in registry.declarations("attention") if d.name == "reference")
    claims = replace(reference, limits={"window": frozenset({11})})
    assert {one.flags["window"] for one in prop.cases.boundary(claims, {})} == {None, 11}


@pytest.mark.parametrize("outcome", ["mean", "nan_row", "refused"])
def test_rows_without_keys_come_from_masks_alone_where_they_touch_other_keys(outcome: str) -> None:
    reference = next(d for d in registry.declarations("attention") if d.name == "reference")
    claims = replace(reference, conventions={**reference.conventions, "empty_row": outcome})
    for name in ("future_is_invisible", "future_gets_no_gradient"):
        prop = PROPERTIES[f"attention/{name}"]
        found = prop.cases.boundary(claims, prop.given)
        assert found
        assert all(one.dims["Tq"] <= one.dims["Tk"] for one in found)


def test_an_infinite_bias_and_padding_leave_every_query_a_key_where_empty_rows_are_not_claimed() -> None:
    reference = next(d for d in registry.declarations("attention") if d.name == "reference")
    claims = replace(reference, lacks=reference.lacks | {"empty_rows"})
    cases = PROPERTIES["attention/output_is_the_formula"].cases
    for seed in range(200):
        made = cases.make({**{name: options[seed % len(options)] for name, options in cases.options(claims, {}).items()},
                           "bias": "infinite", "Tk": 7, "Tq": 4}, seed, claims, {})
        if made is not None:
            assert bool(visible(cases.build(made, torch.float32)).any(-1).all()), made


def test_what_no_example_can_show_is_left_out_of_the_plan() -> None:
    reference = next(d for d in registry.declarations("attention") if d.name == "reference")
    prop = PROPERTIES["attention/scaled_scores_have_variance_one"]  # one query, two keys
    assert not why_not(prop, reference)
    assert "no example" in why_not(prop, replace(reference, lacks=frozenset({"cross_lengths"})))


def test_what_a_property_rests_on_exists() -> None:
    """A name that is none of a property would block nothing, without a word."""
    assert {below for prop in PROPERTIES.values() for below in prop.rests_on} <= PROPERTIES.keys()


class OnePlace(Cases):
    """A single combination of five letters can be, of some hundred thousand with what nothing narrows."""

    kind = "attention"
    dims = dict.fromkeys(("B", "H", "G", "D", "Dv"), (1, 2, 3, 4, 5))
    flags = {"mask": ("none", "shared"), "bias": ("none", "full")}

    def adapt(self, configuration: Configuration, claims: Declaration) -> Configuration | None:
        return configuration if tuple(configuration.dims.values()) == (3, 5, 2, 4, 2) else None


def test_the_one_combination_that_can_be_is_found_and_none_is_invented() -> None:
    reference = next(d for d in registry.declarations("attention") if d.name == "reference")
    every = dict.fromkeys(("B", "H", "G", "D", "Dv"), (1, 2, 3, 4, 5))
    assert OnePlace().possible(reference, every)
    assert not OnePlace().possible(reference, {**every, "D": (1, 2, 3, 5)})


def test_a_tuple_lists_values_beyond_the_kinds_own_as_far_as_the_claims_go() -> None:
    cases = PROPERTIES["attention/output_is_the_formula"].cases
    reference = next(d for d in registry.declarations("attention") if d.name == "reference")
    given = {"D": (48, 192), "scale": (0.5, 0.25), "family": ("small", "tiny")}
    assert given.items() <= cases.options(reference, given).items()
    narrow = declare("attention", bare_attention, name="bare", limits={"D": {192}})
    assert cases.options(narrow, given)["D"] == (192,)


def test_shrinking_walks_towards_the_front_and_ends() -> None:
    prop = PROPERTIES["softmax/output_is_the_formula"]
    reference = next(d for d in registry.declarations("softmax") if d.name == "reference")
    configuration = prop.cases.boundary(reference, {})[-1]
    for _ in range(200):
        simpler = next(iter(prop.cases.simpler(configuration, reference, {})), None)
        if simpler is None:
            break
        configuration = simpler
    assert simpler is None and configuration.dims["C"] == 1 and configuration.family == "integers" and configuration.seed == 0
