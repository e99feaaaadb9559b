"""Packed sequences: torch's jagged nested tensors, and the masks that Hugging Face makes from position ids."""
from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

import assay
from assay.impls._modules import installed, late

REQUIRES = ("transformers",)


# On CPU the only backend is the product of padded tensors, and it takes neither `is_causal` nor grouped heads. A sequence
# without keys, and a packed tensor without tokens, are refused or come out as NaN. Values narrower than keys, or tokens that do
# not lie row after row, find no backend. Backward raises where a tensor is part of a larger storage, all of which it takes for
# tokens ("split_with_sizes expects split_sizes to sum exactly to 66, but got split_sizes=[1, 1]"): no gradients are claimed.
@assay.implements("packed_attention", name="torch-nested-sdpa", lacks={"gqa", "empty", "empty_rows", "value_width", "strided"},
                  grad=False, version=torch.__version__, url="https://github.com/pytorch/pytorch")
def nested(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, *, scale: float | None = None) -> Tensor:
    """`scaled_dot_product_attention` on nested tensors of layout jagged."""
    def jagged(x: Tensor, bounds: Tensor) -> Tensor:
        made: Tensor = torch.nested.nested_tensor_from_jagged(x, bounds.long()).transpose(1, 2)
        return made

    out = F.scaled_dot_product_attention(jagged(q, cu_seqlens_q), jagged(k, cu_seqlens_k), jagged(v, cu_seqlens_k), scale=scale)
    rows: Tensor = out.transpose(1, 2).values()  # type: ignore[operator]
    return rows


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
