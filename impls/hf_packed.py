"""Packed sequences behind the masks that Hugging Face makes from position ids."""
from __future__ import annotations

import os

import torch
import torch.nn.functional as F
from torch import Tensor

import assay
from assay.impls._modules import installed, late

REQUIRES = ("transformers",)
os.environ.setdefault("HF_HUB_OFFLINE", "1")


# Positions that start anew tell the sequences apart, so that a sequence of no token cannot be told, nor keys of other lengths.
@assay.implements("packed_attention", name="hf-packed-sdpa", lacks={"empty", "cross_lengths", "empty_rows"},
                  version=installed("transformers"), url="https://github.com/huggingface/transformers")
def packed_by_positions(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, *, causal: bool = False,
                        scale: float | None = None) -> Tensor:
    """`find_packed_sequence_indices` and `packed_sequence_mask_function`, handed to torch's attention."""
    if not torch.equal(cu_seqlens_q, cu_seqlens_k):
        raise NotImplementedError("cu_seqlens_k must equal cu_seqlens_q: one list of positions serves queries and keys")
    library, lengths = late("transformers.masking_utils"), cu_seqlens_q.long().diff()
    row = torch.arange(q.shape[0], device=q.device)
    found = library.find_packed_sequence_indices((row - cu_seqlens_q[:-1].long().repeat_interleave(lengths))[None])
    mask = torch.ones(q.shape[0], q.shape[0], dtype=torch.bool, device=q.device)
    if found is not None:
        mask = library.packed_sequence_mask_function(found)(0, 0, row[:, None], row[None, :])
    mask = mask & (row[:, None] >= row[None, :]) if causal else mask
    query, key, value = (x.transpose(0, 1)[None] for x in (q, k, v))
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask[None, None], scale=scale,
                                         enable_gqa=q.shape[1] != k.shape[1])
    return out[0].transpose(0, 1)
