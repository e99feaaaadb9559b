"""How examples of layers are drawn; stacks and models draw theirs with the same parts."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from assay.cases import Cases, Configuration, Example, draw_values, generator
from assay.contract.declaration import Declaration

BUDGET = 40_000  # weights times tokens of one example
LAYER_FLAGS: dict[str, tuple[Any, ...]] = {
    "placement": ("pre", "post", "sandwich", "deepnorm"), "norm": ("rms", "layer"), "ffn": ("swiglu", "mlp", "moe"),
    "activation": ("silu", "gelu", "relu", "gelu_tanh"), "mask": ("none", "padding", "full", "padding_left"),
    "positions": ("none", "index", "shifted", "own", "gaps"), "eps": (1e-6, 1e-5, 1e-2), "biases": (False, True),
    "shared": (False, True),
}
FAMILIES = ("normal", "integers", "positive", "peaked", "heavy", "small", "cancelling")


class LayerCases(Cases):
    """Batches of B sequences of T tokens, H heads of D channels in G groups, F hidden units, E experts of which K are chosen."""

    kind = "block"
    dims = {"B": (2, 1, 3, 0), "T": (3, 1, 2, 5, 8, 9, 17), "H": (2, 1, 4, 3), "G": (2, 1, 4, 3), "D": (4, 2, 3, 8),
            "F": (6, 1, 5, 16), "E": (4, 2, 3), "K": (2, 1, 3)}
    flags = {**LAYER_FLAGS, "causal": (True, False)}
    families: tuple[str, ...] = FAMILIES

    def adapt(self, configuration: Configuration, claims: Declaration) -> Configuration | None:
        dims, flags = dict(configuration.dims), dict(configuration.flags)
        if not (claims.claims("gqa") and "num_kv_heads" in claims.keywords):
            dims["G"] = dims["H"]
        dims["G"] = max(g for g in range(1, dims["H"] + 1) if dims["H"] % g == 0 and g <= dims["G"])
        if not claims.claims("empty"):
            dims["B"] = max(1, dims["B"])
        if flags["positions"] != "none":
            dims["D"] += dims["D"] % 2
        dims["K"] = min(dims["K"], dims["E"])
        if flags["ffn"] == "moe" and ("top_k" not in claims.keywords or claims.conventions["capacity"] == "drops"):
            flags["ffn"] = "swiglu" if "ffn" in claims.keywords else claims.conventions.get("ffn", "swiglu")
        if flags["mask"] == "padding_left" and not (claims.claims("empty_rows") and claims.claims("padding")):
            flags["mask"] = "padding"
        if flags["mask"] == "padding" and not claims.claims("padding"):
            flags["mask"] = "none"
        a_token = dims["H"] * dims["D"] * (4 * dims["H"] * dims["D"] + 3 * dims["F"])
        while a_token * dims["B"] * dims["T"] > BUDGET and dims["T"] > 2:
            dims["T"] //= 2
        return Configuration(configuration.kind, dims, flags, configuration.family, configuration.layout, configuration.seed)

    def build(self, configuration: Configuration, dtype: torch.dtype) -> Example:
        d, flags, seed = configuration.dims, configuration.flags, configuration.seed
        width = d["H"] * d["D"]
        arguments: dict[str, Any] = {
            "x": draw_values(configuration.family, (d["B"], d["T"], width), generator(seed, "x"), dtype),
            "params": layer_parameters(configuration, dtype, "layer"), **layer_options(configuration)}
        if not flags["causal"]:
            arguments["causal"] = False
        made = drawn_mask(flags["mask"], d["B"], d["T"], d["T"], generator(seed, "mask"))
        if made is not None:
            arguments["mask"] = made
        return Example(configuration, dtype, arguments)


def layer_options(configuration: Configuration) -> dict[str, Any]:
    """Options of the call that are not at their defaults."""
    d, flags = configuration.dims, configuration.flags
    options: dict[str, Any] = {"num_heads": d["H"]}
    if d["G"] != d["H"]:
        options["num_kv_heads"] = d["G"]
    for name, default in (("placement", "pre"), ("norm", "rms"), ("ffn", "swiglu"), ("activation", "silu"), ("eps", 1e-6)):
        if flags[name] != default:
            options[name] = flags[name]
    if flags["ffn"] == "moe":
        options["top_k"] = d["K"]
    positions = drawn_positions(flags["positions"], d["B"], d["T"], generator(configuration.seed, "positions"))
    return options if positions is None else {**options, "positions": positions}


def drawn_positions(which: str, batch: int, length: int, source: torch.Generator) -> torch.Tensor | None:
    """None, 0 … T−1, a later stretch, each sequence's own, or some left out (what distances alone can tell from 0 … T−1)."""
    if which == "none":
        return None
    if which == "own":
        return torch.arange(length) + torch.randint(0, 50, (batch, 1), generator=source)
    if which == "gaps":
        return torch.randint(1, 9, (length,), generator=source).cumsum(0)
    return torch.arange(length) + (7 if which == "shifted" else 0)


def drawn_mask(which: str, batch: int, queries: int, keys: int, source: torch.Generator) -> torch.Tensor | None:
    """None, padding on a side (B,T) that leaves a token, or pairs of query and key (B,Tq,Tk) that keep key 0 and the diagonal."""
    if which == "none":
        return None
    if which == "full":
        keep = torch.rand(batch, queries, keys, generator=source) < 0.6
        return keep | torch.eye(queries, keys, dtype=torch.bool) | (torch.arange(keys) == 0)
    lengths = torch.randint(1, keys + 1, (batch, 1), generator=source)
    return torch.arange(keys) < lengths if which == "padding" else torch.arange(keys) >= keys - lengths


def without_keys(batch: int, queries: int, keys: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two masks that leave the first sample no key: over keys (B,Tk), and over pairs (B,Tq,Tk), there the last queries too."""
    over_keys = torch.ones(batch, keys, dtype=torch.bool)
    over_keys[:1] = False
    pairs = over_keys[:, None, :].repeat(1, queries, 1)
    if queries > 1:
        pairs[:, -1] = False
    return over_keys, pairs


def layer_parameters(
    configuration: Configuration, dtype: torch.dtype, label: str, *, cross: bool = False,
) -> dict[str, torch.Tensor]:
    """Parameters of one layer: near 1 for norms, of deviation 1/√(inputs) for matrices."""
    d, flags = configuration.dims, configuration.flags
    draw = _drawer(configuration.seed, label, dtype)
    width = d["H"] * d["D"]
    made: dict[str, torch.Tensor] = {}
    for name in ("norm1", "norm2", *(("norm3",) if cross else ())):
        for full in (name, f"{name}_post") if flags["placement"] == "sandwich" else (name,):
            made[f"{full}.weight"] = draw(f"{full}.weight", width)
            if flags["norm"] == "layer" and flags["biases"]:
                made[f"{full}.bias"] = draw(f"{full}.bias", width) - 1
    for part in ("attn", *(("cross",) if cross else ())):
        made |= _attention_parameters(part, width, d["G"] * d["D"], flags, draw)
    return made | _feed_parameters(width, d["F"], d["E"], flags, draw)


def _drawer(seed: int, label: str, dtype: torch.dtype) -> Callable[..., torch.Tensor]:
    def draw(name: str, *shape: int) -> torch.Tensor:
        noise = torch.randn(shape, generator=generator(seed, f"{label} {name}"), dtype=torch.float64)
        return (1 + 0.3 * noise if len(shape) == 1 else noise / shape[-1] ** 0.5).to(dtype)
    return draw


def _attention_parameters(
    part: str, width: int, narrow: int, flags: Any, draw: Callable[..., torch.Tensor],
) -> dict[str, torch.Tensor]:
    made = {f"{part}.w_{name}": draw(f"{part}.w_{name}", rows, width) for name, rows in
            (("q", width), ("k", narrow), ("v", narrow), ("o", width))}
    if flags["biases"]:
        made |= {f"{part}.b_{name}": draw(f"{part}.b_{name}", rows) - 1 for name, rows in
                 (("q", width), ("k", narrow), ("v", narrow), ("o", width))}
    return made  # no gate of the heads: an implementation cannot say that it has none


def _feed_parameters(
    width: int, hidden: int, experts: int, flags: Any, draw: Callable[..., torch.Tensor],
) -> dict[str, torch.Tensor]:
    if flags["ffn"] == "mlp":
        made = {"ffn.w_in": draw("ffn.w_in", hidden, width), "ffn.w_out": draw("ffn.w_out", width, hidden)}
        biases = {"ffn.b_in": draw("ffn.b_in", hidden) - 1, "ffn.b_out": draw("ffn.b_out", width) - 1} if flags["biases"] else {}
        return made | biases
    shapes = {"w_gate": (hidden, width), "w_up": (hidden, width), "w_down": (width, hidden)}
    if flags["ffn"] == "swiglu":
        return {f"ffn.{name}": draw(f"ffn.{name}", *shape) for name, shape in shapes.items()}
    made = {"moe.w_router": 2 * draw("moe.w_router", experts, width)}
    made |= {f"moe.{name}": draw(f"moe.{name}", experts, *shape) for name, shape in shapes.items()}
    if flags["shared"]:
        made |= {f"moe.shared.{name}": draw(f"moe.shared.{name}", *shape) for name, shape in shapes.items()}
    return made


OUT = ("ffn.w_out", "ffn.w_down", "moe.w_down", "moe.shared.w_down")


def scaled(params: dict[str, torch.Tensor], names: tuple[str, ...], factor: float) -> dict[str, torch.Tensor]:
    """The parameters with some of them, and no other, times a factor (0 silences what they produce)."""
    return {name: value * factor if name in names else value for name, value in params.items()}


SILENT_ATTENTION = ("attn.w_o", "attn.b_o")
SILENT_FEED = (*OUT, "ffn.b_out")
