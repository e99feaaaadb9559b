"""Run torch code with every floating operation's result moved at random by about one rounding."""
from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from assay.numbers.arithmetic import Format, Model
from assay.numbers.bound import DTYPES

POOL = 1 << 14  # random numbers drawn at once
STRIDE = 4099
Models = Callable[[torch.dtype], Model | None]

PRODUCTS = frozenset({"mm", "bmm", "mv", "dot", "addmm", "baddbmm", "addmv"})
SUMS = frozenset({"sum", "mean", "cumsum"})
# Operations that move, choose or make numbers without rounding them.
EXACT = frozenset(
    # Words in one string read better than a hundred quoted ones, hence the exception to the rule.
    "view _unsafe_view reshape transpose permute expand slice select unsqueeze squeeze t clone detach alias "  # noqa: SIM905
    "contiguous "
    "masked_fill masked_fill_ neg abs sign sgn ones zeros full empty empty_like ones_like zeros_like full_like new_empty "
    "new_zeros new_ones new_full empty_strided new_empty_strided tril triu tril_ triu_ cat stack split split_with_sizes chunk "
    "unbind amax amin max min maximum minimum sort topk where gather index index_select scatter relu relu_ clamp clamp_min "
    "clamp_max copy_ fill_ zero_ index_put index_put_ scatter_ lift_fresh lift_fresh_copy constant_pad_nd flip roll unfold "
    "repeat repeat_interleave embedding arange scalar_tensor threshold_backward slice_backward select_backward slice_scatter "
    "select_scatter diagonal diagonal_backward as_strided view_as_real view_as_complex rand randn uniform_ normal_ _reshape_alias "
    "native_dropout set_ resize_ bernoulli_ random_ eye linspace one_hot histc movedim narrow squeeze_ unsqueeze_ "
    "value_selecting_reduction_backward masked_select nan_to_num round floor ceil trunc".split()
)
FUNCTIONS = frozenset(
    "exp exp2 expm1 log log2 log10 log1p sin cos tan tanh erf sigmoid silu gelu softplus rsqrt sqrt pow "  # noqa: SIM905 - as above
    "_softmax _log_softmax logsumexp atan asin acos sigmoid_ exp_ tanh_ silu_".split()
)


class Perturbing(TorchDispatchMode):  # type: ignore[misc]
    """Adds to each result a random error of the size of its roundings.

    models: the rounding model for results of a dtype, asked at every operation; None: leave it. The numbers are of that dtype
    themselves, or (the reference) float64 standing for it.
    unit: size of a rounding error: 1 spreads it evenly over ± one unit roundoff; results that cannot show less than their last
    place need 2.
    counted: how many results were moved; left_range: whether a finite result lay beyond the range of its format.
    """

    def __init__(self, models: Models, source: torch.Generator, *, unit: float = 1.0) -> None:
        super().__init__()
        self.models, self.source, self.unit = models, source, unit
        self.counted, self.left_range = 0, False
        self._drawn = torch.rand(POOL, generator=source, dtype=torch.float64) * 2 - 1
        self._place = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **kwargs) if kwargs else func(*args)
        name, mutable = _rounding(func)
        if not name:
            return out
        if name == "_to_copy":
            return self.moved(out, name, args) if _narrowed(out, args[0]) else out
        if isinstance(out, torch.Tensor):
            if not out.is_floating_point() or out.layout != torch.strided:
                return out
            return out.copy_(self.moved(out, name.removesuffix("_"), args)) if mutable else self.moved(out, name, args)
        if isinstance(out, tuple) and not mutable:
            return tuple(self.moved(part, name, args) if isinstance(part, torch.Tensor) and part.is_floating_point() else part
                         for part in out)
        return out

    def moved(self, out: torch.Tensor, name: str, args: tuple[Any, ...]) -> torch.Tensor:
        """The result with its error."""
        model = self.models(out.dtype)
        if model is None or not out.numel():
            return out
        self.counted += 1
        wide, fmt = out.double(), model.internal
        if fmt.largest < 1e6:
            size = wide.abs()
            self.left_range |= bool((size.isfinite() & (size > 0.98 * fmt.largest)).any())
        relative = fmt.u + (model.function_error(name.removesuffix("_backward")) if name in FUNCTIONS else 0.0)
        relative = relative * self.unit
        made = wide * torch.add(1.0 + self.scalar(name, args, fmt), self.noise(wide), alpha=relative)  # infinities stay
        if name in PRODUCTS or name in SUMS:
            made = made + self.unit * self.accumulation(wide, name, args, model)
        if fmt.name == "float16":  # it alone has numbers of ordinary size below its normal ones
            made = made + self.noise(wide) * ((wide != 0) * (fmt.underflow * self.unit))
        return made.to(out.dtype)

    def noise(self, like: torch.Tensor) -> torch.Tensor:
        """Evenly spread over −1 … 1: a stretch of numbers drawn once, from a place of its own each time."""
        count = like.numel()
        if count > POOL // 4:
            drawn = torch.rand(count, generator=self.source, dtype=torch.float64) * 2 - 1
        else:
            self._place = (self._place + STRIDE) % (POOL - count)
            drawn = self._drawn[self._place : self._place + count]
        drawn = drawn.view(like.shape)
        return drawn if like.device.type == "cpu" else drawn.to(like.device)

    def accumulation(self, out: torch.Tensor, name: str, args: tuple[Any, ...], model: Model) -> torch.Tensor:
        """A sum's error as a random walk: of terms of either sign, and of terms of one sign, whose partial sums grow."""
        if name in SUMS:
            tensor = args[0].double().abs()
            total = tensor.sum() if len(args) == 1 else tensor.cumsum(*args[1:]) if name == "cumsum" else (
                tensor.sum(*args[1:3]) / (args[0].numel() / out.numel() if name == "mean" else 1.0))
            terms, extra = args[0].numel() / out.numel(), 0.0
        else:
            left, right = args[-2:] if name in ("mm", "bmm", "mv", "dot") else args[1:3]
            total = left.double().abs() @ right.double().abs()
            terms, extra = left.shape[-1], model.product_extra
        u = model.accumulate.u * math.sqrt(model.additions)
        walk = self.noise(out) * total * (u + extra)
        return walk + self.noise(out) * out.abs() * u * math.sqrt(terms / 3)

    def scalar(self, name: str, args: tuple[Any, ...], fmt: Format) -> float:
        """The relative error of a Python factor that the format does not hold: the same for all elements."""
        if name not in ("mul", "div") or len(args) < 2 or isinstance(args[1], torch.Tensor):
            return 0.0
        self._place = (self._place + STRIDE) % (POOL // 2)
        return 0.0 if _held(float(args[1]), fmt) else float(self._drawn[self._place]) * fmt.u * self.unit


@cache
def _rounding(func: Any) -> tuple[str, bool]:
    """Name of an operation that rounds, and whether it writes into an argument; no name for one that is exact."""
    name = func._schema.name.removeprefix("aten::")
    return "" if name in EXACT else name, func._schema.is_mutable


@cache
def _held(number: float, fmt: Format) -> bool:
    """Whether the format holds the number exactly."""
    return fmt.name == "float64" or not math.isfinite(number) or float(torch.tensor(number).to(DTYPES[fmt.name])) == number


def _narrowed(out: Any, source: torch.Tensor) -> bool:
    return bool(out.is_floating_point() and source.is_floating_point() and out.dtype.itemsize < source.dtype.itemsize)
