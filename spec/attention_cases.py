"""How examples of attention are drawn: both sides of every line of "inputs that hide faults" that concerns it."""
from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from assay.cases import Cases, Configuration, Example, draw_values, generator
from assay.contract.declaration import Declaration

BUDGET = 60_000  # multiply-adds B·H·Tq·Tk·(D+Dv) of one example
EMPTYING_MASKS = ("padding_left", "empty_rows", "by_query")  # masks that may leave a query without keys
FIRST_KEYS = ("padding", "padding_whole", "by_key", "by_head_and_key")  # masks that are sure to leave the first key alone


class AttentionCases(Cases):
    """Self- and cross-attention with every option; G divides H; dims of 1, primes, and one beside a tile or power of two."""

    kind = "attention"
    dims = {
        "B": (1, 2, 3, 1, 2, 3, 0), "H": (1, 2, 4, 3, 6, 5), "G": (1, 2, 3, 4, 5, 6),
        "Tq": (3, 1, 2, 4, 5, 8, 7, 16, 17, 33, 65, 129, 0),
        "Tk": (3, 2, 1, 4, 5, 7, 8, 16, 17, 31, 33, 64, 65, 128, 129, 257, 0), "D": (2, 1, 3, 4, 8, 5, 16, 17, 32, 64, 80),
        "Dv": (2, 1, 3, 4, 8, 16, 5, 17, 33),
    }
    # Some options stand several times: lists of different lengths meet in every combination in the boundary examples, and
    # what others hide (no window, no bias, no softcap) comes often enough.
    flags = {
        "causal": (False, True, True, False, True),
        "mask": ("none", "shared", "padding", "full", "padding_left", "empty_rows", "padding_whole"),
        "bias": ("none", "shared", "none", "full", "none", "infinite", "none", "none"),
        "window": (None, 2, None, 1, None, 3, None, 4, 16, None, 40),
        "scale": (None, 0.5, 0.3), "softcap": (None, 2.0, None, 30.0), "lengths": ("free", "equal"),
    }

    def options(self, claims: Declaration, given: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
        """A row that gives the mean depends on keys that it may not see, and one of NaN spreads them over gradients: where that is
        declared, rows without keys are drawn for the properties alone that ask for nothing but such masks."""
        found = super().options(claims, given)
        if claims.conventions["empty_row"] != "zeros":
            found["mask"] = tuple(mask for mask in found["mask"] if mask not in EMPTYING_MASKS) or found["mask"]
        return found

    def adapt(self, configuration: Configuration, claims: Declaration) -> Configuration | None:
        dims = dict(configuration.dims)
        if not claims.claims("gqa"):
            dims["G"] = dims["H"]
        dims["G"] = max(g for g in range(1, dims["H"] + 1) if dims["H"] % g == 0 and g <= max(1, dims["G"]))
        if not claims.claims("value_width"):
            dims["Dv"] = dims["D"]
        if not claims.claims("cross_lengths") or configuration.flags["lengths"] == "equal":
            dims["Tq"] = dims["Tk"]
        if not claims.claims("empty"):
            dims = {letter: max(1, size) for letter, size in dims.items()}
        dims = within_budget(dims, claims)
        if configuration.flags["lengths"] == "equal":
            dims["Tq"] = dims["Tk"] = min(dims["Tq"], dims["Tk"])
        found = Configuration(configuration.kind, dims, configuration.flags, configuration.family, configuration.layout,
                              configuration.seed)
        outcome = claims.conventions["empty_row"]
        if not claims.claims("empty_rows") or outcome == "refused":
            return without_empty_rows(found)
        return found if outcome == "zeros" or found.flags["mask"] in EMPTYING_MASKS or not dims["Tk"] else without_empty_rows(found)

    def may_be_refused(self, configuration: Configuration) -> bool:
        """torch's own flex_attention raises without a batch entry or a key, and without a query where it asks for its index."""
        dims, flags = configuration.dims, configuration.flags
        indexed = flags["causal"] or flags["window"] is not None or (flags["mask"], flags["bias"]) != ("none", "none")
        return dims["B"] == 0 or dims["Tk"] == 0 or (dims["Tq"] == 0 and indexed)

    def build(self, configuration: Configuration, dtype: torch.dtype) -> Example:
        d, flags, seed = configuration.dims, configuration.flags, configuration.seed
        arguments: dict[str, Any] = {**draw_operands(configuration, dtype)}
        mask = draw_mask(flags["mask"], d, generator(seed, "mask"))
        bias = draw_bias(flags["bias"], d, generator(seed, "bias"), dtype)
        options = {"mask": mask, "bias": bias, "window": flags["window"], "scale": flags["scale"], "softcap": flags["softcap"]}
        arguments |= {name: value for name, value in options.items() if value is not None}
        if flags["causal"]:
            arguments["causal"] = True
        return Example(configuration, dtype, arguments)


# Shapes that broadcast to (B,H,Tq,Tk), besides those that every property draws.
BROADCAST: Mapping[str, Callable[[int, int, int, int], tuple[int, ...]]] = {
    "by_head": lambda b, h, tq, tk: (1, h, tq, tk), "by_sample": lambda b, h, tq, tk: (b, 1, tq, tk),
    "three_axes": lambda b, h, tq, tk: (h, tq, tk), "by_key": lambda b, h, tq, tk: (b, h, 1, tk),
    "by_head_and_key": lambda b, h, tq, tk: (1, h, 1, tk), "by_query": lambda b, h, tq, tk: (b, 1, tq, 1),
}


def draw_operands(configuration: Configuration, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """q (B,H,Tq,D) and k (B,G,Tk,D) of the family; v (B,G,Tk,Dv) too, but normal where it is one of scores (peaked, small …)."""
    d, seed, family = configuration.dims, configuration.seed, configuration.family
    plain = family if family in ("integers", "positive", "cancelling", "one_hot", "constant") else "normal"
    return {
        "q": draw_values(family, (d["B"], d["H"], d["Tq"], d["D"]), generator(seed, "q"), dtype),
        "k": draw_values(family, (d["B"], d["G"], d["Tk"], d["D"]), generator(seed, "k"), dtype),
        "v": draw_values(plain, (d["B"], d["G"], d["Tk"], d["Dv"]), generator(seed, "v"), dtype),
    }


def within_budget(dims: dict[str, int], claims: Declaration) -> dict[str, int]:
    """Dims made smaller until one example is cheap: batch and heads first, then the largest of the rest that limits allow."""
    found, frozen = dict(dims), set[str]()
    while math.prod(found[letter] for letter in ("B", "H", "Tq", "Tk")) * (found["D"] + found["Dv"]) > BUDGET:
        able = [letter for letter in ("B", "H", "Tq", "Tk", "D", "Dv") if found[letter] > 1 and letter not in frozen]
        if not able:
            break
        largest = max(able, key=lambda letter: (letter in ("B", "H"), found[letter]))
        smaller = found[largest] // 2
        if claims.allows(largest, smaller):
            found[largest] = smaller
        else:
            frozen.add(largest)
    found["G"] = max(g for g in range(1, found["H"] + 1) if found["H"] % g == 0 and g <= max(1, found["G"]))
    if not claims.claims("value_width"):
        found["Dv"] = found["D"]
    if not claims.claims("cross_lengths"):
        found["Tq"] = found["Tk"] = min(found["Tq"], found["Tk"])
    return found


def without_empty_rows(configuration: Configuration) -> Configuration:
    """Every query keeps a key: no emptying mask, keys at least as many as queries where positions restrict."""
    flags, dims = configuration.flags, dict(configuration.dims)
    dims["Tk"] = max(1, dims["Tk"])
    restricted = flags["causal"] or flags["window"] is not None
    if restricted or flags["mask"] != "none" or flags["bias"] == "infinite":  # a query beyond the keys has no aligned one
        dims["Tq"] = min(dims["Tq"], dims["Tk"])
    changes: dict[str, Any] = {}
    if flags["mask"] in EMPTYING_MASKS:
        changes["mask"] = "padding"
    if flags["window"] is not None and changes.get("mask", flags["mask"]) in FIRST_KEYS:
        changes["mask"] = "shared"
    kept = changes.get("mask", flags["mask"]) in ("none", "shared", "full")  # the key that an infinite bias leaves alone
    if flags["bias"] == "infinite" and (not kept or (restricted and dims["Tq"] != dims["Tk"])):
        changes["bias"] = "full"
    return configuration.but(**dims, **changes)


def draw_mask(sort: str, d: Any, source: torch.Generator) -> torch.Tensor | None:
    """A boolean mask, True = may attend, in one of the shapes that broadcast to (B,H,Tq,Tk).

    shared (Tq,Tk) and full (B,H,Tq,Tk) keep the aligned key of every row; padding (B,1,1,Tk) keeps the first keys, and
    padding_whole is the same written out (B,H,Tq,Tk): where the layout is "expanded", with strides of 0. BROADCAST holds more.
    """
    b, h, tq, tk = d["B"], d["H"], d["Tq"], d["Tk"]
    if sort == "none":
        return None
    if sort.startswith("padding"):
        length = torch.randint(min(1, tk), tk + 1, (b, 1, 1, 1), generator=source)
        place = torch.arange(tk)
        keep = place >= tk - length if sort == "padding_left" else place < length
        return keep.expand(b, h, tq, tk).clone() if sort == "padding_whole" else keep
    shape = BROADCAST[sort](b, h, tq, tk) if sort in BROADCAST else (tq, tk) if sort == "shared" else (b, h, tq, tk)
    keep = torch.rand(shape, generator=source) < 0.6
    if sort == "by_query":
        return keep
    if sort in ("by_key", "by_head_and_key"):  # one row for all queries, whose aligned keys differ
        return keep | (torch.arange(tk) == 0)
    if sort == "empty_rows":
        rows = torch.rand(shape[:-1], generator=source) < 0.7
        return (keep | aligned(tq, tk)) & rows[..., None]
    return keep | aligned(tq, tk)


def aligned(tq: int, tk: int) -> torch.Tensor:
    """The last key of each query's causal range, for either alignment (Tq,Tk)."""
    query, key = torch.arange(tq)[:, None], torch.arange(tk)[None, :]
    return (key == query + tk - tq) | (key == query)


def draw_bias(sort: str, d: Any, source: torch.Generator, dtype: torch.dtype) -> torch.Tensor | None:
    """An additive bias in q's type; "infinite" holds −∞, which masks."""
    if sort == "none":
        return None
    whole = (d["B"], d["H"], d["Tq"], d["Tk"])
    shape = BROADCAST[sort](*whole) if sort in BROADCAST else whole[2:] if sort == "shared" else whole
    bias = draw_values("normal", shape, source, dtype)
    if sort == "infinite":
        hidden = (torch.rand(shape, generator=source) < 0.3) & ~aligned(d["Tq"], d["Tk"])
        bias = bias.masked_fill(hidden, -math.inf)
    return bias


def visible(example: Example, alignment: str = "bottom_right") -> torch.Tensor:
    """Which keys each query may attend to, (B,H,Tq,Tk)."""
    d = example.dims
    shift = d["Tk"] - d["Tq"] if alignment == "bottom_right" else 0
    back = torch.arange(d["Tq"])[:, None] + shift - torch.arange(d["Tk"])[None, :]
    see = torch.ones(d["B"], d["H"], d["Tq"], d["Tk"], dtype=torch.bool)
    arguments = example.arguments
    if arguments.get("causal") or arguments.get("window") is not None:
        see = see & (back >= 0)
    if arguments.get("window") is not None:
        see = see & (back < arguments["window"])
    if arguments.get("mask") is not None:
        see = see & arguments["mask"]
    if arguments.get("bias") is not None:
        see = see & (arguments["bias"] != -math.inf)
    return see
