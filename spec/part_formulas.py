"""What a recognised part of a model may be meant to give: the specification's formulas of its kind, in their variants.

A kind has variants, such as a norm's weight as it is or as an offset from one; each has the kind's legitimate ways to evaluate it.
"""
from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from assay import registry
from assay.numbers.forms import Form
from assay.recognition import Part

ROPE = {"default": (), "linear": ("factor",), "yarn": ("factor", "beta_fast", "beta_slow", "attention_factor"),
        "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
        "longrope": ("short_factor", "long_factor", "factor", "attention_factor")}
SPREAD: Mapping[str, Callable[[Tensor], Tensor]] = {  # how tables of cosines and sines may be laid out
    "as given": lambda t: t, "first half, each twice": lambda t: t[..., : t.shape[-1] // 2].repeat_interleave(2, -1),
    "halves twice": lambda t: torch.cat([t, t], -1), "each twice": lambda t: t.repeat_interleave(2, -1),
}


@dataclass
class Variant:
    """One way in which a kind's formula may be meant: forms, and what they are evaluated on."""

    name: str
    forms: Sequence[Form]
    arguments: Mapping[str, Any]


class UnknownError(Exception):
    """The specification has no formula for this."""


# ------------------------------------------------------------------------------------------------ variants of each kind
def _norm(part: Part) -> Iterator[Variant]:
    given, eps = part.tensors, part.options["eps"]
    x = given["x"]
    weight = given.get("weight")
    for kind in ("rms_norm", "layer_norm") if part.kind == "norm" else (part.kind,):
        bias = {} if kind == "rms_norm" else {"bias": given.get("bias", torch.zeros(x.shape[-1], dtype=x.dtype))}
        plain = {"x": x, "weight": torch.ones(x.shape[-1], dtype=x.dtype) if weight is None else weight, "eps": eps, **bias}
        yield Variant(f"{kind} with its weight" if weight is not None else f"{kind} without a weight", registry.forms(kind), plain)
        if weight is not None:
            yield Variant(f"{kind} with 1 + its weight", [_offset(form) for form in registry.forms(kind)], plain)


def _offset(form: Form) -> Form:
    def forward(x: Tensor, weight: Tensor, **others: Any) -> Tensor:
        out: Tensor = form.forward(x, weight=1 + weight, **others)
        return out

    return Form(f"{form.name}, offset", forward, additions=form.additions)


def _embedding(part: Part) -> Iterator[Variant]:
    scale = part.options["scale"]
    rows = {"ids": part.tensors["ids"], "weight": part.tensors["weight"]}
    plain = registry.forms("embedding")[0].forward
    if rows["ids"].numel() and not 0 <= int(rows["ids"].min()) <= int(rows["ids"].max()) < len(rows["weight"]):
        raise UnknownError("its ids are no rows of its table as they are")
    if scale == 1.0:
        yield Variant("", registry.forms("embedding"), rows)
    else:
        yield Variant("scaled", [Form("scaled", lambda ids, weight: plain(ids, weight) * scale)], rows)


def _linear_ways() -> tuple[Callable[..., Tensor], ...]:
    return (lambda x, w, b: x @ w.transpose(0, 1) if b is None else x @ w.transpose(0, 1) + b,
            registry.reference("feed_forward").bias_among_terms)


def _head(part: Part) -> Iterator[Variant]:
    def way(linear: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda x, weight, bias=None: linear(x.reshape(-1, x.shape[-1]), weight, bias).reshape(*x.shape[:-1], weight.shape[0])

    ways = _linear_ways() if "bias" in part.tensors else _linear_ways()[:1]
    yield Variant("", [Form(f"way {place}", way(linear)) for place, linear in enumerate(ways)],
                  {name: t for name, t in part.tensors.items() if name != "out"})


def _activations(name: str) -> list[Callable[[Tensor], Tensor]]:
    own = registry.reference("feed_forward")
    return [table[name] for table in (own.ACTIVATIONS, *own.ACTIVATION_FORMS.values()) if name in table]


def _feed_forward(part: Part) -> Iterator[Variant]:
    """Plain, gated, and gated with gate and up in one matrix: the gate first, or the up first."""
    given = dict(part.tensors)
    x, out, b_out = given["x"], given["w_out"], given.get("b_out")
    inner = [(given[f"w_{place}"], given.get(f"b_{place}")) for place in range(2) if f"w_{place}" in given]
    if part.kind == "fused_gated_feed_forward":
        (w, b), = inner
        half = w.shape[0] // 2
        inner = [(w[:half], None if b is None else b[:half]), (w[half:], None if b is None else b[half:])]
    biased = b_out is not None or any(b is not None for _, b in inner)
    orders = (("", inner),) if len(inner) == 1 else (("gate first", inner), ("gate second", inner[::-1]))
    for name, order in orders:
        arguments: dict[str, Any] = {"x": x, "out": out, "b_out": b_out, "w_in": order[0][0], "b_in": order[0][1]}
        if len(order) == 2:
            arguments |= {"w_up": order[1][0], "b_up": order[1][1]}
        ways = _linear_ways() if biased else _linear_ways()[:1]
        forms = [Form(f"{place}", _mixed(linear, act)) for place, (linear, act) in enumerate(
            (linear, act) for linear in ways for act in _activations(part.options["activation"]))]
        yield Variant(f"{part.options['activation']}{', ' + name if name else ''}", forms, arguments)


def _mixed(linear: Callable[..., Tensor], act: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def forward(x: Tensor, out: Tensor, b_out: Tensor | None, w_in: Tensor, b_in: Tensor | None, w_up: Tensor | None = None,
                b_up: Tensor | None = None) -> Tensor:
        hidden = act(linear(x, w_in, b_in))
        return linear(hidden if w_up is None else hidden * linear(x, w_up, b_up), out, b_out)

    return forward


def _experts(part: Part) -> Iterator[Variant]:
    given = part.tensors
    half = given["down"].shape[2]
    up = given["gate_up"]
    for name, gate, other in (("gate first", up[:, :half], up[:, half:]), ("gate second", up[:, half:], up[:, :half])):
        arguments = {"x": given["x"], "indices": given["indices"], "weights": given["weights"], "gate": gate, "up": other,
                     "down": given["down"]}
        forms = [Form(f"{place} {early}", _chosen(act, early)) for place, act in enumerate(_activations(part.options["activation"]))
                 for early in (False, True)]
        yield Variant(f"{part.options['activation']}, {name}", forms, arguments)


def _chosen(act: Callable[[Tensor], Tensor], early: bool) -> Callable[..., Tensor]:
    """The experts' sum; the router's weight multiplies what an expert gives, or its hidden state."""
    def forward(x: Tensor, indices: Tensor, weights: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
        parts = []
        for e in range(down.shape[0]):
            share = torch.where(indices == e, weights, 0.0).sum(-1, keepdim=True)
            hidden = act(x @ gate[e].transpose(0, 1)) * (x @ up[e].transpose(0, 1))
            parts.append((hidden * share) @ down[e].transpose(0, 1) if early else (hidden @ down[e].transpose(0, 1)) * share)
        return torch.stack(parts).sum(0)

    return forward


def _attention(part: Part) -> Iterator[Variant]:
    given = {name: t for name, t in part.tensors.items() if name != "out"}
    scale = part.options["scale"]
    softcap = part.options["softcap"]
    yield Variant("", registry.forms("attention"), {"mask": None, "bias": None, "causal": False, "window": None, **given,
                                                    "scale": scale, "softcap": softcap})


def _rotary(part: Part) -> Iterator[Variant]:
    """Tables: what a pair (1, 0) is turned into is its cosine and sine."""
    options, width = part.options, part.tensors["out"].shape[-1]
    kind = options.get("rope_type", "default")
    length = options.get("original_max_position_embeddings")
    if kind not in ROPE or any(options.get(name) is not None for name in ("mscale", "mscale_all_dim", "truncate")):
        raise UnknownError(f"rotary tables of type {kind}, which the specification does not have in this form")
    named = {name: options[name] for name in ROPE[kind] if options.get(name) is not None}
    scaling = None if kind == "default" else {"type": kind, **named}
    if scaling is not None and kind != "linear":
        if length is None:
            raise UnknownError(f"rotary tables of type {kind} without original_max_position_embeddings")
        scaling["original_length"] = length
    arguments = {"positions": part.tensors["positions"], "base": float(options["rope_theta"]), "scaling": scaling}
    for name, size in (("halves twice", width), ("as given", 2 * width), ("each twice", width)):
        yield Variant(f"tables {name}", [Form(form.name, _turned(form, size, SPREAD[name])) for form in registry.forms("rotary")],
                      arguments)


def _turned(form: Form, width: int, spread: Callable[[Tensor], Tensor]) -> Callable[..., Any]:
    def forward(positions: Tensor, base: float, scaling: Any) -> tuple[Tensor, Tensor]:
        unit = torch.cat([torch.ones(*positions.shape, width // 2), torch.zeros(*positions.shape, width // 2)], -1).unsqueeze(1)
        out = form.forward(unit, positions, base=base, pairing="half", scaling=scaling)[:, 0]
        return spread(out[..., : width // 2]), spread(out[..., width // 2 :])

    return forward


def _rotation(part: Part) -> Iterator[Variant]:
    given = part.tensors
    for name, spread in SPREAD.items():
        for pairing in ("half", "interleaved"):
            cos, sin = spread(given["cos"]), spread(given["sin"])
            if cos.shape[-1] <= given["q"].shape[-1]:
                yield Variant(f"{pairing}, {name}", [Form("as written", _rotated(pairing))],
                              {"q": given["q"], "k": given["k"], "cos": cos, "sin": sin})


def _rotated(pairing: str) -> Callable[..., tuple[Tensor, Tensor]]:
    def one(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        width = cos.shape[-1]
        turned, rest = x[..., :width], x[..., width:]
        first, second = registry.reference("rotary").pairs(turned, pairing)
        other = torch.cat([-second, first], -1) if pairing == "half" else torch.stack([-second, first], -1).flatten(-2)
        return torch.cat([turned * cos + other * sin, rest], -1)

    return lambda q, k, cos, sin: (one(q, cos, sin), one(k, cos, sin))


VARIANTS: Mapping[str, Callable[[Part], Iterator[Variant]]] = {
    "norm": _norm, "rms_norm": _norm, "layer_norm": _norm, "embedding": _embedding, "head": _head, "feed_forward": _feed_forward,
    "gated_feed_forward": _feed_forward, "fused_gated_feed_forward": _feed_forward, "experts": _experts, "attention": _attention,
    "rotary": _rotary, "rotation": _rotation,
}
