"""timm's image models as classifiers: tiny ones of ten families, weights from the seed, nothing downloaded."""
from __future__ import annotations

import copy
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import assay
from assay import parts
from assay.impls._modules import installed
from assay.impls._timm import timm

REQUIRES = ("timm", "torchvision")
CLASSES = 5
OPTIONS: dict[str, Any] = {"dtypes": ("float32",), "devices": ("cpu",), "version": installed("timm"),
                           "url": "https://github.com/huggingface/pytorch-image-models"}
FUSED = "fused_attn"  # the flag of every attention that has torch's own function beside its formula


class Classifier:
    """A model of the library under the call of an image classifier."""

    def __init__(self, name: str, seed: int, side: int, **options: Any) -> None:
        self.name, self.options, self.seed = name, options, seed
        self.image_shape, self.num_classes = (3, side, side), CLASSES
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.model = self._made()
        drawn(self.model, seed)
        settled(self.model, self.image_shape, seed)
        self._others: dict[str, nn.Module] = {}

    def _made(self) -> nn.Module:
        model: nn.Module = timm("timm").create_model(self.name, pretrained=False, num_classes=CLASSES, **self.options)
        return model.eval()

    def parameters(self) -> Iterator[Tensor]:
        """The model's own."""
        return self.model.parameters()

    def __call__(self, image: Tensor) -> Tensor:
        """Logits (B,K)."""
        out: Tensor = self.model(image)
        return out

    def reloaded(self, image: Tensor) -> Tensor:
        """Logits of another model of the same name, after its weights were saved as safetensors and loaded."""
        if "reloaded" not in self._others:
            other = self._made()
            with tempfile.TemporaryDirectory() as folder:
                save_file({name: one.contiguous() for name, one in self.model.state_dict().items()}, Path(folder) / "weights")
                other.load_state_dict(load_file(Path(folder) / "weights"))
            self._others["reloaded"] = other
        out: Tensor = self._others["reloaded"](image)
        return out

    def through(self, image: Tensor) -> Tensor:
        """Logits with every attention by its own formula instead of torch's function, or the other way round."""
        if FUSED not in self._others:
            other = copy.deepcopy(self.model)
            for module in other.modules():
                if hasattr(module, FUSED):
                    setattr(module, FUSED, not getattr(module, FUSED))
            self._others[FUSED] = other
        out: Tensor = self._others[FUSED](image)
        return out

    def parts(self, image: Tensor, *, skip: int = 0) -> tuple[Any, ...]:
        """What the modules of one pass received and gave; see `harness/parts.py`."""
        return parts.record(self.model, lambda: self(image), skip)


def drawn(model: nn.Module, seed: int) -> None:
    """Weights by the number of their inputs, the rest moved off its zeros and ones: timm's own leave all logits near 0."""
    source = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=source)
            if parameter.dim() < 2:
                parameter.copy_(parameter + 0.1 * noise if parameter.abs().max() > 0.5 else 0.1 * noise)
            elif parameter.shape[0] == 1:  # positions and tokens of classes
                parameter.copy_(noise)
            else:
                parameter.copy_(noise / math.sqrt(parameter[0].numel()))


def settled(model: nn.Module, shape: tuple[int, int, int], seed: int) -> None:
    """Running statistics as of a batch of noise, where there are any: with those of a new model signals die away or explode."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)]
    kept = [module.momentum for module in norms]
    for module in norms:
        module.momentum = 1.0
        module.train()
    with torch.no_grad():
        if norms:
            model(torch.randn(8, *shape, generator=torch.Generator().manual_seed(seed)))
    for module, momentum in zip(norms, kept, strict=True):
        module.momentum = momentum
        module.eval()


def declared(label: str, name: str, side: int, offers: frozenset[str], **options: Any) -> None:
    """Declare a tiny model as `timm-LABEL`."""
    @assay.implements("image_classifier", name=f"timm-{label}", offers=offers, **OPTIONS)
    def factory(*, seed: int) -> Classifier:
        return Classifier(name, seed, side, **options)


_ATTENDS = frozenset({"saving", "parts", "kernels"})
_PLAIN = frozenset({"saving"})  # none of their parts is one that is recognised
_SMALL: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4}
declared("vit", "vit_tiny_patch16_224", 32, _ATTENDS, **_SMALL)
declared("vit-average", "vit_tiny_patch16_224", 32, _ATTENDS, global_pool="avg", class_token=False, **_SMALL)
declared("deit", "deit_tiny_distilled_patch16_224", 32, _ATTENDS, **_SMALL)
declared("eva02", "eva02_tiny_patch14_224", 32, _ATTENDS, **_SMALL)
declared("beit", "beit_base_patch16_224", 32, _ATTENDS, **_SMALL)
declared("cait", "cait_xxs24_224", 32, _ATTENDS, **_SMALL)
declared("swin", "swin_tiny_patch4_window7_224", 32, _ATTENDS, img_size=32, embed_dim=16, depths=(2, 1), num_heads=(2, 4),
         window_size=4)
declared("convnext", "convnext_atto", 64, _PLAIN, depths=(1, 1, 1, 1), dims=(8, 16, 24, 32))
declared("resnet", "test_resnet", 64, _PLAIN)
declared("efficientnet", "test_efficientnet", 64, _PLAIN)
