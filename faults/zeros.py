"""Planted faults of options whose value is false in Python, or below zero."""
from __future__ import annotations

import functools
import inspect
import math
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from assay.faults.attention_parts import Options, attend, heads, visible
from assay.registry import fault, reference

AT_RANDOM = object()  # another number each time
SCALED = ("attention", "blockwise_attention", "paged_attention", "sink_attention", "qk_norm_attention", "packed_attention",
          "latent_attention")
# kind -> fault -> (option, what counts instead of a value that is false)
DEFAULTS: Mapping[str, Mapping[str, tuple[str, Any]]] = {
    **{kind: {"scale_of_zero_taken_for_none": ("scale", None)} for kind in SCALED},
    "batch_norm": {"momentum_of_zero_taken_for_the_default": ("momentum", 0.1)},
    "residual": {"alpha_of_zero_taken_for_one": ("alpha", 1.0)},
    "policy_loss": {"clip_of_zero_taken_for_the_default": ("clip", 0.2)},
    "mlm_mask": {"share_of_zero_taken_for_the_default": ("p", 0.15), "mask_id_of_zero_taken_for_one": ("mask_id", 1),
                 "seed_of_zero_draws_anew": ("seed", AT_RANDOM)},
    "sampler": {"seed_of_zero_draws_anew": ("seed", AT_RANDOM)},
}


def _changed(kind: str, name: str, option: str, change: Callable[[Any], Any], summary: str, **options: Any) -> None:
    """Register the right way with one option changed on its way in."""
    right = getattr(reference(kind), kind)
    signature = inspect.signature(right)

    @functools.wraps(right)
    def wrong(*args: Any, **kwargs: Any) -> Any:
        given = dict(signature.bind(*args, **kwargs).arguments)
        return right(**given if option not in given else {**given, option: change(given[option])})

    wrong.__name__ = name
    fault(kind, summary=summary, **options)(wrong)


@fault("attention", summary="masks come before the scale: −∞ times a negative one is ∞", offers={"negative_scale"})
def scaled_after_the_mask(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, bias: Tensor | None = None,
                          causal: bool = False, window: int | None = None, scale: float | None = None,
                          softcap: float | None = None) -> Tensor:
    options = Options(mask, bias, causal, window, scale, softcap)
    if scale is None or bias is not None or softcap is not None or not k.shape[-2]:
        return attend(q, k, v, options)
    hidden = (q @ heads(k, q).mT).masked_fill(~visible(q, k, options), -math.inf)
    return torch.softmax(hidden * scale, -1) @ heads(v, q)


def _or(value: Any, default: Any) -> Any:
    return value or (secrets.randbelow(1 << 31) if default is AT_RANDOM else default)


def _unsigned(value: Any) -> Any:
    return None if value is None else abs(value)


for _kind, _faults in DEFAULTS.items():
    for _name, (_option, _default) in _faults.items():
        _changed(_kind, _name, _option, functools.partial(_or, default=_default), f"{_option}=0 is false, and so the default")
_changed("attention", "sign_of_the_scale_lost", "scale", _unsigned, "only the size of the scale counts", offers={"negative_scale"})
