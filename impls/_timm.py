"""timm, imported late, also beside a torchvision whose compiled part does not load."""
from __future__ import annotations

import functools
from types import ModuleType

import torch

from assay.impls._modules import late

STUMBLES = ("nms", "qnms")  # operators that its import describes whether they are there or not


@functools.cache
def timm(module: str) -> ModuleType:
    """`timm` or a module of it.

    timm wants two files of torchvision that are Python alone. A torchvision that was built for a torch with CUDA, as the registry's
    is, loads no compiled operators beside a torch without, and its import fails where it describes two of them. They are declared
    for as long as the import takes, with nothing behind them, and are gone afterwards.
    """
    try:
        return late(module)
    except RuntimeError as error:
        if "operator torchvision::" not in str(error):
            raise
    library = torch.library.Library("torchvision", "DEF")
    try:
        for name in STUMBLES:
            library.define(f"{name}(Tensor boxes, Tensor scores, float threshold) -> Tensor")
        return late(module)
    finally:
        library._destroy()
