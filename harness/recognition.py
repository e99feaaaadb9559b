"""What a module of a model is: recognised by what it owns and how it was called, as a norm, a feed-forward network, an embedding …

Nothing is judged here, see `spec/part_verdicts.py`. A module that is none of these is told with the reason.
"""
from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

EPSILON = ("eps", "variance_epsilon", "epsilon", "layer_norm_eps", "norm_eps")
ACTIVATION = ("act_fn", "act", "activation_fn", "activation", "intermediate_act_fn", "activation_func", "act_func", "hidden_act")
SCALE = ("embed_scale", "scalar_embed_scale", "embedding_multiplier")
MEANT = ("position_ids", "cache_position", "cu_seq_lens_q", "cu_seq_lens_k")  # attentions are handed them; the mask says it already
ACTIVATIONS = {  # type or function -> name in the specification
    "SiLU": "silu", "SiLUActivation": "silu", "silu": "silu", "swish": "silu", "ReLU": "relu", "relu": "relu",
    "GELUActivation": "gelu", "gelu": "gelu", "GELUTanh": "gelu_tanh", "PytorchGELUTanh": "gelu_tanh",
    "NewGELUActivation": "gelu_tanh", "FastGELUActivation": "gelu_tanh", "BloomGelu": "gelu_tanh",
    "AccurateGELUActivation": "gelu_tanh",
}


@dataclass
class Part:
    """One module (or function) as it was called once. kind: "" where it is not recognised, and then the reason says why.

    sure: torch's own class, whose formula is known. tensors: what it received and owns, and last `out`.
    """

    name: str
    type: str
    kind: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    reason: str = ""
    sure: bool = False

    def told(self) -> dict[str, Any]:
        """All but the tensors, of which the names, as JSON."""
        return {"name": self.name, "type": self.type, "kind": self.kind, "options": self.options, "reason": self.reason,
                "sure": self.sure, "tensors": list(self.tensors)}

    @property
    def sort(self) -> tuple[Any, ...]:
        """What parts of one variant have in common."""
        return self.type, self.kind, frozenset(self.tensors) - {"mask"}, self.options.get("modes", "")

    @property
    def size(self) -> int:
        """Bytes of its tensors."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors.values())


@dataclass
class Seen:
    """One call of a module: tensors in the order in which they were given, those given by name, and what came out."""

    name: str
    module: nn.Module
    given: list[Tensor]
    named: dict[str, Any]
    out: Any = None

    def part(self, kind: str, tensors: dict[str, Tensor], *, sure: bool = False, **options: Any) -> Part:
        """A recognised one; its result is the first tensor of what came out."""
        return Part(self.name, type(self.module).__name__, kind, {**options, "modes": self.modes()},
                    {**tensors, "out": first(self.out)}, sure=sure)

    def modes(self) -> str:
        """Switches among its attributes: modules of one class that differ in them may mean different formulas."""
        known = {*EPSILON, "training", "_is_hf_initialized"}
        switches = {name: value for name, value in vars(self.module).items()
                    if name not in known and type(value) in (bool, str, float)}
        return ", ".join(f"{name}={value}" for name, value in sorted(switches.items()))


def first(out: Any) -> Tensor:
    """The result itself, or the first of several."""
    found: Tensor = out if isinstance(out, Tensor) else out[0]
    return found


# ------------------------------------------------------------------------------------------------ recognition
def norm(seen: Seen) -> Part | str | None:
    """A vector of weights, or none, and an epsilon; one input, whose last axis is scaled."""
    module, owned = seen.module, dict(seen.module.named_parameters(recurse=False))
    eps = next((getattr(module, name) for name in EPSILON if isinstance(getattr(module, name, None), (int, float))), None)
    named = "norm" in type(module).__name__.lower()
    if not named or list(module.children()) or isinstance(module, (nn.GroupNorm, nn.modules.batchnorm._NormBase)):
        return None
    if isinstance(module, nn.RMSNorm) and eps is None:
        eps = torch.finfo(seen.given[0].dtype).eps
    if eps is None:
        return "a norm without an epsilon among its attributes"
    if len(seen.given) != 1 or not isinstance(seen.out, Tensor) or seen.out.shape != seen.given[0].shape:
        return f"a norm that takes {len(seen.given)} tensors" if len(seen.given) != 1 else "a norm of another shape"
    width = seen.given[0].shape[-1]
    grouped = [name for name, value in vars(module).items() if "group" in name and isinstance(value, int) and value != width]
    if grouped:
        return f"a norm with {grouped[0]}={getattr(module, grouped[0])}"
    if not set(owned) <= {"weight", "bias", "gamma", "beta", "scale"} or any(p.shape != (width,) for p in owned.values()):
        return "a norm with other weights than one vector as wide as its input"
    weight = next((owned[name] for name in ("weight", "gamma", "scale") if owned.get(name) is not None), None)
    bias = next((owned[name] for name in ("bias", "beta") if owned.get(name) is not None), None)
    own = isinstance(module, (nn.LayerNorm, nn.RMSNorm)) and type(module).forward in (nn.LayerNorm.forward, nn.RMSNorm.forward)
    rms = isinstance(module, nn.RMSNorm) or "rms" in type(module).__name__.lower()
    kind = "layer_norm" if bias is not None or (own and not rms) else "rms_norm" if rms else "norm"
    tensors = {"x": seen.given[0], "weight": weight, "bias": bias}
    return seen.part(kind, {name: t for name, t in tensors.items() if t is not None}, sure=own, eps=float(eps))


def embedding(seen: Seen) -> Part | str | None:
    """A table, and ids that choose its rows."""
    module = seen.module
    if not isinstance(module, nn.Embedding):
        return None
    ids, own = [t for t in seen.given if not t.is_floating_point()], type(module).forward is nn.Embedding.forward
    if len(ids) != 1 or len(seen.given) != 1 or not isinstance(seen.out, Tensor) or seen.out.shape[:-1] != ids[0].shape:
        return "an embedding that takes something else than ids"
    scale = next((getattr(module, name) for name in SCALE if hasattr(module, name)), 1.0)
    scale = float(scale.float()) if isinstance(scale, Tensor) and scale.numel() == 1 else scale
    if not isinstance(scale, (int, float)):
        return "an embedding with a scale that is no number"
    return seen.part("embedding", {"ids": ids[0], "weight": module.weight}, sure=own, scale=float(scale))


def activation(module: nn.Module) -> str:
    """The name of the activation that a module holds, or "?" and its own name where the specification has none."""
    held = next((getattr(module, name) for name in ACTIVATION if callable(getattr(module, name, None))), None)
    name = getattr(held, "__name__", type(held).__name__)
    if isinstance(held, nn.GELU):
        return "gelu" if held.approximate == "none" else "gelu_tanh"
    return ACTIVATIONS.get(name, f"?{name}") if held is not None else ""


def weights(module: nn.Module) -> tuple[Tensor, Tensor | None] | None:
    """Weight (out, in) and bias of a linear map, torch's or GPT-2's transposed one."""
    if isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward:
        return module.weight, module.bias
    transposed = type(module).__name__ == "Conv1D" and isinstance(getattr(module, "nf", None), int)
    return (module.weight.T, module.bias) if transposed else None  # type: ignore[return-value, operator]


def feed_forward(seen: Seen) -> Part | str | None:
    """Two or three linear maps and an activation, on each token alone."""
    module = seen.module
    maps = {name: found for name, child in module.named_children() if (found := weights(child)) is not None}
    others = [child for name, child in module.named_children() if name not in maps]
    acts, x = activation(module), seen.given[0] if seen.given else None
    if not 2 <= len(maps) <= 3 or not acts or x is None or list(module.parameters(recurse=False)) or any(
            list(child.parameters()) for child in others):
        return None
    if len(seen.given) != 1 or not isinstance(seen.out, Tensor) or seen.out.shape != x.shape:
        return None
    if acts.startswith("?"):
        return f"its activation {acts[1:]} is none of the specification's"
    *inner, (out, b_out) = maps.values()
    wide = {w.shape for w, _ in inner}
    tensors = {"x": x, "w_out": out, "b_out": b_out}
    for place, (w, b) in enumerate(inner):
        tensors |= {f"w_{place}": w, f"b_{place}": b}
    if len(wide) != 1 or next(iter(wide))[1] != x.shape[-1] or out.shape[0] != x.shape[-1]:
        return "its linear maps do not follow one another"
    ratio = inner[0][0].shape[0] / out.shape[1]
    kind = {(1, 1.0): "feed_forward", (1, 2.0): "fused_gated_feed_forward", (2, 1.0): "gated_feed_forward"}.get((len(inner), ratio))
    if kind is None:
        return "its linear maps do not follow one another"
    return seen.part(kind, {name: t for name, t in tensors.items() if t is not None}, activation=acts)


def experts(seen: Seen) -> Part | str | None:
    """Stacked gated experts with what the router chose: tokens, experts, their weights."""
    module, owned = seen.module, dict(seen.module.named_parameters(recurse=False))
    if set(owned) != {"gate_up_proj", "down_proj"} or len(seen.given) != 3 or not isinstance(seen.out, Tensor):
        return None
    acts, (x, *rest) = activation(module), seen.given
    indices, chosen = sorted(rest, key=lambda t: t.is_floating_point())
    up, down = owned["gate_up_proj"], owned["down_proj"]
    if acts.startswith("?") or not acts:
        return f"its activation {acts[1:]} is none of the specification's"
    if indices.is_floating_point() or up.shape[2] != x.shape[-1] or up.shape[1] != 2 * down.shape[2] or x.dim() != 2 \
            or chosen.shape != indices.shape:
        return "experts of another shape"
    gate = getattr(type(module), "_apply_gate", None)
    if gate is not None and gate.__name__ != "_default_apply_gate":
        return "experts with a gate of their own"
    return seen.part("experts", {"x": x, "indices": indices, "weights": chosen, "gate_up": up, "down": down}, activation=acts)


def tables(seen: Seen) -> Part | str | None:
    """Cosines and sines of a rotary embedding, as the configuration has them."""
    module, out = seen.module, seen.out
    frequencies = [name for name in dict(module.named_buffers(recurse=False)) if name.endswith("inv_freq")]
    if not frequencies:
        return None
    if not (isinstance(out, tuple) and len(out) == 2 and all(isinstance(t, Tensor) and t.dim() == 3 for t in out)):
        return "rotary tables that are no pair (B, T, R)"
    rope = getattr(getattr(module, "config", None), "rope_parameters", None)
    kind = next((value for value in seen.named.values() if isinstance(value, str)), None)
    rope = rope.get(kind) if isinstance(rope, dict) and kind is not None else rope
    ids = [t for t in seen.given if not t.is_floating_point()]
    if not isinstance(rope, dict) or "rope_theta" not in rope or len(ids) != 1 or ids[0].dim() != 2:
        return "rotary tables without a base, or with several positions a token"
    tensors = {"positions": ids[0], "sin": out[1]}
    plain = {name: value for name, value in rope.items() if isinstance(value, (int, float, str, list)) or value is None}
    part = seen.part("rotary", tensors)
    part.options |= plain
    return part


RECOGNISED: tuple[Callable[[Seen], Part | str | None], ...] = (norm, embedding, tables, experts, feed_forward)


def head(seen: Seen) -> Part | str:
    """The output embedding: a linear map."""
    found = weights(seen.module)
    if found is None or len(seen.given) != 1:
        return "a head that is no linear map"
    bias = {} if found[1] is None else {"bias": found[1]}
    return seen.part("head", {"x": seen.given[0], "weight": found[0], **bias}, sure=True)


# ------------------------------------------------------------------------------------------------ functions
def unknown(given: Mapping[str, Any], known: Sequence[str]) -> list[str]:
    """Tensors and numbers that an attention is handed, and that are none of these nor said by the mask."""
    return sorted(name for name, value in given.items() if name not in (*known, *MEANT) and isinstance(value, (Tensor, float)))


def seen_and_bias(mask: Tensor) -> dict[str, Tensor]:
    """A mask of the library's as the contract has it: which keys are seen, and what is added to their scores where that is not 0.

    What hides a key is the type's lowest number, to which a bias may have been added: all below half of it does.
    """
    if mask.dtype == torch.bool:
        return {"mask": mask}
    added = mask if mask.is_floating_point() else mask.float()
    seen = added > torch.finfo(added.dtype).min / 2
    return {"mask": seen} | ({"bias": torch.where(seen, added, 0.0)} if bool((added[seen] != 0).any()) else {})


def eager_attention_forward(name: str, args: tuple[Any, ...], named: dict[str, Any], out: Any) -> Part:
    """The attention of a layer: (module, query, key, value, mask, scaling) → (out (B,T,H,D), weights)."""
    given = dict(zip(("module", "query", "key", "value", "attention_mask", "scaling", "dropout"), args, strict=False)) | named
    more = unknown(given, ("query", "key", "value", "attention_mask", "scaling", "dropout", "softcap"))
    part = Part(name, "eager_attention_forward", "attention")
    mask = given.get("attention_mask")
    if more:
        return Part(name, part.type, reason=f"attention that takes {', '.join(more)} besides")
    if given["query"].shape[1] % given["key"].shape[1] or given["query"].shape[-1] != given["key"].shape[-1]:
        return Part(name, part.type, reason="attention of another shape")
    part.tensors = {"q": given["query"], "k": given["key"], "v": given["value"]}
    if isinstance(mask, Tensor):
        part.tensors |= seen_and_bias(mask[..., : given["key"].shape[-2]])
    scale, cap = given.get("scaling"), given.get("softcap")
    scale = getattr(given.get("module"), "scaling", None) if scale is None else scale
    part.options = {"scale": float(scale) if scale is not None else None, "softcap": float(cap) if cap else None}
    part.tensors["out"] = first(out)
    return part


def apply_rotary_pos_emb(name: str, args: tuple[Any, ...], named: dict[str, Any], out: Any) -> Part:
    """Queries and keys turned by given cosines and sines."""
    part = Part(name, "apply_rotary_pos_emb", "rotation")
    given = dict(zip(("q", "k", "cos", "sin"), args, strict=False)) | named
    cos, sin = given.get("cos"), given.get("sin")
    if not (isinstance(cos, Tensor) and isinstance(sin, Tensor) and cos.dim() == sin.dim() == 3 and isinstance(out, tuple)):
        return Part(name, part.type, reason="rotation by something else than a pair of tables")
    axis = named.get("unsqueeze_dim", args[4] if len(args) > 4 and isinstance(args[4], int) else 1)
    part.tensors = {"q": given["q"], "k": given["k"], "cos": cos.unsqueeze(axis), "sin": sin.unsqueeze(axis),
                    "out_k": out[1], "out": out[0]}
    return part
