"""Hugging Face's logits warpers, chained as `generate` chains them, its masked-language collator and its loss."""
from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

import assay
from assay.impls._modules import installed, late

REQUIRES = ("transformers",)
os.environ.setdefault("HF_HUB_OFFLINE", "1")
VERSION, URL = installed("transformers"), "https://github.com/huggingface/transformers"


@assay.implements("logits_filter", name="hf-warpers", grad=False, conventions={"topk_ties": "all"},
                  version=VERSION, url=URL)
def logits_filter(
    logits: Tensor, *, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
) -> Tensor:
    """Temperature, top-k, top-p; a temperature of 0 is refused by the library."""
    library = late("transformers.generation.logits_process")
    chain: list[Any] = []
    if temperature != 1.0:
        chain.append(library.TemperatureLogitsWarper(float(temperature)))
    if top_k is not None:
        chain.append(library.TopKLogitsWarper(top_k))
    if top_p is not None and top_p < 1.0:
        chain.append(library.TopPLogitsWarper(top_p))
    scores = logits.clone()
    for warper in chain:
        scores = warper(None, scores)
    return scores


class _Words:
    """What the collator asks of a tokenizer."""

    mask_token = "<mask>"

    def __init__(self, mask_id: int, vocab_size: int) -> None:
        self.mask_id, self.vocab_size = mask_id, vocab_size

    def convert_tokens_to_ids(self, token: str) -> int:
        return self.mask_id

    def __len__(self) -> int:
        return self.vocab_size


# Of the chosen tokens, 80 % become the mask, 10 % a random id, and 10 % stay.
@assay.implements("mlm_mask", name="hf-collator", grad=False, conventions={"mlm_replace": "bert"},
                  version=VERSION, url=URL)
def mlm_mask(
    ids: Tensor, special: Tensor, *, mask_id: int, vocab_size: int, p: float = 0.15, seed: int
) -> tuple[Tensor, Tensor]:
    """`DataCollatorForLanguageModeling.torch_mask_tokens`, with a generator of its own."""
    library = late("transformers.data.data_collator")
    collator = SimpleNamespace(
        tokenizer=_Words(mask_id, vocab_size), mlm_probability=p, mask_replace_prob=0.8, random_replace_prob=0.1,
        whole_word_mask=False, generator=torch.Generator().manual_seed(seed),
    )
    masked, labels = library.DataCollatorForLanguageModeling.torch_mask_tokens(collator, ids.clone(), special)
    return masked, labels


@assay.implements("cross_entropy", name="hf-fixed-cross-entropy", version=VERSION, url=URL)
def cross_entropy(logits: Tensor, targets: Tensor, *, ignore_index: int = -100) -> Tensor:
    """`fixed_cross_entropy`, the loss under every head."""
    out: Tensor = late("transformers.loss.loss_utils").fixed_cross_entropy(logits, targets, ignore_index=ignore_index)
    return out
