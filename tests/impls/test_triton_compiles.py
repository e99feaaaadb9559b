"""The Triton kernels compile for a GPU where there is none: with the block sizes that they have there, in bfloat16.

Only where triton is installed: `make triton`.
"""
from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from assay.impls import (
    _triton,
    triton_add_norm,
    triton_attention,
    triton_cross_entropy,
    triton_moe,
    triton_norms,
    triton_rotary,
    triton_softmax,
    triton_swiglu,
)

pytest.importorskip("triton", reason="triton is not installed; `make triton` installs it and runs these tests")

MODULES = (triton_add_norm, triton_attention, triton_cross_entropy, triton_moe, triton_norms, triton_rotary, triton_softmax,
           triton_swiglu)
TYPES = {torch.float32: "*fp32", torch.bfloat16: "*bf16", torch.int32: "*i32", torch.int64: "*i64"}
CAPABILITY = 90


def type_of(value: Any) -> str:
    """The type in Triton's words."""
    return TYPES[value.dtype] if isinstance(value, Tensor) else "i32" if isinstance(value, int) else "fp32"


def compiling(code: dict[str, str]) -> Callable[..., None]:
    """What stands in for a launch: it compiles, runs nothing, and leaves the PTX by kernel name."""
    def launch(kernel: _triton.Kernel, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        from triton.backends.compiler import GPUTarget
        from triton.compiler import ASTSource, compile

        told = {name: options.pop(name) for name in _triton.COMPILER_OPTIONS & options.keys()}
        named = {**dict(zip(inspect.signature(kernel.function).parameters, arguments, strict=False)), **options}
        fixed = {name: value for name, value in named.items() if name.isupper()}
        types = {name: "constexpr" if name in fixed else type_of(value) for name, value in named.items()}
        made = compile(ASTSource(kernel.made("cuda"), types, fixed), target=GPUTarget("cuda", CAPABILITY, 32), options=told)
        code[kernel.name] = made.asm["ptx"]
        kernel.launches += 1
    return launch


@pytest.fixture
def code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """Block sizes and types as on a GPU; launches compile, and nothing is taken from an earlier run."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    answers: dict[str, Callable[[Any], Any]] = {
        "on_cuda": lambda x: True, "processors": lambda x: 132, "staged": lambda x: x, "roomy": lambda x: True}
    for module in (_triton, *MODULES):
        for name, answer in answers.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, answer)
    found: dict[str, str] = {}
    monkeypatch.setattr(_triton.Kernel, "launch", compiling(found))
    return found


def half(*shape: int) -> Tensor:
    return torch.zeros(*shape, dtype=torch.bfloat16, requires_grad=True)


def norm() -> Tensor:
    return triton_norms.layer_norm(half(8, 4096), half(4096), half(4096), eps=1e-5)


def add_norm() -> Tensor:
    y, summed = triton_add_norm.add_rms_norm(half(8, 4096), half(8, 4096), half(4096), eps=1e-5)
    return y + summed


def attention() -> Tensor:
    return triton_attention.attention(half(1, 4, 300, 128), half(1, 2, 300, 128), half(1, 2, 300, 128), causal=True, window=200)


def fused_loss() -> Tensor:
    return triton_cross_entropy.linear_cross_entropy(half(200, 512), half(9000, 512), torch.zeros(200, dtype=torch.int64))


def experts() -> Tensor:
    return triton_moe.moe(half(1, 64, 128), half(4, 128), half(4, 64, 128), half(4, 64, 128), half(4, 128, 64), top_k=2)


CALLS: dict[str, tuple[ModuleType, Callable[[], Tensor], bool]] = {
    "softmax": (triton_softmax, lambda: triton_softmax.softmax(half(8, 5000)), False),
    "norms": (triton_norms, norm, False),
    "add_norm": (triton_add_norm, add_norm, False),
    "rotary": (triton_rotary, lambda: triton_rotary.rotary(half(1, 2, 9, 128), torch.arange(9), rotary_dim=64), False),
    "attention": (triton_attention, attention, True),
    "cross_entropy": (triton_cross_entropy, lambda: triton_cross_entropy.cross_entropy(
        half(8, 5000), torch.zeros(8, dtype=torch.int64)), False),
    "fused_loss": (triton_cross_entropy, fused_loss, True),
    "experts": (triton_moe, experts, True),
}


@pytest.mark.parametrize("name", CALLS)
def test_forward_and_backward_compile(name: str, code: dict[str, str]) -> None:
    module, call, multiplies = CALLS[name]
    out = call()
    out.backward(torch.zeros_like(out))
    own = {kernel for kernel in code if hasattr(module, kernel)}
    assert len(own) >= (1 if name == "rotary" else 2)
    assert all(".visible .entry" in text for text in code.values())
    if multiplies:  # by tensor cores, where anything is multiplied
        products = {kernel for kernel in own if kernel != "row_products"}
        assert {kernel for kernel in products if "mma" in code[kernel]} == products
