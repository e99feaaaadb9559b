"""rotary-embedding-torch: neighbouring channels form a pair; the angles are float32 whatever the input."""
from __future__ import annotations

from typing import Any

from torch import Tensor

import assay
from assay.impls._modules import installed, late

REQUIRES = ("rotary_embedding_torch",)


@assay.implements("rotary", name="rotary-embedding-torch", arithmetic={"angles": "float32"},
                  version=installed("rotary-embedding-torch"), url="https://github.com/lucidrains/rotary-embedding-torch")
def rotary(x: Tensor, positions: Tensor, *, base: float = 10000.0, rotary_dim: int | None = None) -> Tensor:
    """`RotaryEmbedding` for the angles, `apply_rotary_emb` for the turn."""
    library = late("rotary_embedding_torch")
    width = x.shape[-1] if rotary_dim is None else rotary_dim
    options: dict[str, Any] = {"dim": width, "theta": base, "cache_if_possible": False}
    if width == 2:  # the constructor divides by dim - 2: a single pair gets its one frequency, 1, handed in
        options |= {"dim": 4, "custom_freqs": positions.new_ones(1).float()}
    angles = library.RotaryEmbedding(**options).to(x.device)(positions)
    out: Tensor = library.apply_rotary_emb(angles[:, None] if angles.dim() == 3 else angles, x)  # (B,1,T,D) or (T,D)
    return out
