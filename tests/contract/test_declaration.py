"""Declarations: what is validated, what is claimed, and that nothing malformed escapes as anything but a UsageError."""
from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.contract.declaration import Declaration, declare
from assay.contract.kinds import KINDS
from assay.errors import UsageError


def attention(q: Any, k: Any, v: Any, *, mask: Any = None, causal: bool = False, window: Any = None) -> Any:
    return q


OPTIONS = ("name", "dtypes", "devices", "grad", "lacks", "offers", "limits", "arithmetic", "cost", "version", "url",
           "conventions", "origins")
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=120) | st.binary(max_size=4)
WORDS = st.sampled_from(["D", "mask", "eps", "empty_row", "zeros", "internal", "float32", "window", "cpu", "half"])
JUNK = st.recursive(
    SCALARS | WORDS | st.just(object()) | st.just(torch.float16) | st.builds(range, st.integers(-9, 9)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | st.text(max_size=3), inner, max_size=3)
    | st.tuples(inner, inner), max_leaves=5)


@settings(deadline=None, max_examples=300)
@given(kind=st.sampled_from(sorted(KINDS)), options=st.dictionaries(st.sampled_from(OPTIONS), JUNK, max_size=3))
def test_malformed_options_are_usage_errors_of_one_line(kind: str, options: dict[str, Any]) -> None:
    try:
        made = declare(kind, lambda *args, **kwargs: None, **{"name": "x", **options})
    except UsageError as error:
        assert str(error).isprintable()
    else:
        again = Declaration.from_json(json.loads(json.dumps(made.to_json())))
        assert again == replace(made, function=None, cost=None)


@settings(deadline=None)
@given(name=st.text())
def test_names_are_printable_or_refused(name: str) -> None:
    try:
        assert declare("softmax", lambda x, *, dim: x, name=name).name == name
        assert name.isprintable() and len(name) <= 100
    except UsageError as error:
        assert str(error).isprintable()


@pytest.mark.parametrize(("function", "message"), [
    (lambda q, k: q, "parameter 'v' is missing"),
    (lambda q, v, *, mask: q, "parameter 'k' is"),
    (lambda q, k, v, extra: q, "parameter 'extra' must have a default"),
    (lambda q, k, v, *, extra: q, "parameter 'extra' must have a default"),
    (lambda: None, "parameter 'q' is missing"),
    (lambda k, v, query: None, "parameter 'q' is expected where the signature has 'k'"),
])
def test_signatures_that_cannot_be_called_are_refused(function: Callable[..., Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        declare("attention", function)


@pytest.mark.parametrize(("function", "positional", "keywords"), [
    (lambda q, k, v: q, (), set()),
    (lambda v, k, q, *, mask=None, other=3: q, (), {"mask"}),
    (lambda query, key, value, mask: query, ("q", "k", "v"), {"mask"}),
    (lambda query, k, v, scale=None: query, ("q",), {"scale"}),
    (lambda *args, **kwargs: None, ("q", "k", "v"), set()),
    (lambda q, **kwargs: q, (), set()),
    (lambda q, k, v, /, causal=False: q, ("q", "k", "v"), {"causal"}),
])
def test_arguments_go_by_name_where_they_can(
    function: Callable[..., Any], positional: tuple[str, ...], keywords: set[str],
) -> None:
    made = declare("attention", function)
    assert (made.positional, made.keywords) == (positional, keywords)
    arguments = {"q": 1, "k": 2, "v": 3, **dict.fromkeys(keywords)}
    args, kwargs = made.bind(arguments)
    function(*args, **kwargs)


def test_a_module_is_known_by_its_forward() -> None:
    class Scale(torch.nn.Module):
        def forward(self, x: torch.Tensor, *, dim: int = -1) -> torch.Tensor:
            return x

    made = declare("softmax", Scale())
    assert (made.name, made.keywords) == ("Scale", {"dim"})


def test_a_keyword_that_the_signature_lacks_is_not_claimed() -> None:
    made = declare("attention", attention, lacks={"gqa"})
    asked = ("mask", "bias", "window", "softcap", "gqa", "gradients", "half_precision", "padding", "cache")
    claimed = {feature for feature in asked if made.claims(feature)}
    assert claimed == {"mask", "window", "gradients", "half_precision", "padding"}


def test_what_is_offered_counts_only_then() -> None:
    assert not declare("attention", attention).claims("two_sided_window")
    assert declare("attention", attention, offers={"two_sided_window"}).claims("two_sided_window")
    assert not declare("attention", attention, offers="two_sided_window", lacks="window").claims("two_sided_window")
    assert not declare("attention", attention, grad=False).claims("gradients")
    assert not declare("attention", attention, dtypes=[torch.float32]).claims("half_precision")


def test_limits_admit_what_they_hold_and_what_is_left_out() -> None:
    made = declare("attention", attention, limits={"D": {64, 128}, "Tq": range(1, 9), "window": {4}})
    assert made.allows("D", 64) and not made.allows("D", 65) and made.allows("Tk", 10**6)
    assert not made.allows("Tq", 9) and made.allows("window", None) and not made.allows("window", 5)


def test_fixed_choices_are_named_in_conventions() -> None:
    def norm(x: Any, weight: Any) -> Any:
        return x

    with pytest.raises(UsageError, match="eps is missing from the signature"):
        declare("rms_norm", norm)
    assert declare("rms_norm", norm, conventions={"eps": 1e-5}).fixed == {"eps": 1e-5}
    assert declare("rms_norm", norm, limits={"eps": {1e-5}}).fixed == {"eps": 1e-5}
    assert declare("rotary", lambda x, positions: x).fixed == {"base": 10000.0, "pairing": "interleaved"}


@pytest.mark.parametrize("wrong", [{"moon_phase": "full"}, {"empty_row": "one"}, {1: 2}, {"empty_row": None}])
def test_unknown_conventions_are_listed(wrong: dict[Any, Any]) -> None:
    with pytest.raises(UsageError, match=r"empty_row|zeros"):
        declare("attention", attention, conventions=wrong)


def test_defaults_other_than_the_contracts_are_kept_as_text_and_travel() -> None:
    def rotary(x: Any, positions: Any, *, base: float = 500.0, pairing: str = "interleaved", rotary_dim: Any = (1, 2)) -> Any:
        return x
    made = declare("rotary", rotary)
    assert made.defaults == {"base": "500.0", "rotary_dim": "a tuple"}
    assert Declaration.from_json(json.loads(json.dumps(made.to_json()))).defaults == made.defaults
