"""How far correct evaluations of layers stray from the sampled spread: what FACTOR in `assay.numbers.sampled` rests on.

    python bench/calibrate_sampled.py [EVALUATIONS]     # measures again and writes bench/calibrate_sampled.json

Layers and stacks of four, pre- and post-norm and the others, drawn as the specification draws them, are evaluated in many
correct ways in three types: step by step in the type, with torch's fused operations, with sums in another order, with float32
inside, and in float64 with one rounding. z is the largest distance from the exact value, less the rounding of the stored
result, over the pooled spread of the first 16 runs (the fewer that the first verdict uses). The composition faults go through
the same examples: the share whose z lies beyond FACTOR is the power of one example.
"""
from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from assay import registry
from assay.cases import Configuration, generator
from assay.faults.block import Layer
from assay.numbers.arithmetic import Arithmetic
from assay.numbers.bound import rounding
from assay.numbers.sampled import FACTOR, FEWER, sampled
from assay.spec.block_cases import LayerCases, layer_options, layer_parameters

RECORD = Path(__file__).with_name("calibrate_sampled.json")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
QUANTILES = (0.5, 0.9, 0.99, 0.999, 0.9999)


class Fused(Layer):
    """torch's own norms, linear maps and attention."""

    def normed(self, name: str, t: Tensor) -> Tensor:
        weight, bias = self.params[f"{name}.weight"], self.params.get(f"{name}.bias")
        if self.norm == "layer":
            return functional.layer_norm(t, t.shape[-1:], weight, bias, self.eps)
        return functional.rms_norm(t, t.shape[-1:], weight, self.eps)

    def attention(self, t: Tensor, name: str = "attn", context: Tensor | None = None) -> Tensor:
        if self.positions is not None or self.mask is not None:
            return super().attention(t, name, context)
        p, heads = self.params, self.num_heads
        q, k, v = (functional.linear(t, p[f"{name}.w_{n}"], p.get(f"{name}.b_{n}")).unflatten(-1, (-1, t.shape[-1] // heads))
                   .transpose(1, 2) for n in "qkv")
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal, enable_gqa=k.shape[1] != heads)
        out = out.transpose(1, 2).flatten(2)
        if p.get(f"{name}.w_gate") is not None:
            out = out * torch.sigmoid(functional.linear(t, p[f"{name}.w_gate"]))
        return functional.linear(out, p[f"{name}.w_o"], p.get(f"{name}.b_o"))


class Reordered(Layer):
    """Hidden units in reverse, norms by way of the sum of squares."""

    def normed(self, name: str, t: Tensor) -> Tensor:
        return super().normed(name, t.flip(-1).contiguous().flip(-1))

    def feed(self, t: Tensor) -> Tensor:
        names = {"ffn.w_in": 0, "ffn.b_in": 0, "ffn.w_gate": 0, "ffn.w_up": 0, "ffn.w_out": 1, "ffn.w_down": 1}
        turned = {n: w.flip(names[n]).contiguous() if n in names else w for n, w in self.params.items()}
        return Layer(**{**vars(self), "params": turned}).feed(t)


def stack(kind: type[Layer], x: Tensor, layers: list[Mapping[str, Tensor]], options: Mapping[str, Any]) -> Tensor:
    """Layer by layer."""
    for params in layers:
        x = kind(x, params, **options).run()
    return x


def _in(kind: type[Layer], dtype: torch.dtype | None) -> Callable[..., Tensor]:
    def run(x: Tensor, layers: list[Mapping[str, Tensor]], options: Mapping[str, Any]) -> Tensor:
        inner = dtype or x.dtype
        return stack(kind, x.to(inner), [{n: w.to(inner) for n, w in p.items()} for p in layers], options).to(x.dtype)
    return run


def _reference(x: Tensor, layers: list[Mapping[str, Tensor]], options: Mapping[str, Any]) -> Tensor:
    for params in layers:
        x = registry.get("block", "reference")(x, params, **options)
    return x


WAYS: Mapping[str, Callable[..., Tensor]] = {
    "step by step": _in(Layer, None), "reference": _reference, "fused": _in(Fused, None), "reordered": _in(Reordered, None),
    "float32 inside": _in(Layer, torch.float32), "fused, float32 inside": _in(Fused, torch.float32),
    "float64 inside": _in(Layer, torch.float64),
}
FAULTS: Mapping[str, Callable[..., Mapping[str, Any]]] = {
    "eps 1e-5 for 1e-6": lambda o: {**o, "eps": 10 * o["eps"]},
    "gelu_tanh for gelu, gelu for others": lambda o: {**o, "activation": "gelu_tanh" if o["activation"] == "gelu" else "gelu"},
    "other placement": lambda o: {**o, "placement": "post" if o["placement"] == "pre" else "pre"},
    "not causal": lambda o: {**o, "causal": not o["causal"]},
    "positions off by one": lambda o: {**o, "positions": None if o["positions"] is None else o["positions"] * 2},
    "other norm": lambda o: {**o, "norm": "rms" if o["norm"] == "layer" else "layer"},
}


def examples(count: int) -> Iterator[tuple[Configuration, int]]:
    """Configurations and depths."""
    cases, claims = LayerCases(), registry.declarations("block")[0]
    options = cases.options(claims, {"B": (2, 1), "mask": ("none", "full", "padding"), "ffn": ("swiglu", "mlp")})
    source = generator(0, "calibration")
    while count > 0:
        picked = {name: some[int(torch.randint(len(some), (), generator=source))] for name, some in options.items()}
        made = cases.make(picked, int(torch.randint(1 << 16, (), generator=source)), claims, {})
        if made is not None:
            count -= 1
            yield made, 4 if count % 4 == 0 else 1


def options_of(configuration: Configuration, causal: bool) -> dict[str, Any]:
    """Every option that a fault changes, spelled out."""
    flags = configuration.flags
    named = {name: flags[name] for name in ("placement", "norm", "ffn", "activation", "eps")}
    return {"positions": None, **layer_options(configuration), **named, "causal": causal}


def gauge(value: Tensor, exact: Tensor, bar: Tensor, stored: Tensor) -> float:
    """Largest error less the stored rounding, over the spread."""
    over = ((value.double() - exact).abs() - stored).clamp_min(0.0)
    return float(torch.where(over > 0, over / (bar - stored), 0.0).nan_to_num(nan=1e9).max())


def measure(evaluations: int) -> dict[str, Any]:
    """z of each way, and of each fault, by dtype."""
    right: dict[str, list[float]] = defaultdict(list)
    wrong: dict[str, list[float]] = defaultdict(list)
    elements = 0
    for number, (configuration, depth) in enumerate(examples(evaluations // len(WAYS))):
        dtype = DTYPES[number % len(DTYPES)]
        short = str(dtype).removeprefix("torch.")
        example = LayerCases().build(configuration, dtype)
        options = options_of(configuration, configuration.flags["causal"])
        options |= {"mask": example["mask"]} if "mask" in example else {}
        layers = [layer_parameters(replace(configuration, seed=configuration.seed + place), dtype, "layer")
                  for place in range(depth)]
        found = sampled(_stacked(), {"x": example.x, "layers": layers, **options}, dtype, Arithmetic(), runs=FEWER, factor=1.0,
                        seed=number)
        (out,) = found.outputs
        if found.left_range:
            continue
        stored = rounding(out.value.abs(), Arithmetic().model(dtype).store)
        for name, way in WAYS.items():
            right[f"{name}, {short}"].append(gauge(way(example.x, layers, options), out.value, out.bar, stored))
            elements += out.numel()
        for name, fault in FAULTS.items():
            changed = fault(options)
            other = _reference(example.x.double(), [{n: w.double() for n, w in p.items()} for p in layers],
                               changed)
            if not torch.equal(other, out.value):
                wrong[f"{name}, {short}"].append(gauge(other, out.value, out.bar, stored))
    return summary(right, wrong, elements)


def _stacked() -> tuple[Any, ...]:
    """The forms of the layer, one layer after another."""
    def through(form: Any) -> Any:
        def forward(x: Tensor, layers: list[Mapping[str, Tensor]], **options: Any) -> Tensor:
            for params in layers:
                x = form.forward(x, params, **options)
            return x
        return replace(form, forward=forward)
    return tuple(through(form) for form in registry.forms("block"))


def summary(right: Mapping[str, list[float]], wrong: Mapping[str, list[float]], elements: int) -> dict[str, Any]:
    """Figures for the record."""
    every = torch.tensor([z for zs in right.values() for z in zs], dtype=torch.float64)
    beyond = int((every > FACTOR).sum())
    return {
        "factor": FACTOR, "runs": FEWER, "evaluations": len(every), "elements": elements, "beyond factor": beyond,
        "false-alarm rate at 95 % confidence, at most": round(-_log(0.05) / len(every), 7) if beyond == 0 else None,
        "largest z": round(float(every.max()), 3),
        "quantiles of z": {str(q): round(float(every.quantile(q)), 3) for q in QUANTILES},
        "largest z by way": {name: round(max(zs), 3) for name, zs in sorted(right.items())},
        "power of one example": {name: round(sum(z > FACTOR for z in zs) / len(zs), 3) for name, zs in sorted(wrong.items())},
    }


def _log(x: float) -> float:
    return float(torch.tensor(x, dtype=torch.float64).log())


if __name__ == "__main__":
    torch.set_num_threads(1)
    figures = measure(int(sys.argv[1]) if len(sys.argv) > 1 else 12_000)
    RECORD.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(figures, indent=1))
