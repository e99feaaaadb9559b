"""The fast variants do the work and take the memory that they are written for, at sizes beyond those of the specification.

Results are held within the bars that the forms of the formula give in float64: a wrong tile is off in the first digits.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from bars import all_within, formula, within
from torch import Tensor

from assay import registry
from assay.impls import chunked_cross_entropy as chunked
from assay.impls._tiles import Tiling
from assay.impls.flash_attention import _flash
from assay.impls.grouped_moe import by_segments
from assay.numbers.arithmetic import Arithmetic
from assay.numbers.bound import Bounded, engine
from assay.numbers.evaluate import evaluate
from assay.run.counting import Counter
from assay.run.layouts import Placed

HEADS, WIDTH = 2, 8


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def attended(length: int, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    return {name: drawn(1, HEADS, length, WIDTH, seed=i, dtype=dtype) for i, name in enumerate("qkv")}


def counted(call: Callable[[], Any], *arguments: Tensor) -> dict[str, int]:
    """Counts of one call; `arguments` are not counted as memory that it made."""
    with Counter({str(i): Placed(x, x, x, ((), (), 0)) for i, x in enumerate(arguments)}) as counter:
        call()
    return counter.counts


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (3, 5), (16, 7), (64, 64), (100, 100)])
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"window": 4}, {"softcap": 2.0, "causal": True}], ids=str)
def test_any_tile_size_gives_the_same_gradients(rows: int, columns: int, options: dict[str, Any]) -> None:
    q, k, v = (drawn(2, heads, length, 4, seed=length, dtype=torch.float64).requires_grad_()
               for heads, length in ((4, 17), (2, 23), (2, 23)))
    offset = 6 if options.get("causal") or options.get("window") else None
    tiling = Tiling(rows, columns, 0.5, offset=offset, window=options.get("window"), softcap=options.get("softcap"))
    out = _flash(q, k, v, tiling)[0]
    above = drawn(*out.shape, dtype=torch.float64)
    exact = evaluate(registry.forms("attention"), {"q": q, "k": k, "v": v, "scale": 0.5, **options}, "float64", Arithmetic(),
                     upstream=above, wrt=("q", "k", "v"))
    all_within((out, *torch.autograd.grad(out, (q, k, v), above)), exact)


@pytest.mark.parametrize("gradients", [False, True])
def test_flash_takes_memory_in_proportion_to_the_length(gradients: bool) -> None:
    """What is a + b·T at most doubles with T, and nothing has T² elements."""
    flash = registry.get("attention", "flash-torch")

    def counts(length: int) -> dict[str, int]:
        tensors = {name: x.requires_grad_(gradients) for name, x in attended(length).items()}
        above = drawn(1, HEADS, length, WIDTH)

        def call() -> None:
            out = flash(**tensors, causal=True)
            if gradients:
                torch.autograd.grad(out, list(tensors.values()), above)

        return counted(call, *tensors.values(), above)

    short, long = counts(512), counts(1024)
    assert long["peak_bytes"] <= 2 * short["peak_bytes"]
    assert long["largest_bytes"] <= 2 * short["largest_bytes"] < 1024**2


@pytest.mark.parametrize("name", ["sliding-window-blocks", "flash-torch"])
def test_window_work_grows_with_the_length_alone(name: str) -> None:
    """Multiply-adds are a·T + b, exactly: twice the length adds twice as many as the length before added."""
    variant = registry.get("attention", name)
    first, second, third = (counted(lambda n=n: variant(**attended(n), window=32))["multiply_adds"] for n in (256, 512, 1024))
    assert third - second == 2 * (second - first) > 0


def test_sliding_window_needs_a_window() -> None:
    with pytest.raises(NotImplementedError, match="window: must be given"):
        registry.get("attention", "sliding-window-blocks")(**attended(4), causal=True)


def test_flash_refuses_a_bias_that_wants_a_gradient() -> None:
    with pytest.raises(NotImplementedError, match="bias: no gradient"):
        registry.get("attention", "flash-torch")(**attended(4), bias=torch.zeros(4, 4, requires_grad=True))


def test_split_kv_reads_what_is_in_reach_alone() -> None:
    split = registry.get("attention", "split-kv")
    tensors = attended(1024)
    tensors["q"] = tensors["q"][:, :, :1]
    within(split(**tensors), formula("attention", tensors))
    assert counted(lambda: split(**tensors, window=32))["multiply_adds"] <= 2 * 32 * HEADS * 2 * WIDTH


def test_split_kv_without_keys_gives_zeros_whatever_the_queries() -> None:
    """Queries whose sum overflows too."""
    q, none = torch.full((1, HEADS, 2, WIDTH), torch.finfo(torch.float32).max), torch.zeros(1, HEADS, 0, WIDTH)
    q.requires_grad_()
    out = registry.get("attention", "split-kv")(q, none, none)
    assert torch.equal(out, torch.zeros_like(q))
    assert torch.equal(torch.autograd.grad(out.sum(), q)[0], torch.zeros_like(q))


def test_paged_never_holds_the_cache() -> None:
    paged, size = registry.get("paged_attention", "paged-torch"), 16
    q, cache = drawn(2, HEADS, WIDTH), drawn(128, size, HEADS, WIDTH)
    table, lengths = torch.arange(128).reshape(2, 64), torch.tensor([1024, 900])
    counts = counted(lambda: paged(q, cache, cache, table, lengths))
    assert counts["largest_bytes"] <= 2 * cache[0].nbytes
    assert counts["peak_bytes"] < cache.nbytes // 4


def test_experts_without_a_token_multiply_nothing() -> None:
    weights = drawn(4, 3, 5), drawn(4, 3, 5), drawn(4, 5, 3)
    counts = counted(lambda: by_segments(drawn(6, 5), [0, 6, 6, 6], *weights))
    assert counts["multiply_adds"] == 6 * 3 * (5 + 5 + 5)


def test_chunked_cross_entropy_takes_the_same_memory_for_any_large_vocabulary() -> None:
    loss, targets = registry.get("cross_entropy", "chunked-cross-entropy"), torch.arange(2)
    small, large = drawn(2, 8 * chunked.LARGEST), drawn(2, 32 * chunked.LARGEST)
    few, many = (counted(lambda z=z: loss(z, targets), z, targets)["peak_bytes"] for z in (small, large))
    assert few == many


@pytest.mark.parametrize("size", [1, chunked.SMALLEST, chunked.SMALLEST + 1, 5 * chunked.SMALLEST - 1, 100])
def test_chunks_add_up_to_the_logarithm_of_the_sum(size: int) -> None:
    logits = drawn(3, size, dtype=torch.float64)
    with engine(Arithmetic().model("float64")):
        exact = Bounded(logits)
        wanted = exact.logsumexp(-1), exact.sum(-1)
    for one, right in zip(chunked.log_sum_exp(logits), wanted, strict=True):
        within(one, right)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_fused_norm_keeps_its_sum_and_a_number_a_row(dtype: torch.dtype) -> None:
    """What is kept for the gradients: no second copy of the rows."""
    x, residual, weight = (drawn(*shape, seed=i, dtype=dtype).requires_grad_() for i, shape in enumerate(((5, 32), (5, 32), (32,))))
    kept: list[tuple[int, ...]] = []

    def keep(saved: Tensor) -> Tensor:
        kept.append(tuple(saved.shape))
        return saved

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda saved: saved):
        registry.get("add_rms_norm", "fused-add-rms-norm")(x, residual, weight, eps=1e-5)
    assert sorted(kept) == [(5, 1), (5, 32), (32,)]
