"""The Triton kernels, interpreted on the CPU: each within its kind's specification, each proven to have run.

Only where triton is installed, which `make setup` leaves out for its size (286 MB): `make triton` installs it and runs this file.
"""
from __future__ import annotations

import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from bars import all_within, formula, within
from torch import Tensor

from assay import registry
from assay.errors import NotExercisedError
from assay.numbers.arithmetic import Arithmetic
from assay.numbers.evaluate import evaluate
from assay.numbers.forms import Form
from assay.run.counting import Counter
from assay.run.judge import Settings
from assay.run.judging import Bench
from assay.run.plan import Selection, make_plan

pytest.importorskip("triton", reason="triton is not installed; `make triton` installs it and runs these tests")
try:
    registry.get("softmax", "triton-softmax")(torch.zeros(1, 2))
except NotImplementedError as outgrown:  # the interpreter of triton 3.6 with NumPy 2.4
    pytest.skip(str(outgrown), allow_module_level=True)

FORMULA = "output_is_the_formula"
JUDGED = [
    ("softmax", "triton-softmax", (FORMULA, "gradient_is_the_formula")),
    ("rms_norm", "triton-rms-norm", (FORMULA, "gradients_are_the_formula")),
    ("layer_norm", "triton-layer-norm", (FORMULA, "gradients_are_the_formula")),
    ("add_rms_norm", "triton-add-rms-norm", (FORMULA, "gradients_are_the_formula", "gradient_of_the_sum_goes_straight_through")),
    ("rotary", "triton-rotary", (FORMULA, "gradient_turns_back", "every_sequence_has_its_own_positions")),
    ("gated_feed_forward", "triton-swiglu", (FORMULA, "gradients_are_the_formula")),
    ("attention", "triton-attention", (FORMULA, "gradients_are_the_formula")),
    ("attention", "triton-attention-top-left", (FORMULA, "gradients_are_the_formula")),
    ("blockwise_attention", "triton-blockwise", ("output_is_attention", "gradients_are_those_of_attention")),
    ("cross_entropy", "triton-cross-entropy", (FORMULA, "gradient_is_the_formula")),
    ("cross_entropy", "triton-linear-cross-entropy", (FORMULA, "gradient_is_the_formula")),
    ("moe", "triton-moe", (FORMULA, "gradients_are_the_formula", "work_does_not_grow_with_experts")),
]


def results(kind: str, name: str, only: tuple[str, ...], *dtypes: str) -> list[dict[str, Any]]:
    """What the judge says in the profile quick, of the examples that always run."""
    declared = [made for made in registry.declarations(kind) if made.name == name]
    plan = make_plan(declared, registry.properties(kind), Selection(only, dtypes=dtypes))
    bench = Bench([{"isolated": False, "declarations": [{"kind": kind, "name": name}]}], Settings(profile="quick", most=12), None)
    return [bench.run(case) for case in plan.cases]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("kind", "name", "only"), JUDGED, ids=[name for _, name, _ in JUDGED])
def test_it_is_within_the_specification(kind: str, name: str, only: tuple[str, ...], dtype: str) -> None:
    found = results(kind, name, only, dtype)
    assert {one["property"].partition("/")[2] for one in found} >= set(only) - {"work_does_not_grow_with_experts"}
    assert [(one["status"], one["message"]) for one in found if one["status"] != "pass"] == []


class Pretender:
    """Has a kernel's place, and computes with torch what it should have."""

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        def weigh(x: Tensor, y: Tensor, *rest: Any, **options: Any) -> None:
            y.copy_(x.softmax(-1))
        return weigh


def test_a_silent_fallback_is_not_exercised_however_right_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    from assay.impls import triton_softmax

    monkeypatch.setattr(triton_softmax, "weigh", Pretender())
    with pytest.raises(NotExercisedError, match="weigh was not launched"):
        triton_softmax.softmax(torch.ones(2, 3))
    (found,) = results("softmax", "triton-softmax", (FORMULA,), "float32")
    assert found["status"] == "not-exercised"


def test_nothing_imports_triton_before_a_kernel_is_launched() -> None:
    code = ("import sys, torch; from assay import registry; registry.declarations(); print('triton' in sys.modules); "
            "registry.get('softmax', 'triton-softmax')(torch.ones(2, 3)); print('triton' in sys.modules)")
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "False\nTrue\n"


# ------------------------------------------------------------------------------------------------ the fused loss
def of_hidden(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """The sum of −log softmax(hidden·weightᵀ) at the targets."""
    logits = hidden @ weight.mT
    return (logits.logsumexp(-1) - logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)).sum()


def made_backward(upstream: Tensor, wrt: tuple[str, ...], hidden: Tensor, weight: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """The logits' gradient as one tensor, multiplied into both."""
    logits = hidden @ weight.mT
    hit = torch.arange(len(weight)) == targets.unsqueeze(-1)
    slope = ((logits - logits.logsumexp(-1, keepdim=True)).exp() - hit.double()) * upstream
    return {"hidden": slope @ weight, "weight": slope.mT @ hidden}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_fused_loss_and_both_its_gradients_are_within_their_bars(dtype: torch.dtype) -> None:
    from assay.impls.triton_cross_entropy import linear_cross_entropy

    source = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(*shape, generator=source).to(dtype).requires_grad_() for shape in ((19, 40), (75, 40)))
    targets = torch.randint(75, (19,), generator=source)
    loss = linear_cross_entropy(hidden, weight, targets, reduction="sum", chunk=32)
    form = Form("made at once", of_hidden, backward=made_backward)
    arguments = {"hidden": hidden.detach(), "weight": weight.detach(), "targets": targets}
    exact = evaluate((form,), arguments, str(dtype).removeprefix("torch."), Arithmetic(exp="fast"),
                     upstream=torch.ones((), dtype=dtype), wrt=("hidden", "weight"))
    all_within((loss, *torch.autograd.grad(loss, (hidden, weight))), exact)


def test_fused_loss_never_makes_the_logits() -> None:
    from assay.impls.triton_cross_entropy import linear_cross_entropy

    rows, size, width, chunk = 64, 512, 8, 64
    hidden, weight = torch.ones(rows, width, requires_grad=True), torch.ones(size, width, requires_grad=True)
    with Counter({}) as counter:
        linear_cross_entropy(hidden, weight, torch.zeros(rows, dtype=torch.int64), chunk=chunk).backward()
    assert counter.counts["largest_bytes"] <= max(rows * chunk, size * width) * 4


# ------------------------------------------------------------------------------------------------ block sizes
def blocks(module: ModuleType, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    """Tiles of another size than the interpreter's usual one, so that a row is more than one block."""
    usual = module.sizes
    monkeypatch.setattr(module, "sizes", lambda rows: {**usual(rows), "COLUMNS": columns, "ROWS": 2})


@pytest.mark.parametrize("columns", [16, 64])
def test_softmax_of_several_blocks_is_that_of_one(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from assay.impls import triton_softmax

    x = torch.randn(5, 67, generator=torch.Generator().manual_seed(1))
    blocks(triton_softmax, monkeypatch, columns)
    within(triton_softmax.softmax(x), formula("softmax", {"x": x}, arithmetic=Arithmetic(exp="fast")))
