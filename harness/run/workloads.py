"""What is timed: for each kind a few sizes as users have them, and the implementation that others are compared with."""
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from assay import registry
from assay.cases import Configuration, Example
from assay.errors import UsageError


@dataclass(frozen=True)
class Workload:
    """One example to time. growth: the letters that grow together when the growth of work and memory is fitted."""

    label: str
    dims: Mapping[str, int]
    flags: Mapping[str, Any] = field(default_factory=dict)
    growth: tuple[str, ...] = ("T",)

    def grown(self, factor: float) -> Workload:
        """The same with its growing letters times `factor`."""
        dims = {letter: max(1, int(size * factor)) if letter in self.growth else size for letter, size in self.dims.items()}
        return Workload(self.label, dims, self.flags, self.growth)


def _heads(length: int, groups: int = 8, **flags: Any) -> Workload:
    dims = {"B": 1, "H": 8, "G": groups, "Tq": length, "Tk": length, "D": 64, "Dv": 64}
    said = [f"T={length}", *([f"G={groups}"] if groups != 8 else []), *(f"{name}={value}" for name, value in flags.items())]
    return Workload(" ".join(said), dims, flags, ("Tq", "Tk"))


_NORM = (Workload("1×1024×1024", {"B": 1, "T": 1024, "C": 1024}), Workload("1×256×4096", {"B": 1, "T": 256, "C": 4096}))
_FEED = (Workload("512 tokens, C=256, F=1024", {"B": 1, "T": 512, "C": 256, "F": 1024}),)

WORKLOADS: Mapping[str, tuple[Workload, ...]] = {
    "attention": (_heads(512, causal=True), _heads(1024, causal=True), _heads(1024, groups=2, causal=True), _heads(512),
                  _heads(1024, causal=True, window=128)),
    "blockwise_attention": (_heads(512, causal=True, block_q=64, block_k=64),),
    "softmax": (Workload("2048×2048", {"B": 2048, "C": 2048}, {}, ("B",)),),
    "rms_norm": _NORM,
    "layer_norm": _NORM,
    "add_rms_norm": _NORM,
    "rotary": (Workload("T=1024 H=8 D=64", {"B": 1, "H": 8, "T": 1024, "D": 64}),),
    "cross_entropy": (Workload("512×32000", {"N": 512, "V": 32000}, {}, ("N",)),),
    "lm_loss": (Workload("2×256×8000", {"B": 2, "T": 256, "V": 8000}),),
    "feed_forward": _FEED,
    "gated_feed_forward": _FEED,
    "moe": (Workload("512 tokens, 8 experts, K=2", {"B": 1, "T": 512, "C": 128, "F": 256, "E": 8, "K": 2}),),
    "multi_head_attention": (Workload("T=256 H=8", {"B": 1, "H": 8, "G": 8, "Tq": 256, "Tk": 256, "D": 32}, {}, ("Tq", "Tk")),),
    "block": (Workload("256 tokens, H=8, C=256, F=704", {"B": 1, "T": 256, "H": 8, "G": 8, "D": 32, "F": 704}),),
    "embedding": (Workload("32000×256, 2048 ids", {"V": 32000, "C": 256, "B": 4, "T": 512}),),
}
PEERS: Mapping[str, str] = {
    "attention": "sdpa", "softmax": "torch-softmax", "rms_norm": "torch-rms-norm", "layer_norm": "torch-layer-norm",
    "add_rms_norm": "torch-add-rms-norm",
    "cross_entropy": "torch-cross-entropy", "feed_forward": "torch-linear", "gated_feed_forward": "torch-glu",
    "multi_head_attention": "torch-multi-head", "embedding": "torch-embedding",
}


def workloads(kind: str) -> tuple[Workload, ...]:
    """Those of a kind that has any."""
    if kind not in WORKLOADS:
        raise UsageError(f"kind={kind!r} has nothing that is timed; those that have: {', '.join(WORKLOADS)}")
    return WORKLOADS[kind]


def peer(kind: str) -> str:
    """The name of the implementation that others are compared with."""
    return PEERS.get(kind, "reference")


def example(kind: str, workload: Workload, dtype: Any) -> Example:
    """The workload's tensors: the kind's own cases, every letter and flag that is not named at its simplest."""
    cases = registry.properties(kind)[0].cases
    dims = {letter: workload.dims.get(letter, sizes[0]) for letter, sizes in cases.dims.items()}
    flags = {name: workload.flags.get(name, options[0]) for name, options in cases.flags.items()}
    return cases.example(Configuration(kind, dims, flags, "normal"), dtype)
