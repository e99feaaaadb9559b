"""What a signature lacks and what a declaration disclaims is asked by no property, of any kind."""
from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from assay import registry
from assay.contract.declaration import Declaration
from assay.contract.kinds import FEATURES, KINDS, REQUIRED
from assay.properties import Property
from assay.run.hosts import LocalHost
from assay.run.judge import Judge, Settings, Trial
from assay.run.plan import CaseSpec, Selection, make_plan


def without(function: Callable[..., Any], dropped: frozenset[str]) -> Callable[..., Any]:
    def narrowed(*arguments: Any, **options: Any) -> Any:
        assert dropped.isdisjoint(options), f"it was asked for {sorted(dropped & options.keys())}"
        return function(*arguments, **options)
    return narrowed


def narrowed(made: Declaration) -> Iterator[Declaration]:
    """The reference without one optional keyword, with one alone, with none, without one feature, and without any."""
    kind, function = KINDS[made.kind], made.function
    assert function is not None
    optional = sorted(name for name in made.keywords & kind.options.keys() if kind.options[name] is not REQUIRED)
    features = sorted(kind.features.intersection(FEATURES) - {"gradients", "half_precision"})
    dropped = [{name} for name in optional] + [set(optional) - {name} for name in optional] + [set(optional)]
    for names in map(frozenset, dropped):
        yield replace(made, keywords=made.keywords - names, function=without(function, names))
    for lacks in (*({name} for name in features), set(features)):
        yield replace(made, lacks=frozenset(lacks))


def asked(made: Declaration, prop: Property) -> str:
    """What goes wrong with the first example that the property asks of it; empty where nothing does, or none is asked."""
    planned = make_plan([made], [prop], Selection(dtypes=("float32",))).cases
    first = prop.cases.boundary(made, prop.given)[:1] if planned else []
    for configuration in first:
        case = CaseSpec(prop.id, prop.kind, made.name, "cpu", "float32")
        tried = Trial(Judge(Settings(profile="quick")), case, prop, made, LocalHost([made])).run(configuration)
        if tried.outcome == "wrong" or "not claimed" in tried.reason:
            return f"{prop.id} at {configuration.key()}: {tried.outcome} {tried.reason}"
    return ""


@pytest.mark.parametrize("kind", [name for name, kind in KINDS.items() if not kind.factory])
def test_what_is_not_claimed_is_not_asked(kind: str) -> None:
    reference = next(made for made in registry.declarations(kind) if made.name == "reference")
    turns = itertools.cycle(narrowed(reference))
    found = [asked(next(turns), prop) for prop in registry.properties(kind)]
    assert not [one for one in found if one]
