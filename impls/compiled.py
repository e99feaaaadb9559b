"""The references compiled by torch: the same formulas, rewritten by a compiler.

`compiled-aot-…` (backend aot_eager) traces, makes functional and differentiates ahead of time, and runs torch's own kernels;
it takes every option. `compiled-inductor-…` writes C++ too: tens of seconds a graph, so two sets of options in two types. That,
and all kinds but the first five, run only where they are named, or by the profile `deep`. A call that no compiled graph served is
never passed off as one (`compiling.Compiled`).

No whole graph holds a reference that branches on values: ids, lengths, experts chosen or a seed. Those kinds are not here, nor
those that are handed functions, read text or make a model; `compiling_does_not_matter` compiles what can be of everyone's.
"""
from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

import assay
from assay.compiling import Compiled
from assay.registry import reference

KINDS = ("softmax", "attention", "rotary", "layer_norm", "rms_norm")
FURTHER = ("add_rms_norm", "alibi", "batch_norm", "block", "blockwise_attention", "decoder", "encoder", "feed_forward",
           "gated_feed_forward", "latent_attention", "load_balancing_loss", "logits_filter", "multi_head_attention", "patchify",
           "policy_loss", "preference_loss", "qk_norm_attention", "router", "router_z_loss", "sigmoid_router", "sink_attention",
           "sinusoidal", "unembedding")
VERSION = torch.__version__


def compiled(kind: str, backend: str, **options: Any) -> Compiled:
    """The kind's reference, to be compiled whole."""
    return Compiled(getattr(reference(kind), kind), backend, **options)


AOT = {kind: compiled(kind, "aot_eager") for kind in (*KINDS, *FURTHER)}
# Building the C++ takes longest, whatever the sizes are: so they are symbols from the first graph on.
INDUCTOR = {kind: compiled(kind, "inductor", shapes=0) for kind in KINDS} | {"block": compiled("block", "inductor", shapes=1)}


def whole_call(kind: str) -> Callable[..., Tensor]:
    """The compiled reference, with the reference's own signature."""
    @functools.wraps(AOT[kind].function)
    def call(*arguments: Any, **options: Any) -> Any:
        return AOT[kind](*arguments, **options)
    return call


for name in ("softmax", "attention", "layer_norm", "rms_norm"):
    assay.implements(name, name=f"compiled-aot-{name}", version=VERSION)(whole_call(name))
for name in FURTHER:
    options = getattr(reference(name), "DECLARATION", {})
    assay.implements(name, **{**options, "name": f"compiled-aot-{name}", "version": VERSION, "deep": True})(whole_call(name))


@assay.implements("rotary", name="compiled-aot-rotary", version=VERSION, offers={"negative_positions"})
def rotary(
    x: Tensor, positions: Tensor, *, base: float = 10000.0, pairing: str = "interleaved", rotary_dim: int | None = None,
    scaling: Mapping[str, Any] | None = None,
) -> Any:
    """All but LongRoPE, which chooses its list by the largest position: a branch on a value, which no whole graph can hold."""
    if scaling is not None and scaling.get("type") == "longrope":
        raise NotImplementedError("scaling: LongRoPE branches on the values of positions, which no whole graph can hold")
    return AOT["rotary"](x, positions, base=base, pairing=pairing, rotary_dim=rotary_dim, scaling=scaling)


def inductor(kind: str, **options: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Declare an implementation that is planned where it is named, or by the profile deep."""
    return assay.implements(kind, name=f"compiled-inductor-{kind}", version=VERSION, dtypes=("float32", "bfloat16"), deep=True,
                            **options)


@inductor("softmax", limits={"dim": {-1, 0}})
def softmax_in_cpp(x: Tensor, *, dim: int = -1) -> Any:
    """Over the last axis and over the first."""
    return INDUCTOR["softmax"](x, dim=dim)


@inductor("attention")
def attention_in_cpp(q: Tensor, k: Tensor, v: Tensor, *, causal: bool = False) -> Any:
    """Causal or not, no other option."""
    return INDUCTOR["attention"](q, k, v, causal=causal)


@inductor("rotary", offers={"negative_positions"})
def rotary_in_cpp(x: Tensor, positions: Tensor, *, pairing: str = "interleaved") -> Any:
    """Both pairings, no other option."""
    return INDUCTOR["rotary"](x, positions, pairing=pairing)


@inductor("layer_norm", limits={"eps": {1e-5, 1e-6}})
def layer_norm_in_cpp(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Any:
    """The two usual epsilons."""
    return INDUCTOR["layer_norm"](x, weight, bias, eps=eps)


@inductor("rms_norm", limits={"eps": {1e-5, 1e-6}})
def rms_norm_in_cpp(x: Tensor, weight: Tensor, *, eps: float) -> Any:
    """The two usual epsilons."""
    return INDUCTOR["rms_norm"](x, weight, eps=eps)


@inductor("block", lacks={"empty"}, limits={"norm": {"rms"}, "ffn": {"swiglu"}, "eps": {1e-6}, "H": {8}})
def block_in_cpp(x: Tensor, params: Mapping[str, Any], *, num_heads: int) -> Any:
    """Pre-norm and causal, RMS norms and SwiGLU, eight heads: a number of heads is a graph of its own, half a minute each."""
    return INDUCTOR["block"](x, params, num_heads=num_heads)
