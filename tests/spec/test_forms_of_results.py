"""What a call gives back has the form that the contract names: no tuple of one, no generator, no coroutine."""
from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from assay import registry
from assay.contract.declaration import declare
from assay.run.judge import Settings
from assay.run.judging import Bench
from assay.run.plan import Selection, make_plan


def a_tuple_of_one(x: Tensor, *, dim: int = -1) -> tuple[Tensor]:
    return (torch.softmax(x, dim),)


def a_generator(x: Tensor, *, dim: int = -1) -> Iterator[Tensor]:
    yield torch.softmax(x, dim)


async def a_coroutine(x: Tensor, *, dim: int = -1) -> Tensor:
    return torch.softmax(x, dim)


@pytest.mark.parametrize("function", [a_tuple_of_one, a_generator, a_coroutine], ids=lambda function: function.__name__)
@pytest.mark.filterwarnings("ignore:coroutine")
def test_a_result_of_another_form_fails_and_is_no_fault_of_ours(function: Callable[..., Any]) -> None:
    made = declare("softmax", function, name="mine", origin="test", dtypes=("float32",))
    properties = [prop for prop in registry.properties("softmax") if prop.id.partition("/")[2] in (
        "results_have_the_right_form", "same_call_gives_same_result", "every_element_is_written")]
    plan = make_plan([made], properties, Selection())
    bench = Bench([{"isolated": False, "declared": [made]}], Settings(profile="quick", shrink_tries=0), None)
    found = {case.property.partition("/")[2]: bench.run(case) for case in plan.cases}
    assert found["results_have_the_right_form"]["status"] == "fail"
    assert "harness-error" not in {one["status"] for one in found.values()}


def strided(x: Tensor, *, dim: int = -1) -> Tensor:
    """One column of a wider result: a single element may have any stride."""
    found = torch.softmax(x, dim)
    return torch.stack([found] * 5, -1)[..., 2]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_view_of_any_stride_is_a_result(dtype: str) -> None:
    made = declare("softmax", strided, name="mine", origin="test", dtypes=(dtype,))
    wanted = [f"softmax/{name}" for name in ("earlier_calls_do_not_matter", "copies_compute_the_same", "gradient_is_the_formula")]
    plan = make_plan([made], registry.properties("softmax"), Selection(only=tuple(wanted)))
    bench = Bench([{"isolated": False, "declared": [made]}], Settings(profile="quick", shrink_tries=0), None)
    assert [bench.run(case)["status"] for case in plan.cases] == ["pass"] * 3
