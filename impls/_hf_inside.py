"""The user's attention inside a model of Hugging Face, through the library's interface for attentions and that for masks.

Registered with a mask function of its own: without one the library hands no mask over, and nothing is causal. Masks come as the
contract has them, boolean and True where a query may attend; one that is causal and nothing else goes by `causal`.
"""
from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from assay.contract.declaration import Declaration
from assay.contract.kinds import quoted
from assay.contract.loading import load
from assay.errors import UsageError
from assay.impls._modules import late
from assay.recognition import seen_and_bias, unknown

KIND = "attention"
_NUMBERS = itertools.count()


class Plug:
    """One attention under the library's name for it; counts its calls, which proves that it is in force."""

    def __init__(self, declaration: Declaration) -> None:
        self.declaration, self.calls = declaration, 0
        self.name = f"assay_inside_{next(_NUMBERS)}"
        late("transformers").AttentionInterface.register(self.name, self)
        late("transformers").AttentionMaskInterface.register(self.name, mask)

    @property
    def target(self) -> str:
        """How it is named on a command line."""
        own = self.declaration
        return f"{own.origin.partition('.py:')[0].removesuffix('.py')}.py:{own.name}" if ".py" in own.origin else own.name

    @property
    def traits(self) -> dict[str, str]:
        """Its conventions that a model with it inside has too."""
        own = self.declaration.conventions
        return {name: own[name] for name in ("row_dependence", "repeatability") if name in own}

    def __deepcopy__(self, memo: dict[int, Any]) -> Plug:
        """A copy of a model calls the same one."""
        return self

    def __call__(self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None = None,
                 scaling: float | None = None, dropout: float = 0.0, **options: Any) -> tuple[Tensor, None]:
        """As the library calls it: query (B,H,T,D), key and value (B,G,T,D) → (B,T,H,D)."""
        self.calls += 1
        claims = self.declaration.claims
        groups = query.shape[1] // key.shape[1]
        if groups > 1 and not claims("gqa"):
            key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        given: dict[str, Any] = {"q": query, "k": key, "v": value, **self._seen(module, query, key, attention_mask)}
        given |= self._scored(query, scaling, options)
        positional, keywords = self.declaration.bind(given)
        assert self.declaration.function is not None
        return self.declaration.function(*positional, **keywords).transpose(1, 2).contiguous(), None

    def _scored(self, query: Tensor, scaling: float | None, options: dict[str, Any]) -> dict[str, Any]:
        """How scores are scaled and capped; what the contract has no word for is not implemented."""
        more = unknown(options, ("softcap",))
        if more:
            raise NotImplementedError(f"the model hands over {', '.join(more)}, which attention does not take")
        usual = query.shape[-1] ** -0.5, 1 / math.sqrt(query.shape[-1])
        wanted = {"scale": None if scaling in (None, *usual) else scaling,
                  "softcap": options.get("softcap")}
        for name, value in wanted.items():
            if value is not None and not self.declaration.claims(name):
                raise NotImplementedError(f"the model needs {name}={value}, which {self.declaration.name} does not take")
        return {name: float(value) for name, value in wanted.items() if value is not None}

    def _seen(self, module: nn.Module, query: Tensor, key: Tensor, given: Tensor | None) -> dict[str, Any]:
        """Which keys are seen: by `causal` where that is all, else by a mask."""
        queries, keys = query.shape[-2], key.shape[-2]
        causal = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril(keys - queries)
        if given is None:
            given = causal if queries > 1 and getattr(module, "is_causal", True) else torch.ones_like(causal)
        found: dict[str, Any] = seen_and_bias(given[..., :keys])
        seen = found.pop("mask")
        claims, aligned = self.declaration.claims, self.declaration.conventions.get("causal_alignment") == "bottom_right"
        if bool((seen == causal).all()) and claims("causal") and (aligned or queries == keys):
            found["causal"] = True
        elif not bool(seen.all()):
            found["mask"] = seen if claims("empty_rows") else seen | ~seen.any(-1, keepdim=True)
        for name in ("bias", "mask"):
            if name in found and not claims(name):
                raise NotImplementedError(f"this call needs {name}, which {self.declaration.name} does not take")
        return found


def mask(*arguments: Any, **options: Any) -> Any:
    """The library's boolean mask, always made: nothing is left to a flag."""
    return late("transformers.masking_utils").sdpa_mask(
        *arguments, **{**options, "allow_is_causal_skip": False, "allow_is_bidirectional_skip": False})


def plug(target: str) -> Plug:
    """The attention that a target names, registered with the library."""
    found = [made for made in load(target, KIND) if made.name != "reference" or target == "reference"]
    if len(found) != 1:
        names = ", ".join(sorted(made.name for made in found))
        raise UsageError(f"inside: {quoted(target)} declares {len(found)} attentions ({names}); name one of them, "
                         "as kernels.py:NAME")
    return Plug(found[0])


def in_force(plugged: Plug, make: Callable[[], nn.Module], target: str) -> None:
    """Refuse a model that cannot be made with it, that does not call it, or in which another one is in force somewhere."""
    try:
        model = make()
    except (ValueError, ImportError, KeyError, AttributeError) as error:  # how types say that they know no such attention
        raise UsageError(f"target={quoted(target)} takes no attention of others: {type(error).__name__}: {error}") from None
    settings = [module.config for module in model.modules() if hasattr(module, "config")]
    inside = {getattr(one, "_attn_implementation", plugged.name) for one in settings}
    before = plugged.calls
    with torch.no_grad(), contextlib.suppress(NotImplementedError):  # of the attention, which was called; each call says so
        model(input_ids=torch.tensor([[1, 2]]))
    if inside != {plugged.name} or plugged.calls == before:
        raise UsageError(f"target={quoted(target)} does not take its attention from the library's interface; give another model")
