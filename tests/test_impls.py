"""The built-in implementations translate the call rightly: each agrees with its kind's reference wherever it claims to.

Rounding is not judged here (that is what `assay check` is for): what is looked for is a wrong axis, option or
convention, which is off in the first digits. So torch's own closeness is the measure, in float64 where the library
keeps it, else in float32.
"""
from __future__ import annotations

import inspect
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

import assay
from assay import registry
from assay.contract.declaration import Declaration

Example = Mapping[str, Any]
# These turn angles or norms into float32 whatever they are given.
FLOAT32_INSIDE = ("hf-llama-rms-norm", "hf-llama-rotary", "hf-gpt-neox-rotary", "hf-cohere-rotary", "hf-gptj-rotary",
                  "rotary-embedding-torch", "hf-llama-eager",
                  "hf-mixtral-router", "hf-mixtral-moe", "hf-deepseek-v3-router", "hf-mixtral-load-balancing",
                  "hf-switch-load-balancing", "hf-qwen3-attention", "hf-olmo2-attention", "hf-deepseek-v3-attention",
                  "hf-deepseek-v2-attention", "hf-switch-router", "hf-nllb-router", "x-transformers-attend",
                  "x-transformers-sink", "x-transformers-attention", "x-transformers-rotary",
                  "timm-rms-norm-fp32", "timm-layer-norm-fp32", "timm-rotary", "timm-attention-rope")

SINGLE = ("triton-", "jax-", "liger-", "mlx-")  # they take float32 at most


class Draw:
    """Tensors from one generator, in one type."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype, self.generator = dtype, torch.Generator().manual_seed(0)

    def __call__(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64).to(self.dtype)

    def ids(self, below: int, *shape: int) -> Tensor:
        return torch.randint(below, shape, generator=self.generator)

    def mask(self, *shape: int) -> Tensor:
        """One in three is hidden; the first column is not, so that no row is empty."""
        keep = torch.rand(*shape, generator=self.generator) > 0.3
        keep[..., 0] = True
        return keep


def attention(d: Draw) -> Iterator[Example]:
    square: Example = {"q": d(2, 4, 5, 8), "k": d(2, 4, 5, 8), "v": d(2, 4, 5, 8)}
    long: Example = {"q": d(2, 4, 5, 8), "k": d(2, 2, 9, 8), "v": d(2, 2, 9, 8)}
    yield from (square, long, {**square, "causal": True}, {**square, "scale": 0.3}, {**long, "causal": True})
    yield {**long, "mask": d.mask(5, 9)}
    yield {**long, "mask": d.mask(2, 1, 5, 9), "causal": True}
    yield {**long, "mask": d.mask(4, 5, 9)}
    yield {**square, "window": 2}
    yield {**long, "window": 3, "causal": True}
    yield {**long, "bias": d(1, 4, 5, 9), "mask": d.mask(2, 4, 5, 9), "causal": True, "scale": 0.5}
    yield {**long, "softcap": 1.5, "bias": d(4, 5, 9), "causal": True}
    yield {**long, "v": d(2, 2, 9, 3)}
    yield {"q": d(1, 1, 1, 1), "k": d(1, 1, 1, 1), "v": d(1, 1, 1, 1)}
    yield {"q": d(1, 2, 4, 8), "k": d(1, 2, 2, 8), "v": d(1, 2, 2, 8), "causal": True}  # the first two rows see nothing
    yield {"q": d(1, 4, 1, 8), "k": d(1, 2, 6, 8), "v": d(1, 2, 6, 8), "mask": d.mask(1, 4, 1, 6)}


def sink_attention(d: Draw) -> Iterator[Example]:
    long: Example = {"q": d(2, 4, 5, 8), "k": d(2, 2, 9, 8), "v": d(2, 2, 9, 3), "sinks": d(4)}
    yield from (long, {**long, "causal": True}, {**long, "window": 3, "scale": 0.3})
    yield {"q": d(1, 2, 4, 8), "k": d(1, 2, 2, 8), "v": d(1, 2, 2, 8), "sinks": d(2), "causal": True}


def packed_attention(d: Draw) -> Iterator[Example]:
    bounds = torch.tensor([0, 3, 4, 9], dtype=torch.int32)
    same: Example = {"q": d(9, 4, 8), "k": d(9, 4, 8), "v": d(9, 4, 8), "cu_seqlens_q": bounds, "cu_seqlens_k": bounds}
    yield from (same, {**same, "scale": 0.3}, {**same, "causal": True})
    yield {**same, "k": d(9, 2, 8), "v": d(9, 2, 3), "causal": True}
    yield {**same, "k": d(7, 4, 8), "v": d(7, 4, 8), "cu_seqlens_k": torch.tensor([0, 1, 5, 7], dtype=torch.int32)}


def qk_norm_attention(d: Draw) -> Iterator[Example]:
    plain: Example = {"q": d(2, 4, 5, 8), "k": d(2, 2, 5, 8), "v": d(2, 2, 5, 8), "w_q": d(8), "w_k": d(8), "eps": 1e-5}
    joint: Example = {**plain, "w_q": d(32), "w_k": d(16), "joint": True}
    for one in (plain, joint):
        yield from (one, {**one, "causal": True}, {**one, "window": 2}, {**one, "scale": 0.3})
        yield {**one, "positions": torch.arange(5) + 3, "pairing": "half", "causal": True}


def latent_attention(d: Draw) -> Iterator[Example]:
    """Two heads of 4 + 2 channels and values of 3, a latent of 6."""
    plain: Example = {"x": d(2, 5, 8), "w_q": d(12, 8), "w_kv_a": d(8, 8), "w_kv_norm": d(6), "w_kv_b": d(14, 6), "w_o": d(8, 6),
                      "num_heads": 2}
    turned: Example = {**plain, "positions": torch.arange(5) + 3, "causal": True}
    yield from (plain, turned, {**turned, "pairing": "half"}, {**turned, "scale": 0.3})
    yield {**turned, "w_q": d(12, 4), "w_q_a": d(4, 8), "w_q_norm": d(4)}


def capacity_moe(d: Draw) -> Iterator[Example]:
    plain: Example = {"x": d(2, 6, 5), "w_router": d(4, 5), "w_gate": d(4, 3, 5), "w_up": d(4, 3, 5), "w_down": d(4, 5, 3)}
    for capacity in (1, 2, 3, 50):
        yield {**plain, "top_k": 1, "capacity": capacity}
        yield {**plain, "top_k": 2, "capacity": capacity}
        yield {**plain, "top_k": 2, "capacity": capacity, "priority": "choice"}


def sigmoid_router(d: Draw) -> Iterator[Example]:
    """One expert a token where the order of several is free."""
    plain: Example = {"logits": d(6, 8), "bias": d(8), "top_k": 1}
    yield from (plain, {**plain, "normalize": False, "scale": 2.5})
    yield {**plain, "n_groups": 4, "top_groups": 2, "normalize": False}


def load_balancing_loss(d: Draw) -> Iterator[Example]:
    logits = d(7, 5)
    best: Example = {"logits": logits, "indices": logits.topk(2, -1).indices}
    yield from (best, {**best, "mask": torch.arange(7) < 4})


def softmax(d: Draw) -> Iterator[Example]:
    for dim in (-1, 0, 1):
        yield {"x": d(3, 4, 5), "dim": dim}


def rotary(d: Draw) -> Iterator[Example]:
    positions = torch.arange(5) + 3
    yield from ({"x": d(2, 3, 5, width), "positions": positions} for width in (2, 4, 8, 64))
    yield {"x": d(2, 3, 5, 8), "positions": torch.stack([positions, positions * 7])}
    yield {"x": d(2, 3, 5, 8), "positions": positions, "base": 500.0}
    yield {"x": d(2, 3, 5, 8), "positions": positions, "rotary_dim": 4}
    lists = {"short_factor": [1.0, 1.5, 2.0, 3.0], "long_factor": [1.0, 2.0, 4.0, 8.0]}
    for scaling in (
        {"type": "linear", "factor": 4.0}, {"type": "ntk", "factor": 4.0},
        {"type": "yarn", "factor": 4.0, "original_length": 64, "beta_fast": 32.0, "beta_slow": 1.0},
        {"type": "yarn", "factor": 4.0, "original_length": 64, "attention_factor": 1.25},
        {"type": "longrope", "factor": 4.0, "original_length": 64, **lists},
        {"type": "longrope", "factor": 4.0, "original_length": 4, **lists},
        {"type": "llama3", "factor": 8.0, "original_length": 64, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    ):
        yield {"x": d(2, 3, 5, 8), "positions": positions, "scaling": scaling}


def norms(d: Draw) -> Iterator[Example]:
    for shape in ((3, 5), (2, 3, 8), (1, 2, 3, 1)):
        yield {"x": d(*shape), "weight": d(shape[-1]), "bias": d(shape[-1]), "eps": 1e-5}


def rms_norm(d: Draw) -> Iterator[Example]:
    for example in norms(d):
        yield {name: value for name, value in example.items() if name != "bias"}


def add_rms_norm(d: Draw) -> Iterator[Example]:
    for example in rms_norm(d):
        yield {**example, "residual": d(*example["x"].shape)}


def batch_norm(d: Draw) -> Iterator[Example]:
    for training in (False, True):
        yield {"x": d(7, 5), "weight": d(5), "bias": d(5), "running_mean": d(5), "running_var": d(5).square() + 0.5,
               "training": training, "momentum": 0.3, "eps": 1e-5}


def feed_forward(d: Draw) -> Iterator[Example]:
    for activation in ("relu", "gelu", "gelu_tanh", "silu"):
        weights: Example = {"x": d(2, 3, 5), "w_in": d(7, 5), "w_out": d(5, 7), "activation": activation}
        yield {**weights, "b_in": d(7), "b_out": d(5)}
        yield {**weights, "b_in": None, "b_out": None}


def gated_feed_forward(d: Draw) -> Iterator[Example]:
    for activation in ("silu", "relu", "gelu", "gelu_tanh"):
        yield {"x": d(2, 3, 5), "w_gate": d(7, 5), "w_up": d(7, 5), "w_down": d(5, 7), "activation": activation}


def unembedding(d: Draw) -> Iterator[Example]:
    weights: Example = {"h": d(2, 3, 5), "w_norm": d(5), "w_out": d(7, 5), "eps": 1e-6}
    yield from (weights, {**weights, "norm": "layer", "b_norm": d(5)}, {**weights, "norm": None})


def cross_entropy(d: Draw) -> Iterator[Example]:
    targets = d.ids(7, 6)
    targets[2] = -100
    for reduction in ("mean", "sum", "none"):
        yield {"logits": d(6, 7), "targets": targets, "reduction": reduction}
        yield {"logits": d(6, 7), "targets": targets, "reduction": reduction, "label_smoothing": 0.2}
    yield {"logits": d(6, 7), "targets": d.ids(7, 6), "ignore_index": 3}
    yield {"logits": d(6, 7), "targets": d.ids(7, 6)}
    yield {"logits": d(6, 7), "targets": d.ids(7, 6), "label_smoothing": 0.2}


def lm_loss(d: Draw) -> Iterator[Example]:
    pair: Example = {"logits": d(2, 5, 7), "ids": d.ids(7, 2, 5)}
    yield from (pair, {**pair, "label_smoothing": 0.2}, {**pair, "reduction": "none"}, {**pair, "reduction": "sum"})
    yield {**pair, "mask": d.mask(2, 5), "prompt_lengths": torch.tensor([1, 3])}


def blockwise_attention(d: Draw) -> Iterator[Example]:
    long: Example = {"q": d(2, 4, 5, 8), "k": d(2, 2, 9, 8), "v": d(2, 2, 9, 3)}
    for rows, columns in ((1, 1), (2, 4), (16, 16)):
        sizes = {"block_q": rows, "block_k": columns}
        yield from ({**long, **sizes}, {**long, **sizes, "causal": True}, {**long, **sizes, "mask": d.mask(5, 9), "scale": 0.3})


def paged_attention(d: Draw) -> Iterator[Example]:
    for size in (1, 3):
        yield {"q": d(2, 4, 8), "k_cache": d(12, size, 2, 8), "v_cache": d(12, size, 2, 5), "block_table": d.ids(12, 2, 6),
               "lengths": torch.tensor([6 * size, size])}


def logits_filter(d: Draw) -> Iterator[Example]:
    yield from ({"logits": d(3, 11), **options} for options in (
        {}, {"temperature": 0.5}, {"top_k": 4}, {"top_p": 0.7}, {"temperature": 1.5, "top_k": 6, "top_p": 0.6}))


def multi_head_attention(d: Draw) -> Iterator[Example]:
    weights: Example = {"x": d(2, 5, 8), **{f"w_{name}": d(8, 8) for name in "qkvo"}, "num_heads": 2}
    yield from (weights, {**weights, "causal": True}, {**weights, "key_mask": d.mask(2, 5)})
    yield {**weights, "mask": d.mask(5, 5), "causal": True}
    yield {**weights, "mask": d.mask(2, 5, 5), **{f"b_{name}": d(8) for name in "qkvo"}}
    yield {**weights, "context": d(2, 7, 8), "key_mask": d.mask(2, 7)}
    yield {**weights, "num_heads": 1}


def moe(d: Draw) -> Iterator[Example]:
    for top_k in (1, 2, 4):
        yield {"x": d(2, 3, 5), "w_router": d(4, 5), "w_gate": d(4, 7, 5), "w_up": d(4, 7, 5), "w_down": d(4, 5, 7),
               "top_k": top_k}


EXAMPLES = {
    "multi_head_attention": multi_head_attention, "moe": moe,
    "alibi": lambda d: iter([{"num_heads": h, "q_len": 3, "k_len": k} for h in (1, 4, 6) for k in (3, 5)]),
    "sinusoidal": lambda d: iter([{"positions": torch.arange(9) * 3, "dim": dim} for dim in (2, 8)]),
    "attention": attention, "softmax": softmax, "rotary": rotary, "layer_norm": norms, "rms_norm": rms_norm,
    "add_rms_norm": add_rms_norm,
    "batch_norm": batch_norm, "feed_forward": feed_forward, "gated_feed_forward": gated_feed_forward,
    "unembedding": unembedding, "cross_entropy": cross_entropy, "logits_filter": logits_filter,
    "embedding": lambda d: iter([{"ids": d.ids(6, 2, 3), "weight": d(6, 5)}, {"ids": d.ids(6, 4), "weight": d(6, 1)}]),
    "router": lambda d: iter([{"x": d(6, 5), "w_router": d(8, 5), "top_k": k} for k in (1, 2, 8)]),
    "patchify": lambda d: iter([{"image": d(2, 3, 4, 6), "patch_size": p} for p in (1, 2)]),
    "preference_loss": lambda d: iter([{"r_chosen": d(5), "r_rejected": d(5)}]),
    "sink_attention": sink_attention, "packed_attention": packed_attention, "sigmoid_router": sigmoid_router,
    "qk_norm_attention": qk_norm_attention, "latent_attention": latent_attention, "capacity_moe": capacity_moe,
    "load_balancing_loss": load_balancing_loss, "lm_loss": lm_loss, "blockwise_attention": blockwise_attention,
    "paged_attention": paged_attention,
    "router_z_loss": lambda d: iter([{"logits": d(6, 4)}, {"logits": d(3, 5), "mask": torch.tensor([True, False, True])}]),
}
# What is random is seen in what it must leave alone: the specification judges the distribution.
RANDOM = {
    "dropout": lambda d: {"x": d(40, 50), "p": 0.3, "training": True, "seed": 1},
    "sampler": lambda d: {"logits": d(7), "seed": 1, "num_samples": 50},
    "mlm_mask": lambda d: {"ids": d.ids(20, 4, 50), "special": ~d.mask(4, 50), "mask_id": 20, "vocab_size": 21,
                           "seed": 1},
}


def built_in() -> list[Declaration]:
    """What this folder is about."""
    # Those of the profile deep write and build C++ for each example, half a minute each. What runs on CUDA alone is for `make gpu`.
    # A factory's model has weights of its own: there is no formula that it agrees with.
    return [made for made in registry.declarations() if made.builtin and made.name != "reference" and not made.deep
            and (made.devices is None or "cpu" in made.devices) and not registry.kind_named(made.kind).factory]


def asks_too_much(made: Declaration, example: Example) -> bool:
    """Whether the example uses an option or feature that the implementation does not claim."""
    kind_options = set(example) & set(registry.kind_named(made.kind).options)
    fixed = {name: made.conventions[name] for name in kind_options - made.keywords if name in made.conventions}
    if any(example[name] != value for name, value in fixed.items()):
        return True
    if kind_options - made.keywords - set(fixed):
        return True
    if any(not made.allows(name, value) for name, value in example.items() if isinstance(value, (int, str))):
        return True
    if made.kind == "cross_entropy":  # who takes no id to ignore has promised nothing of one outside the vocabulary
        return not made.claims("ignore_index") and bool((example["targets"] < 0).any())
    if made.kind != "attention":
        return False
    wide = example["v"].shape[-1] != example["k"].shape[-1]
    empty = bool(example.get("causal")) and example["q"].shape[2] > example["k"].shape[2]
    return (wide and not made.claims("value_width")) or (empty and not made.claims("empty_rows"))


def expected(made: Declaration, example: Example) -> Any:
    """The reference's answer under the conventions that were declared."""
    formula = getattr(registry.reference(made.kind), made.kind)
    takes = inspect.signature(formula).parameters
    return formula(**{**{n: v for n, v in made.conventions.items() if n in takes}, **example})


def agree(found: Any, wanted: Any) -> None:
    """Both hold the same numbers, tensor by tensor; routing is compared expert by expert."""
    pairs = zip(found, wanted, strict=True) if isinstance(found, tuple) else [(found, wanted)]
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, equal_nan=True, check_dtype=False)


OPTIONS = {made.kind: set(registry.kind_named(made.kind).options) for made in built_in()}


@pytest.mark.parametrize("made", [made for made in built_in() if made.kind not in RANDOM],
                         ids=lambda made: f"{made.kind}/{made.name}")
def test_it_agrees_with_the_reference(made: Declaration) -> None:
    single = made.name in FLOAT32_INSIDE or made.name.startswith(SINGLE) or made.dtypes == ("float32",)
    dtype = torch.float32 if single else torch.float64
    assert made.function is not None
    options, tried, refused = OPTIONS[made.kind], 0, ""
    for example in EXAMPLES[made.kind](Draw(dtype)):
        if asks_too_much(made, example):
            continue
        try:
            found = made.function(**{n: example[n] for n in example if n in made.keywords or n not in options})
        except NotImplementedError as error:
            refused = str(error)
            continue
        agree(found, expected(made, example))
        tried += 1
    if not tried and "install triton" in refused:  # an interpreter that this NumPy has outgrown
        pytest.skip(refused)
    assert tried >= 1, refused


@pytest.mark.parametrize("made", [made for made in built_in() if made.kind in RANDOM],
                         ids=lambda made: f"{made.kind}/{made.name}")
def test_its_seed_decides_and_the_global_generator_stays(made: Declaration) -> None:
    example = RANDOM[made.kind](Draw(torch.float32))
    before = torch.get_rng_state()
    assert made.function is not None
    first, again, other = (made.function(**{**example, "seed": seed}) for seed in (1, 1, 2))
    agree(first, again)
    assert torch.equal(before, torch.get_rng_state())
    pick = first[0] if isinstance(first, tuple) else first
    assert not torch.equal(pick, other[0] if isinstance(other, tuple) else other)


@pytest.mark.parametrize("change", [
    {"v": torch.zeros(1, 2, 3, 5)}, {"k": torch.zeros(1, 2, 0, 4), "v": torch.zeros(1, 2, 0, 4)},
    {"q": torch.zeros(1, 2, 4, 3).mT}, {"q": torch.zeros(1, 2, 0, 4)},
], ids=["value width", "no keys", "last stride", "no queries"])
def test_flash_refuses_what_the_flash_kernel_does_not_do(change: dict[str, Tensor]) -> None:
    flash = registry.get("attention", "sdpa-flash")
    example = {name: torch.zeros(1, 2, 3, 4) for name in "qkv"}
    flash(**example)
    with pytest.raises(NotImplementedError, match="flash: "):
        flash(**{**example, **change})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device, on which these kernels run")
@pytest.mark.parametrize("name", ["efficient", "cudnn"])
def test_a_kernel_that_is_not_there_is_refused_and_no_other_runs_in_its_place(name: str) -> None:
    pinned = registry.get("attention", f"sdpa-{name}")
    with pytest.raises(NotImplementedError, match=f"{name}: "):
        pinned(*(torch.zeros(1, 2, 3, 4, dtype=torch.bfloat16) for _ in "qkv"))


def test_listing_imports_no_optional_library() -> None:
    code = "import sys; from assay import registry; registry.declarations(); print('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "False\n"


def test_the_first_call_leaves_the_environment_alone() -> None:
    """Hugging Face is imported within it: what that import sets is taken back."""
    code = """
import os, warnings, torch
from assay import registry
make = registry.get("attention", "hf-llama-sdpa")
before, filters = dict(os.environ), list(warnings.filters)
make(*(torch.zeros(1, 1, 2, 4) for _ in range(3)))
print(before == dict(os.environ), filters == warnings.filters)
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TORCHINDUCTOR")}
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment)
    assert done.stdout == "True True\n"


def test_every_kind_with_an_implementation_is_tried() -> None:
    assert {made.kind for made in built_in()} == set(EXAMPLES) | set(RANDOM)


def test_unfolding_refuses_what_fills_no_patch() -> None:
    with pytest.raises(ValueError, match="patch_size=2 must divide"):
        assay.get("patchify", "torch-unfold")(torch.zeros(1, 1, 4, 5), patch_size=2)
