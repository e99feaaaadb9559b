"""Correct ways to compute softmax and attention stay within the bounds; wrong ones leave them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from numeric_ways import DTYPES, Case, attention_case, computed, ratios, softmax_case, worst

from assay.faults.benign_attention import BENIGN as ATTENTION_WAYS
from assay.faults.benign_softmax import BENIGN as SOFTMAX_WAYS
from assay.numbers.arithmetic import Arithmetic
from assay.numbers.evaluate import evaluate
from assay.numbers.forms import Form
from assay.reference import attention as attention_reference
from assay.reference import softmax as softmax_reference

SEEDS = 14  # per type; all ways run on each


def _violations(
    cases: list[Case], forms: Any, ways: dict[str, Callable[..., torch.Tensor]], wrt: tuple[str, ...]
) -> list[str]:
    found = []
    for case in cases:
        expected = evaluate(forms, case.arguments, case.dtype, Arithmetic(), upstream=case.upstream, wrt=wrt)
        if expected.left_range:
            continue
        for name, way in ways.items():
            try:
                actual = computed(way, case, wrt)
            except NotImplementedError:
                continue
            found += [
                f"{name} {part} {r:.2f} {case.label}" for part, r in ratios(actual, expected).items() if not r <= 1
            ]
    return found


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_benign_softmax_stays_within_bounds(dtype: torch.dtype) -> None:
    cases = [softmax_case(seed, dtype) for seed in range(SEEDS)]
    assert not _violations(cases, softmax_reference.FORMS, SOFTMAX_WAYS, ("x",))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_benign_attention_stays_within_bounds(dtype: torch.dtype) -> None:
    cases = [attention_case(seed, dtype) for seed in range(SEEDS)]
    assert not _violations(cases, attention_reference.FORMS, ATTENTION_WAYS, ("q", "k", "v"))


def _plain_case(dtype: torch.dtype, **options: Any) -> Case:
    generator = torch.Generator().manual_seed(3)
    q, k, v, upstream = (torch.randn(2, 4, 17, 16, generator=generator).to(dtype) for _ in range(4))
    return Case({"q": q, "k": k, "v": v, **options}, upstream, dtype, "plain")


FAULTS: dict[str, tuple[dict[str, Any], Callable[[dict[str, Any]], dict[str, Any]]]] = {
    "scale 1/sqrt(D+1)": ({}, lambda a: {**a, "scale": 1 / math.sqrt(a["q"].shape[-1] + 1)}),
    "causal off by one": (
        {"causal": True},
        lambda a: {**a, "causal": False, "mask": torch.ones(17, 17, dtype=torch.bool).tril(1)},
    ),
    "last key dropped": ({}, lambda a: {**a, "k": a["k"][:, :, :-1], "v": a["v"][:, :, :-1]}),
    "heads swapped": ({}, lambda a: {**a, "k": a["k"].flip(1)}),
    "window one too wide": ({"window": 3}, lambda a: {**a, "window": 4}),
}


# 3 % of the scale is within eight bits of products at width 16: bfloat16 cannot tell, the wider types must.
TOLD = [
    (fault, dtype)
    for fault in FAULTS
    for dtype in DTYPES
    if not (fault.startswith("scale") and dtype == torch.bfloat16)
]


@pytest.mark.parametrize(("fault", "dtype"), TOLD, ids=str)
def test_faults_leave_the_bounds(fault: str, dtype: torch.dtype) -> None:
    options, spoil = FAULTS[fault]
    case = _plain_case(dtype, **options)
    expected = evaluate(attention_reference.FORMS, case.arguments, dtype, Arithmetic())
    wrong = attention_reference.attention(**spoil(case.arguments))
    assert worst(wrong, expected.outputs[0]) > 1


def test_paths_reach_into_dicts_and_unused_arguments_have_zero_gradients() -> None:
    def forward(x: torch.Tensor, params: dict[str, torch.Tensor]) -> torch.Tensor:
        return x * params["attn.w_q"]

    ones = torch.ones(3)
    found = evaluate(
        (Form("product", forward),),
        {"x": ones, "params": {"attn.w_q": 2 * ones, "spare": ones}},
        torch.float32,
        Arithmetic(),
        upstream=ones,
        wrt=("params/attn.w_q", "params/spare"),
    )
    assert found.gradients["params/attn.w_q"].value.tolist() == [1.0, 1.0, 1.0]
    assert found.gradients["params/spare"].value.tolist() == [0.0, 0.0, 0.0]
    assert found.gradients["params/spare"].is_exact
