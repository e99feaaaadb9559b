"""x-transformers' decoders as whole language models: two small ones with weights from the seed, their cache, both attentions.

A mask is handed to `mask`, which hides keys and empties padded outputs. Positions enter by distance alone in both models, so that
it does not matter whether padding in front is counted.
"""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

import assay
from assay.impls._modules import installed, late

REQUIRES = ("x_transformers",)
OPTIONS: dict[str, Any] = {
    "dtypes": ("float32",), "devices": ("cpu",), "offers": {"kernels"}, "conventions": {"positions": "from_mask"},
    "version": installed("x-transformers"), "url": "https://github.com/lucidrains/x-transformers"}
WORDS, LONGEST = 97, 4096


class Model:
    """`TransformerWrapper` around a `Decoder` under the contract's call."""

    vocab_size, max_length = WORDS, None

    def __init__(self, seed: int, **options: Any) -> None:
        self.options = options
        self.net = decoder(seed, options)
        self.fused: nn.Module | None = None

    def parameters(self) -> Iterator[Tensor]:
        """The model's own."""
        return self.net.parameters()

    def __call__(self, ids: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """One pass without a cache."""
        out: Tensor = self.net(ids, mask=mask)
        return out

    def step(self, ids: Tensor, cache: Any, *, mask: Tensor | None = None) -> tuple[Tensor, Any]:
        """New tokens alone, after those in the cache: the library has to be told that they are all that it gets, and how many."""
        after = {} if cache is None else {"cache": cache, "input_not_include_cache": True, "cache_age": ids.shape[1]}
        logits, held = self.net(ids, mask=mask, return_intermediates=True, **after)
        return logits, held

    def through(self, ids: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """The same weights with `attn_flash=True`."""
        if self.fused is None:
            self.fused = decoder(0, {**self.options, "attn_flash": True})
            self.fused.load_state_dict(self.net.state_dict())
        out: Tensor = self.fused(ids, mask=mask)
        return out


def decoder(seed: int, options: dict[str, Any]) -> nn.Module:
    """Two layers of four heads; gains and biases are moved off the ones and zeros that they start with."""
    library = late("x_transformers.x_transformers")
    wrapping = {"num_tokens": WORDS, "max_seq_len": LONGEST, "use_abs_pos_emb": False}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = library.Decoder(dim=32, depth=2, heads=4, attn_dim_head=32, **options)  # it warns of rotary widths below 32
        net: nn.Module = library.TransformerWrapper(**wrapping, attn_layers=layers)
        with torch.no_grad():
            for parameter in net.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape))
    return net.eval()


@assay.implements("causal_lm", name="x-transformers-decoder", **OPTIONS)
def by_rotation(*, seed: int) -> Model:
    """Rotary positions, two key heads, layer norms, GELU."""
    return Model(seed, rotary_pos_emb=True, rotary_emb_dim=32, attn_kv_heads=2)


@assay.implements("causal_lm", name="x-transformers-decoder-alibi", **OPTIONS)
def by_distance(*, seed: int) -> Model:
    """Linear biases by distance, RMS norms, gated SiLU."""
    return Model(seed, alibi_pos_bias=True, use_rmsnorm=True, ff_glu=True, ff_swish=True)
