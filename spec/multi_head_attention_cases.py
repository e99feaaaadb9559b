"""How examples of multi-head attention are drawn: self- and cross-attention, every mask, biases, gate, positions."""
from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from assay.cases import Cases, Configuration, Example, draw_values, generator
from assay.contract.declaration import Declaration
from assay.spec.attention_cases import aligned

BUDGET = 60_000  # multiply-adds of one example
FAR = 100_000  # a position where angles in low precision are far off
BIASES = ("b_q", "b_k", "b_v", "b_o")


class MultiHeadCases(Cases):
    """C is H·D; G divides H; key masks on the right, on the left and with holes; masks shared and for each sample."""

    kind = "multi_head_attention"
    dims = {
        "B": (1, 2, 3, 4, 0), "H": (2, 1, 4, 3), "G": (1, 2, 3, 4), "Tq": (3, 1, 2, 4, 5, 8, 17, 33, 0),
        "Tk": (3, 2, 1, 4, 5, 7, 16, 17, 0), "D": (2, 1, 4, 3, 8, 16, 64),
    }
    flags = {
        "context": (False, True), "values": (False, True), "causal": (False, True), "window": (None, 2, 1, 3, 8),
        "key_mask": ("none", "right", "left", "holes"), "mask": ("none", "shared", "batch", "empty_rows"),
        **dict.fromkeys(BIASES, (False, True)), "w_gate": (False, True), "positions": ("none", "index", "batch", "far"),
        "base": (10000.0, 100.0, 500000.0),
    }
    families = ("normal", "integers", "positive", "small", "one_hot", "peaked")

    def adapt(self, configuration: Configuration, claims: Declaration) -> Configuration | None:
        dims, flags = dict(configuration.dims), dict(configuration.flags)
        _within_claims(dims, flags, claims)
        if flags["context"]:
            flags["positions"] = "none"
        elif flags["positions"] != "none":
            dims["D"] += dims["D"] % 2
        flags["values"] = flags["values"] and flags["context"]
        if not flags["context"] or not claims.claims("cross_lengths"):
            dims["Tk"] = dims["Tq"]
        if not claims.claims("empty_rows") or claims.conventions["empty_row"] == "refused":
            _without_empty_rows(dims, flags)
        _cheap(dims, bool(flags["context"]))
        if 0 in (dims["B"], dims["Tq"], dims["Tk"]):  # an empty call is asked for once, not in every combination
            flags |= {"mask": "none", "key_mask": "none"}
        dims["G"] = max(g for g in range(1, dims["H"] + 1) if dims["H"] % g == 0 and g <= dims["G"])
        if not claims.claims("gqa"):
            dims["G"] = dims["H"]
        if not claims.allows("C", dims["H"] * dims["D"]):
            return None
        return replace(configuration, dims=dims, flags=flags)

    def build(self, configuration: Configuration, dtype: torch.dtype) -> Example:
        d, flags, seed, family = configuration.dims, configuration.flags, configuration.seed, configuration.family
        width = d["H"] * d["D"]
        shapes = {"w_q": (width, width), "w_k": (d["G"] * d["D"], width), "w_v": (d["G"] * d["D"], width), "w_o": (width, width)}
        arguments: dict[str, Any] = {"x": draw_values(family, (d["B"], d["Tq"], width), generator(seed, "x"), dtype)}
        arguments |= {name: draw_weight(shape, family, generator(seed, name), dtype) for name, shape in shapes.items()}
        arguments["num_heads"] = d["H"]
        if d["G"] != d["H"]:
            arguments["num_kv_heads"] = d["G"]
        for name in ("context", "values"):
            if flags[name]:
                arguments[name] = draw_values(family, (d["B"], d["Tk"], width), generator(seed, name), dtype)
        rows = {"b_q": "w_q", "b_k": "w_k", "b_v": "w_v", "b_o": "w_o"}
        arguments |= {name: draw_values("normal", (arguments[rows[name]].shape[0],), generator(seed, name), dtype)
                      for name in BIASES if flags[name]}
        if flags["w_gate"]:
            arguments["w_gate"] = draw_weight((width, width), family, generator(seed, "w_gate"), dtype)
        arguments |= _masks(flags, d, seed) | _positions(flags, d, seed)
        if flags["causal"]:
            arguments["causal"] = True
        if flags["window"] is not None:
            arguments["window"] = flags["window"]
        return Example(configuration, dtype, arguments)


def draw_weight(shape: tuple[int, ...], family: str, source: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
    """A weight that keeps the size of what it multiplies; coarse steps with whole numbers."""
    if family == "integers":
        step = 2.0 ** -math.ceil(math.log2(shape[-1]) / 2)
        return (torch.randint(-1, 2, shape, generator=source) * step).to(dtype)
    return (torch.randn(shape, generator=source, dtype=torch.float64) / shape[-1] ** 0.5).to(dtype)


def _within_claims(dims: dict[str, int], flags: dict[str, Any], claims: Declaration) -> None:
    """Options back to their simplest where they are not claimed."""
    for feature, names in (("mask", ("mask", "key_mask")), ("padding", ("key_mask",)), ("causal", ("causal",)),
                           ("window", ("window",))):
        if not claims.claims(feature):
            flags |= {name: MultiHeadCases.flags[name][0] for name in names}
    if flags["positions"] == "far" and not claims.claims("long_positions"):
        flags["positions"] = "index"
    if not claims.claims("empty"):
        dims |= {letter: max(1, size) for letter, size in dims.items()}


def _without_empty_rows(dims: dict[str, int], flags: dict[str, Any]) -> None:
    """Every query keeps a key."""
    dims["Tk"] = max(1, dims["Tk"])
    if not flags["context"]:
        dims["Tq"] = dims["Tk"]
    if flags["mask"] == "empty_rows":
        flags["mask"] = "shared"
    if flags["key_mask"] != "none":
        flags |= {"key_mask": "right", "mask": "none", "window": None}
    if flags["causal"] or flags["window"] is not None or flags["mask"] != "none":  # the diagonal is seen, where there is one
        dims["Tq"] = min(dims["Tq"], dims["Tk"])


def _cheap(dims: dict[str, int], crossed: bool) -> None:
    """Batch, lengths and heads cut until one example is cheap."""
    def cost() -> int:
        width = dims["H"] * dims["D"]
        return dims["B"] * (2 * (dims["Tq"] + dims["Tk"]) * width**2 + 2 * dims["Tq"] * dims["Tk"] * width)

    while cost() > BUDGET:
        letter = next((one for one in ("B", "H", "Tq", "Tk") if dims[one] > (2 if one == "H" else 3 if one != "B" else 2)), None)
        if letter is None:
            return
        dims[letter] = dims[letter] // 2
        if not crossed:
            dims["Tq"] = dims["Tk"] = min(dims["Tq"], dims["Tk"])


def _masks(flags: Any, d: Any, seed: int) -> dict[str, torch.Tensor]:
    """key_mask (B,Tk) and mask (Tq,Tk) or (B,Tq,Tk), True = may attend."""
    found = {}
    if flags["key_mask"] != "none":
        found["key_mask"] = draw_key_mask(flags["key_mask"], d["B"], d["Tk"], generator(seed, "key mask"))
    if flags["mask"] != "none":
        shape = (d["Tq"], d["Tk"]) if flags["mask"] == "shared" else (d["B"], d["Tq"], d["Tk"])
        source = generator(seed, "mask")
        keep = (torch.rand(shape, generator=source) < 0.6) | aligned(d["Tq"], d["Tk"])
        if flags["mask"] == "empty_rows":
            keep = keep & (torch.rand(shape[:-1], generator=source) < 0.7)[..., None]
        found["mask"] = keep
    return found


def draw_key_mask(sort: str, batch: int, keys: int, source: torch.Generator) -> torch.Tensor:
    """Real keys first ("right" padding), last ("left"), or anywhere; at least one is real."""
    length = torch.randint(min(1, keys), keys + 1, (batch, 1), generator=source)
    place = torch.arange(keys)
    if sort == "right":
        return place < length
    if sort == "left":
        return place >= keys - length
    return (torch.rand(batch, keys, generator=source) < 0.6) | (place == 0)


def _positions(flags: Any, d: Any, seed: int) -> dict[str, Any]:
    """positions (T,) or (B,T), and their base."""
    sort = flags["positions"]
    if sort == "none":
        return {}
    index = torch.arange(d["Tq"])
    if sort == "batch":
        steps = torch.randint(1, 5, (d["B"], d["Tq"]), generator=generator(seed, "steps"))
        index = steps.cumsum(-1)  # uneven: a start of each row's own would not show, distances alone matter
    found: dict[str, Any] = {"positions": index + FAR if sort == "far" else index}
    if flags["base"] != MultiHeadCases.flags["base"][0]:
        found["base"] = flags["base"]
    return found


def visible(example: Example, alignment: str = "bottom_right") -> torch.Tensor:
    """Which keys each query may attend to, (B,Tq,Tk)."""
    d, given = example.dims, example.arguments
    back = torch.arange(d["Tq"])[:, None] - torch.arange(d["Tk"])[None, :]
    back = back + (d["Tk"] - d["Tq"] if alignment == "bottom_right" else 0)
    see = torch.ones(d["B"], d["Tq"], d["Tk"], dtype=torch.bool)
    if given.get("causal") or given.get("window") is not None:
        see = see & (back >= 0)
    if given.get("window") is not None:
        see = see & (back < given["window"])
    if given.get("key_mask") is not None:
        see = see & given["key_mask"][:, None, :]
    return see if given.get("mask") is None else see & given["mask"]
