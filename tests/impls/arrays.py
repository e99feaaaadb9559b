"""What the tests of bridges to other array libraries have in common."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def multiplying(bridged: Callable[..., Any], keep: Callable[[Any, Any], Any], seen: list[dict[str, Any]]) -> Callable[..., Any]:
    """A bridged function that notes what it is called with. keep: the library's own "where the mask holds, else 0"."""
    def multiply(x: Any, y: Any = None, *, mask: Any = None, ids: Any = None, scale: float = 1.0) -> Any:
        """scale·x·y where the mask holds."""
        seen.append({"x": x, "y": y, "mask": mask, "ids": ids, "scale": scale})
        out = x * scale if y is None else x * y * scale
        return out if mask is None else keep(mask, out)

    made: Callable[..., Any] = bridged(multiply)
    return made
