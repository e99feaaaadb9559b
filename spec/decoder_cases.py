"""How examples of decoders and of encoder–decoders are drawn."""
from __future__ import annotations

from typing import Any

import torch

from assay.cases import Configuration, Example, draw_values, generator
from assay.contract.declaration import Declaration
from assay.spec.block_cases import LAYER_FLAGS, LayerCases, drawn_mask, layer_options, layer_parameters


class DecoderCases(LayerCases):
    """L layers over T target tokens and a memory of S."""

    kind = "decoder"
    dims = {"L": (2, 1, 3), "S": (4, 1, 2, 3, 5, 8), **{letter: sizes[:3] for letter, sizes in LayerCases.dims.items()},
            "T": (3, 1, 2, 5, 8)}
    flags = {**LAYER_FLAGS, "memory_mask": ("none", "padding", "padding_left", "full")}

    def adapt(self, configuration: Configuration, claims: Declaration) -> Configuration | None:
        made = super().adapt(configuration, claims)
        if made is not None and not claims.claims("cross_lengths"):
            made = made.but(S=made.dims["T"])
        if made is not None and made.flags["memory_mask"].startswith("padding") and not claims.claims("padding"):
            made = made.but(memory_mask="none")
        return made

    def build(self, configuration: Configuration, dtype: torch.dtype) -> Example:
        d, flags, seed = configuration.dims, configuration.flags, configuration.seed
        width = d["H"] * d["D"]
        arguments: dict[str, Any] = {
            "y": draw_values(configuration.family, (d["B"], d["T"], width), generator(seed, "y"), dtype),
            "memory": draw_values("normal", (d["B"], d["S"], width), generator(seed, "memory"), dtype),
            "layers": [layer_parameters(configuration, dtype, f"layer {depth}", cross=True) for depth in range(d["L"])],
            **layer_options(configuration)}
        masks = {"mask": drawn_mask(flags["mask"], d["B"], d["T"], d["T"], generator(seed, "mask")),
                 "memory_mask": drawn_mask(flags["memory_mask"], d["B"], d["T"], d["S"], generator(seed, "memory mask"))}
        return Example(configuration, dtype, {**arguments, **{name: made for name, made in masks.items() if made is not None}})


class TranslatorCases(DecoderCases):
    """L encoder layers and as many decoder layers, V words, S source and T target tokens."""

    kind = "encoder_decoder"
    dims = {**DecoderCases.dims, "V": (7, 2, 13), "L": (1, 2)}
    flags = {**{name: choices for name, choices in LAYER_FLAGS.items() if name != "mask"},
             "src_mask": ("none", "padding", "padding_left"),
             "tgt_mask": ("none", "padding", "padding_left"), "table": (True, False), "final_norm": (True, False),
             "encoder_norm": (False, True), "unembed": (True, False)}
    families = ("normal",)

    def adapt(self, configuration: Configuration, claims: Declaration) -> Configuration | None:
        flags = dict(configuration.flags)
        if flags["tgt_mask"] == "padding_left" and not (claims.claims("empty_rows") and claims.claims("padding")):
            flags["tgt_mask"] = "padding"
        if not claims.claims("padding"):
            flags["src_mask"] = flags["tgt_mask"] = "none"
        if flags["positions"] == "own":
            flags["positions"] = "index"  # source and target have lengths of their own
        if "positions" not in claims.keywords:
            flags["positions"] = "none"  # the convention of that name says how a table is counted, and no rotary goes by it
        made = LayerCases.adapt(self, configuration.but(**flags, mask="none"), claims)
        if made is None:
            return None
        kept = {name: value for name, value in made.flags.items() if name != "mask"}
        size = made.dims["S"] if claims.claims("cross_lengths") else made.dims["T"]
        return Configuration(made.kind, {**made.dims, "S": size}, kept, made.family, made.layout, made.seed)

    def build(self, configuration: Configuration, dtype: torch.dtype) -> Example:
        d, flags, seed = configuration.dims, configuration.flags, configuration.seed
        longest = max(d["S"], d["T"])
        ids = {name: torch.randint(0, d["V"], (d["B"], length), generator=generator(seed, name)) for name, length in
               (("src", d["S"]), ("tgt", d["T"]))}
        options = layer_options(configuration.but(T=longest))
        masks = {f"{name}_mask": drawn_mask(flags[f"{name}_mask"], d["B"], length, length, generator(seed, f"{name} mask"))
                 for name, length in (("src", d["S"]), ("tgt", d["T"]))}
        given = {name: made for name, made in masks.items() if made is not None}
        return Example(configuration, dtype, {**ids, "params": _parameters(configuration, dtype, longest + 2), **options, **given})


def _parameters(configuration: Configuration, dtype: torch.dtype, room: int) -> dict[str, Any]:
    d, flags, seed = configuration.dims, configuration.flags, configuration.seed
    width = d["H"] * d["D"]

    def drawn(label: str, *shape: int) -> torch.Tensor:
        return draw_values("normal", shape, generator(seed, label), torch.float64)

    made: dict[str, Any] = {
        "embed.weight": drawn("embed", d["V"], width).to(dtype),
        "encoder": [layer_parameters(configuration, dtype, f"encoder {depth}") for depth in range(d["L"])],
        "decoder": [layer_parameters(configuration, dtype, f"decoder {depth}", cross=True) for depth in range(d["L"])]}
    if flags["table"]:
        made["pos.weight"] = (0.5 * drawn("pos", room, width)).to(dtype)
    for name in ("encoder_norm", "final_norm"):
        if flags[name]:
            made[f"{name}.weight"] = (1 + 0.3 * drawn(name, width)).to(dtype)
    if flags["unembed"]:
        made["unembed.weight"] = (drawn("unembed", d["V"], width) / width**0.5).to(dtype)
    return made
