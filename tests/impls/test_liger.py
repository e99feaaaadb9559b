"""The bridge to Liger-Kernel: its kernels are what runs, all that was replaced is put back, and what it hands over is right."""
from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from bars import formula, within
from torch import Tensor

from assay import registry
from assay.impls import _liger

pytest.importorskip("triton", reason="triton is not installed; the extra `liger` has it")
pytest.importorskip("liger_kernel", reason="liger-kernel is not installed; the extra `liger` has it")


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


SMALL: dict[tuple[str, str], tuple[dict[str, Any], tuple[str, str]]] = {
    ("rms_norm", "liger-rms-norm"): (
        {"x": drawn(2, 5), "weight": drawn(5, seed=1), "eps": 1e-5}, ("_rms_norm_forward_kernel", "_rms_norm_backward_kernel")),
    ("rms_norm", "liger-rms-norm-gemma"): (
        {"x": drawn(2, 5), "weight": drawn(5, seed=1), "eps": 1e-5}, ("_rms_norm_forward_kernel", "_rms_norm_backward_kernel")),
    ("add_rms_norm", "liger-add-rms-norm"): (
        {"x": drawn(2, 5), "residual": drawn(2, 5, seed=2), "weight": drawn(5, seed=1), "eps": 1e-5},
        ("_fused_add_rms_norm_forward_kernel", "_fused_add_rms_norm_backward_kernel")),
    ("layer_norm", "liger-layer-norm"): (
        {"x": drawn(2, 5), "weight": drawn(5, seed=1), "bias": drawn(5, seed=2), "eps": 1e-5},
        ("_layer_norm_forward_kernel", "_layer_norm_backward_kernel")),
    ("rotary", "liger-rotary"): ({"x": drawn(2, 3, 1, 4), "positions": torch.tensor([7])}, ("_triton_rope", "_triton_rope")),
    ("gated_feed_forward", "liger-swiglu"): (
        {"x": drawn(2, 3), "w_gate": drawn(4, 3), "w_up": drawn(4, 3, seed=1), "w_down": drawn(3, 4)},
        ("_swiglu_forward_kernel", "_swiglu_backward_kernel")),
    ("gated_feed_forward", "liger-geglu"): (
        {"x": drawn(2, 3), "w_gate": drawn(4, 3), "w_up": drawn(4, 3, seed=1), "w_down": drawn(3, 4)},
        ("_geglu_tanh_forward_kernel", "_geglu_tanh_backward_kernel")),
    ("softmax", "liger-softmax"): (
        {"x": drawn(2, 5)}, ("_softmax_single_block_forward_kernel", "_softmax_single_block_backward_kernel")),
    ("cross_entropy", "liger-cross-entropy"): (  # the forward makes the gradient too; the backward scales it
        {"logits": drawn(3, 5), "targets": torch.tensor([1, -100, 4])}, ("liger_cross_entropy_kernel", "element_mul_kernel")),
    ("cross_entropy", "liger-linear-cross-entropy"): (
        {"logits": drawn(3, 5), "targets": torch.tensor([1, -100, 4])}, ("liger_cross_entropy_kernel", "element_mul_kernel")),
}
FIXED = {"liger-rotary": {"pairing": "half"}, "liger-geglu": {"activation": "gelu_tanh"}}


@pytest.mark.parametrize(("kind", "name"), SMALL)
def test_its_kernels_ran_and_gave_the_formula(kind: str, name: str) -> None:
    call, (forward, backward) = SMALL[kind, name]
    first = next(iter(call))
    given = {**call, first: call[first].clone().requires_grad_()}
    before = _liger.LAUNCHED.copy()
    out = registry.get(kind, name)(**given)
    found = out[0] if isinstance(out, tuple) else out
    assert _liger.LAUNCHED[forward] == before[forward] + 1
    within(found, formula(kind, {**call, **FIXED.get(name, {})}))
    (2 * found.sum()).backward()
    assert _liger.LAUNCHED[backward] > before[backward] and torch.isfinite(given[first].grad).all()
    assert torch.equal(given[first].detach(), call[first]), "what was given is changed"


@pytest.mark.parametrize("name", ["liger-dpo", "liger-simpo", "liger-cpo"])
def test_its_preference_losses_are_the_formula(name: str) -> None:
    call = {"r_chosen": drawn(4), "r_rejected": drawn(4, seed=1)}
    within(registry.get("preference_loss", name)(**call), formula("preference_loss", call))


def test_its_policy_loss_is_the_formula() -> None:
    tensors = {name: drawn(3, 4, seed=seed) for seed, name in enumerate(("logp", "logp_old", "logp_ref", "advantage"))}
    call = {**tensors, "clip": 0.2, "kl": 0.5, "mask": drawn(3, 4, seed=4) > 0}
    within(registry.get("policy_loss", "liger-grpo")(**call), formula("policy_loss", {**call, "kl_estimator": "k3"}))


def test_all_that_was_replaced_is_put_back() -> None:
    tl, norms = pytest.importorskip("triton.language"), pytest.importorskip("liger_kernel.ops.rms_norm")
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    before = [dict(vars(one)) for one in (tl, norms)], interpreter._implicit_cvt
    call, _ = SMALL["rms_norm", "liger-rms-norm"]
    registry.get("rms_norm", "liger-rms-norm")(**call)
    assert [dict(vars(one)) for one in (tl, norms)] == before[0] and interpreter._implicit_cvt is before[1]
    assert type(norms._rms_norm_forward_kernel).__name__ == "JITFunction"


def test_the_offset_is_added_to_the_weight() -> None:
    """The bridge leaves it at 0; Gemma's is 1."""
    x, weight = drawn(2, 5), torch.tensor([0.5, -0.5, 1.0, 2.0, -1.0])
    found = _liger.function("rms_norm", "LigerRMSNormFunction").apply(x, weight, 1e-5, 1.0, "gemma", False)
    within(found, formula("rms_norm", {"x": x, "weight": weight + 1, "eps": 1e-5}))


def test_bfloat16_is_refused_where_it_would_be_cut_off() -> None:
    with pytest.raises(NotImplementedError, match="needs a GPU"):
        registry.get("softmax", "liger-softmax")(torch.zeros(2, 3, dtype=torch.bfloat16))


@pytest.mark.parametrize("finding", ["liger_in_place", "liger_rotary_one_token", "liger_cross_entropy_strides"])
def test_the_findings_stand_or_the_copies_are_needless(finding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own script makes the interpreter's kernels: in a process of its own, for the variable is read on import."""
    page = Path(__file__).resolve().parents[2] / "reports" / "findings" / f"{finding}.py"
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert subprocess.run([sys.executable, str(page)], capture_output=True).returncode == 1
