"""A result of another form than the call's is a failure of the implementation, whatever property stumbles over it."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from assay import registry
from assay.contract.declaration import declare
from assay.run.judge import Settings
from assay.run.judging import Bench
from assay.run.plan import Selection, make_plan


def one_token_less(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)[..., :-1]


def squeezed(logits: Tensor, *, temperature: float = 1.0, top_k: int | None = None) -> Tensor:
    return (logits / temperature).squeeze()


def three_results(x: Tensor, w_router: Tensor, *, top_k: int) -> list[Tensor]:
    scores, chosen = (x @ w_router.T).topk(top_k)
    return [scores.softmax(-1), chosen, chosen]


@pytest.mark.parametrize(("kind", "function"), [
    ("layer_norm", one_token_less), ("logits_filter", squeezed), ("router", three_results)])
def test_no_property_takes_a_wrong_form_for_a_fault_of_the_harness(kind: str, function: Callable[..., Any]) -> None:
    made = declare(kind, function, name="mine", origin="test", dtypes=("float32",))
    bench = Bench([{"isolated": False, "declared": [made]}], Settings(profile="quick", shrink_tries=0), None)
    found = {bench.run(case)["status"] for case in make_plan([made], registry.properties(kind), Selection()).cases}
    assert "fail" in found and "harness-error" not in found
