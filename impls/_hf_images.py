"""Image classifiers of Hugging Face as black boxes: `hf:image:vit` is a tiny one of that type, weights from the seed."""
from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from assay.contract.declaration import Declaration, declare
from assay.contract.kinds import quoted
from assay.errors import UsageError
from assay.impls import _hf_tiny
from assay.impls._modules import late
from assay.impls.hf_causal_lm import OFFERS, URL, VERSION, Adapter, loaded, model_class

KIND, CLASSES = "image_classifier", 5

_ONCE, _HEADS = (1, 1, 1, 1), (1, 2, 2, 4)
_STAGES: Mapping[str, Any] = {"depths": _ONCE, "hidden_sizes": (8, 16, 24, 32)}
_WINDOWED: Mapping[str, Any] = {"embed_dim": 16, "depths": (1, 1), "num_heads": (2, 4), "window_size": 4, "patch_size": 4,
                                "image_size": 32}
_PYRAMID: Mapping[str, Any] = {**_STAGES, "num_attention_heads": _HEADS, "mlp_ratios": (2, 2, 2, 2), "image_size": 64}
# Sizes for every stage, which no rule of `_hf_tiny` knows: a line a type.
OWN: Final[Mapping[str, Mapping[str, Any]]] = {
    # its defaults have no positions of any sort
    "beit": {"use_absolute_position_embeddings": True}, "data2vec-vision": {"use_relative_position_bias": True},
    "bit": {**_STAGES, "embedding_size": 8, "num_groups": 4},
    "convnext": {**_STAGES, "image_size": 64}, "convnextv2": {**_STAGES, "image_size": 64},
    # its stage s has s + 1 layers at least: the chance to drop one is read at the number of the stage
    "cvt": {"embed_dim": (8, 16, 24), "num_heads": (1, 2, 3), "depth": (1, 2, 3), "drop_path_rate": (0.0, 0.0, 0.0)},
    "donut-swin": _WINDOWED, "swin": _WINDOWED, "swinv2": {**_WINDOWED, "pretrained_window_sizes": (0, 0)},
    "efficientnet": {"image_size": 64, "width_coefficient": 0.25, "depth_coefficient": 1.0, "num_block_repeats": (1,) * 7,
                     "hidden_dim": 320},
    "focalnet": {"image_size": 32, "embed_dim": 16, "depths": (1, 1), "hidden_sizes": (16, 32), "focal_levels": (2, 2),
                 "focal_windows": (3, 3)},
    "hgnet_v2": {"depths": _ONCE, "hidden_sizes": [16] * 4, "embedding_size": 8, "stem_channels": (3, 8, 8),
                 "stage_in_channels": (8, 16, 16, 16), "stage_mid_channels": (8,) * 4, "stage_out_channels": (16,) * 4,
                 "stage_num_blocks": _ONCE, "stage_numb_of_layers": (2,) * 4},
    "hiera": {"image_size": (32, 32), "patch_size": (7, 7), "depths": (1, 1, 1), "embed_dim": 16, "num_heads": (1, 2, 4),
              "num_query_pool": 2, "masked_unit_size": (4, 4), "masked_unit_attention": (True, True, False)},
    "levit": {"image_size": 64, "patch_size": 16, "hidden_sizes": (16, 32, 48), "num_attention_heads": (2, 4, 6),
              "depths": (1, 1, 1), "key_dim": (8, 8, 8)},
    "mobilenet_v1": {"image_size": 64, "depth_multiplier": 0.25}, "mobilenet_v2": {"image_size": 64, "depth_multiplier": 0.25},
    "mobilevit": {"image_size": 128, "patch_size": 2, "hidden_sizes": (16, 24, 32), "neck_hidden_sizes": (8,) * 6 + (32,)},
    "mobilevitv2": {"image_size": 64, "patch_size": 2, "width_multiplier": 0.25, "n_attn_blocks": (1, 1, 1)},
    "poolformer": _STAGES,
    "pvt": {**_PYRAMID, "patch_size": 4}, "pvt_v2": {**_PYRAMID, "image_size": (64, 64)}, "segformer": _PYRAMID,
    "regnet": {"depths": _ONCE, "hidden_sizes": (16, 16, 32, 32), "groups_width": 8, "embedding_size": 8},
    "resnet": {**_STAGES, "hidden_sizes": [16, 32, 48, 64], "embedding_size": 8},
    "swiftformer": {"image_size": 64, "embed_dims": (8, 16, 24, 32), "depths": _ONCE},
    "textnet": {"image_size": (64, 64), "stem_out_channels": 8, "hidden_sizes": (8, 8, 16, 16, 24),
                "conv_layer_kernel_sizes": [[[3, 3]], [[1, 3]], [[3, 3]], [[3, 1]]],
                "conv_layer_strides": [[1], [2], [2], [2]]},
}
# Model types -> parts of names of parameters that no logit depends on, and what in the library's source shows that it is meant so.
IDLE: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    **dict.fromkeys(("clip", "metaclip_2"), (("post_layernorm",), "scores are read from patches before that norm")),
    **dict.fromkeys(("dinov2", "dinov2_with_registers"), (("mask_token",), "it stands for patches that are masked in pretraining")),
    "siglip": (("vision_model.head",), "the scores are read from the mean over all patches, not from the pooling head"),
    "cvt": (("stages.2.layers.2.attention.attention.convolution_projection_query",),
            "the class token alone is read in the end, and its query is not convolved"),
}
REFUSED: Final[Mapping[str, str]] = {
    "dinat": "it needs the library natten", "timm_wrapper": "it needs the library timm",
    "imagegpt": "it takes colours as ids, not pixels", "siglip2": "it takes patches with a mask and shapes beside them",
    "shieldgemma2": "it takes text beside the image",
    "perceiver": "its 272 million parameters do not shrink: its table of positions is that of 224 × 224 pixels",
    "pp_lcnet": "it returns scores under the name of hidden states",
}


def model_types() -> dict[str, str]:
    """Every model type that has an image classifier -> the name of its class, the first where it has several."""
    known = late("transformers.models.auto.modeling_auto").MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES
    return {name: made if isinstance(made, str) else made[0] for name, made in known.items()}


def of_type(model_type: str) -> Declaration:
    """The declaration of a model type's classifier, tiny ones."""
    known, name = model_types(), f"hf:image:{model_type}"
    if model_type not in known:
        near = difflib.get_close_matches(model_type[:100], known, 1)
        hint = f"did you mean hf:image:{near[0]}?" if near else f"they are {', '.join(known)}"
        raise UsageError(f"target={quoted(name)} is not one of the {len(known)} model types of transformers {VERSION} that have an "
                         f"image classifier; {hint}")
    if model_type in REFUSED:
        raise UsageError(f"target={quoted(name)} cannot be tried: {REFUSED[model_type]}; give another")
    make = model_class(known[model_type])

    def factory(*, seed: int) -> Images:
        return Images(_tiny(model_type, make, seed), model_type)

    return _declared(name, make, factory)


def of_folder(folder: Path, model_type: str) -> Declaration:
    """The declaration of a local checkpoint."""
    make = model_class(model_types()[model_type])
    return _declared(f"hf:{folder.resolve().name}", make, lambda: Images(loaded(make, folder), model_type))


def _declared(name: str, make: Any, factory: Callable[..., Images]) -> Declaration:
    """All that is claimed."""
    offers = OFFERS - ({"loss"} if "labels" not in inspect.signature(make.forward).parameters else set())
    offers -= {"kernels"} if not make._supports_sdpa else set()  # or it has no attention
    return declare(KIND, factory, name=name, dtypes=("float32",), devices=("cpu",), offers=offers, version=VERSION, url=URL,
                   origin=name)


def _tiny(model_type: str, make: Any, seed: int) -> nn.Module:
    """A tiny model of the type, its weights from the seed."""
    settings = _hf_tiny.configuration(make.config_class, OWN.get(model_type))
    settings.num_labels = CLASSES
    torch.manual_seed(seed)
    model: nn.Module = make._from_config(settings, attn_implementation="eager").eval()
    _hf_tiny.drawn(model, seed)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Conv2d):  # drawn by the width of its kernel; it sums over all its inputs
                module.weight.mul_(math.sqrt(module.weight.shape[-1] / module.weight[0].numel()))
    _settled(model, seed)
    return model


def _settled(model: nn.Module, seed: int) -> None:
    """Running statistics as of a batch of noise, where there are any: with those of a new model signals die away or explode."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)]
    if not norms:
        return
    kept = [module.momentum for module in norms]
    for module in norms:
        module.momentum = 1.0
        module.train()
    classifier, source = Images(model), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        classifier(torch.randn(8, *classifier.image_shape, generator=source))
    for module, momentum in zip(norms, kept, strict=True):
        module.momentum = momentum
        module.eval()


class Images(Adapter):
    """A classifier of the library under the call of an image classifier."""

    def __init__(self, model: nn.Module, model_type: str = "") -> None:
        self.model, self.plugged = model, None
        self.takes, self.field = frozenset(inspect.signature(model.forward).parameters), ""
        settings: Any = model.config
        seen = getattr(settings, "vision_config", settings)
        side = getattr(seen, "image_size", None) or 64
        height, width = side if isinstance(side, (list, tuple)) else (side, side)
        channels = getattr(seen, "num_channels", None) or seen.stem_num_channels
        self.image_shape = (int(channels), int(height), int(width))
        self.num_classes = int(settings.num_labels)
        self.idle = IDLE.get(model_type, ((), ""))[0]
        self._others: dict[str, nn.Module] = {}

    def __call__(self, image: Tensor) -> Tensor:  # type: ignore[override]
        """Logits (B,K)."""
        return super().__call__(image)

    def loss(self, image: Tensor, labels: Tensor) -> Tensor:  # type: ignore[override]
        """The loss that the model computes when it is given labels."""
        return super().loss(image, labels)

    def reloaded(self, image: Tensor) -> Tensor:  # type: ignore[override]
        """Logits of the model after it was saved as safetensors and loaded again."""
        return super().reloaded(image)

    def through(self, image: Tensor) -> Tensor:  # type: ignore[override]
        """Logits with torch's own attention in force."""
        return super().through(image)

    def parts(self, image: Tensor, *, skip: int = 0) -> tuple[Any, ...]:  # type: ignore[override]
        """What the modules of one pass received and gave."""
        return super().parts(image, skip=skip)

    def _given(self, ids: Tensor, mask: Tensor | None, past: int) -> dict[str, Any]:
        return {"pixel_values": ids}
