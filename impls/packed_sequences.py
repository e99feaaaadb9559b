"""Packed sequences as torch's jagged nested tensors."""
from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

import assay


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
