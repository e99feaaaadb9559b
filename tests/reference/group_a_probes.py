"""Examples for the kinds of group A: small ones, and those where the known faults show."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Example = dict[str, Any]
Probe = Callable[[torch.dtype], Example]


class Draw:
    """Tensors from a seed, rounded to a type."""

    def __init__(self, seed: int, dtype: torch.dtype) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.dtype = dtype

    def normal(self, *shape: int, scale: float = 1.0, shift: float = 0.0) -> Tensor:
        drawn = torch.randn(shape, generator=self.generator, dtype=torch.float64)
        return (drawn * scale + shift).to(self.dtype)

    def turned(self, *shape: int, scale: float = 1.0) -> Tensor:
        """The same kind of draw, laid out with its axes the other way round."""
        return self.normal(*reversed(shape), scale=scale).permute(*reversed(range(len(shape))))

    def sliced(self, *shape: int) -> Tensor:
        """Every second column of a wider tensor."""
        return self.normal(*shape[:-1], 2 * shape[-1])[..., ::2]

    def ids(self, rows: int, *shape: int) -> Tensor:
        return torch.randint(0, rows, shape, generator=self.generator)


def _norm(make: Callable[[Draw], Tensor], eps: float, seed: int, *, bias: bool) -> Probe:
    def probe(dtype: torch.dtype) -> Example:
        draw = Draw(seed, dtype)
        x = make(draw)
        extra = {"bias": draw.normal(x.shape[-1])} if bias else {}
        return {"x": x, "weight": draw.normal(x.shape[-1], shift=1.0), **extra, "eps": eps}

    return probe


def _norms(*, bias: bool) -> list[Probe]:
    def at(values: list[float]) -> Callable[[Draw], Tensor]:
        return lambda d: torch.tensor([values], dtype=torch.float64).to(d.dtype)

    makes: list[tuple[Callable[[Draw], Tensor], float]] = [
        (lambda d: d.normal(2, 3, 7, scale=2.0, shift=1.0), 1e-5), (lambda d: d.normal(2, 3, 7), 1e-5),
        (at([40000.0, 40001.0, 40002.0, 40003.0]), 1e-5), (at([0.0] * 4), 1e-12), (at([1e-4, -1e-4, 2e-4, 0]), 1e-5),
        (at([1e-4] * 4), 1e-12), (at([300.0, 200.0, -300.0, 100.0]), 1e-5), (at([1.0, 1.0]), 1.0),
        (lambda d: d.turned(3, 8), 1e-5), (lambda d: d.sliced(3, 6), 1e-5),
        (lambda d: d.normal(4, 512, scale=0.5, shift=1.0), 1e-5),
    ]
    return [_norm(make, eps, seed, bias=bias) for seed, (make, eps) in enumerate(makes)]


def _batch(training: bool, eps: float, seed: int, make: Callable[[Draw], Tensor], momentum: float = 0.25) -> Probe:
    def probe(dtype: torch.dtype) -> Example:
        draw = Draw(seed, dtype)
        x = make(draw)
        wide = x.shape[-1]
        return {
            "x": x, "weight": draw.normal(wide, shift=1.0), "bias": draw.normal(wide),
            "running_mean": draw.normal(wide), "running_var": draw.normal(wide).abs() + 1,
            "training": training, "momentum": momentum, "eps": eps,
        }

    return probe


BATCH = [
    _batch(True, 1e-5, 0, lambda d: d.normal(5, 4, shift=1.0)), _batch(False, 1e-5, 1, lambda d: d.normal(5, 4)),
    _batch(True, 1.0, 2, lambda d: d.turned(6, 3)), _batch(False, 1.0, 3, lambda d: d.normal(1, 3)),
    _batch(True, 1e-5, 4, lambda d: d.normal(4, 2, shift=5000.0)), _batch(True, 1e-5, 5, lambda d: d.normal(1, 3)),
    _batch(True, 1e-5, 6, lambda d: d.normal(5, 4), momentum=0.0),
]


def _rotary(
    shape: tuple[int, ...], positions: Any, seed: int = 0, layout: str = "normal", **options: Any
) -> Probe:
    def probe(dtype: torch.dtype) -> Example:
        x = getattr(Draw(seed, dtype), layout)(*shape)
        return {"x": x, "positions": torch.as_tensor(positions), **options}

    return probe


def _scaled(kind: str, shape: tuple[int, ...], positions: Any, **scaling: Any) -> Probe:
    return _rotary(shape, positions, scaling={"type": kind, **scaling})


_FAR = [257, 1857, 2000, 4001]
_LISTS = {"short_factor": [1.0, 1.5, 2.0, 3.0], "long_factor": [2.0, 3.0, 4.0, 8.0], "original_length": 8}
ROTARY = [
    _rotary((2, 3, 4, 8), [0, 1, 2, 3], pairing=pairing) for pairing in ("interleaved", "half")
] + [
    _rotary((1, 2, 4, 32), _FAR, 1), _rotary((2, 1, 3, 8), [[0, 1, 2], [7, 8, 0]], 2),
    _rotary((1, 2, 4, 8), [5, 6, 7, 9], 3, rotary_dim=4),
    _rotary((1, 2, 4, 8), [5, 6, 7, 9], 3, rotary_dim=4, pairing="half"),
    _rotary((1, 1, 4, 8), [5, 6, 7, 9], 4), _rotary((1, 2, 4, 4), [5, 6, 7, 9], 4),
    _rotary((1, 1, 4, 8), [5, 6, 7, 9], 4, base=500.0),
    _rotary((1, 1, 1, 8), [0], 5), _rotary((1, 1, 1, 8), [5], 5), _rotary((2, 3, 4, 8), [1, 2, 3, 5], 6, "turned"),
    _rotary((2, 3, 4, 8), [1, 2, 3, 5], 7, "sliced"), _rotary((1, 1, 3, 8), [200, 210, 256], 8),
    _scaled("linear", (1, 2, 4, 8), [1, 5, 9, 30], factor=4.0), _scaled("ntk", (1, 2, 4, 8), [1, 5, 9, 30], factor=4.0),
    _scaled("yarn", (1, 2, 4, 64), [1, 50, 900, 3000], factor=4.0, original_length=2048),
    _scaled("yarn", (1, 2, 4, 64), [1, 50, 90, 300], factor=64.0, original_length=2048, attention_factor=1.0),
    _scaled("longrope", (1, 2, 4, 8), [1, 2, 3, 4], factor=4.0, **_LISTS),
    _scaled("longrope", (1, 2, 12, 8), list(range(12)), factor=4.0, **_LISTS),
    _scaled("longrope", (1, 2, 2, 8), [20, 21], factor=4.0, **_LISTS),
    _scaled("longrope", (1, 2, 4, 8), [3, 4, 5, 6], factor=4.0, **_LISTS),
    _scaled("llama3", (1, 2, 4, 64), [1, 5, 900, 3000], factor=8.0, original_length=512, low_freq_factor=1.0,
            high_freq_factor=4.0),
]


def _plain(**arguments: Any) -> Probe:
    return lambda dtype: {n: v.clone() if isinstance(v, Tensor) else v for n, v in arguments.items()}


SINUSOIDAL = [
    _plain(positions=torch.tensor(at), dim=dim, **options)
    for at, dim, options in (
        ([0, 1, 2, 3], 8, {}), ([5, 6, 9], 6, {}), ([4, 5, 7, 8], 8, {}), ([257, 300, 5003, 60000], 8, {}),
        ([3, 4], 4, {"base": 500.0}), ([1, 2], 5, {}), (list(range(100)), 8, {}),
    )
]
ALIBI = [
    _plain(num_heads=heads, q_len=q, k_len=k)
    for heads, q, k in ((8, 4, 4), (4, 4, 4), (6, 3, 5), (12, 1, 300), (1, 2, 2), (2, 6, 6), (3, 2, 6), (2, 5, 3))
]


def _residual(placement: str, seed: int, alpha: float = 1.0, layout: str = "normal") -> Probe:
    def probe(dtype: torch.dtype) -> Example:
        draw = Draw(seed, dtype)
        x, w, a, b = getattr(draw, layout)(3, 4), draw.normal(4, 4), draw.normal(4), draw.normal(4)

        def norm(scale: Tensor) -> Callable[[Tensor], Tensor]:
            return lambda t: t / torch.sqrt((t * t).mean(-1, keepdim=True) + 1e-5) * scale.to(t.dtype)

        pair = (norm(a), norm(b)) if placement == "sandwich" else norm(a)
        return {
            "x": x, "sublayer": lambda t: torch.tanh(t @ w.to(t.dtype).T), "norm": pair, "placement": placement,
            "alpha": alpha,
        }

    return probe


RESIDUAL = [
    _residual(placement, seed, alpha, layout) for layout in ("normal", "turned")
    for seed, (placement, alpha) in enumerate((
        ("pre", 1.0), ("post", 1.0), ("sandwich", 1.0), ("deepnorm", 2.5), ("deepnorm", 0.0)))
]


def _embedding(rows: int, ids: Any, layout: str = "normal") -> Probe:
    return lambda dtype: {"ids": torch.as_tensor(ids), "weight": getattr(Draw(0, dtype), layout)(rows, 3)}


EMBEDDING = [
    _embedding(5, [[0, 4, 2], [4, 4, 1]]), _embedding(5, [[3, 1], [0, 1]], "turned"), _embedding(5, [0, -1]),
    _embedding(5, [0, 5]), _embedding(300, [257, 1]),
    lambda dtype: {"ids": torch.arange(8)[::2], "weight": Draw(1, dtype).normal(8, 3)},
]


def _input(ids: Any, positions: Any, seed: int = 0) -> Probe:
    def probe(dtype: torch.dtype) -> Example:
        draw = Draw(seed, dtype)
        extra = {} if positions is None else {"positions": torch.as_tensor(positions)}
        return {"ids": torch.as_tensor(ids), "w_token": draw.normal(5, 3), "w_pos": draw.normal(6, 3), **extra}

    return probe


INPUT = [
    _input([[0, 4, 2], [1, 1, 3]], None), _input([[0, 4, 2], [1, 1, 3]], [[0, 0, 1], [3, 4, 0]]),
    _input([[1, 2]], [4, 2]), _input([[0, 1, 2, 3, 4, 0, 1]], None), _input([[5, 1]], None),
    _input([[1, 2, 2]], [1, 2, 3]),
]


def _unembedding(seed: int, norm: str | None, eps: float, *, bias: bool = False, layout: str = "normal") -> Probe:
    def probe(dtype: torch.dtype) -> Example:
        draw = Draw(seed, dtype)
        extra = {"b_norm": draw.normal(8)} if bias else {}
        return {
            "h": draw.normal(2, 3, 8, shift=0.5, scale=2.0), "w_norm": draw.normal(8),
            "w_out": getattr(draw, layout)(7, 8), "eps": eps, "norm": norm, **extra,
        }

    return probe


UNEMBEDDING = [
    _unembedding(0, "rms", 1e-5), _unembedding(1, "layer", 1e-5, bias=True), _unembedding(2, None, 1e-5),
    _unembedding(3, "rms", 0.5, layout="turned"), _unembedding(4, "layer", 0.5),
]
PATCHIFY: list[Probe] = [
    lambda dtype: {"image": Draw(0, dtype).normal(2, 3, 4, 6), "patch_size": 2},
    lambda dtype: {"image": Draw(1, dtype).normal(1, 2, 4, 16), "patch_size": 2},
    lambda dtype: {"image": Draw(2, dtype).turned(2, 3, 4, 4), "patch_size": 2},
    lambda dtype: {"image": Draw(3, dtype).normal(1, 1, 4, 16), "patch_size": 4},
    lambda dtype: {"image": Draw(4, dtype).normal(1, 1, 5, 4), "patch_size": 2},
]


def _feed(activation: str, seed: int, layout: str = "normal", *, biases: bool = True) -> Probe:
    def probe(dtype: torch.dtype) -> Example:
        draw = Draw(seed, dtype)
        return {
            "x": getattr(draw, layout)(2, 3, 4), "w_in": getattr(draw, layout)(7, 4),
            "b_in": draw.normal(7) if biases else None, "w_out": draw.normal(4, 7),
            "b_out": draw.normal(4) if biases else None, "activation": activation,
        }

    return probe


def _huge(dtype: torch.dtype) -> Example:
    """BUG-159: 72000 before the bias, 40000 after it; and hidden units of 70000 that cancel."""
    one = torch.ones(1, 4, dtype=dtype)
    return {
        "x": one, "w_in": 75 * one.expand(4, 4), "b_in": None, "w_out": 60 * one,
        "b_out": torch.tensor([-32000.0]).to(dtype), "activation": "relu",
    }


def _huge_hidden(dtype: torch.dtype) -> Example:
    full = torch.full((2, 1), 300.0, dtype=dtype)
    return {
        "x": full[:1], "w_in": full, "b_in": None, "w_out": torch.tensor([[0.25, -0.125]]).to(dtype), "b_out": None,
        "activation": "relu",
    }


FEED = [
    _feed(activation, seed, layout, biases=biases)
    for seed, (layout, biases) in enumerate((("normal", True), ("turned", True), ("normal", False)))
    for activation in ("relu", "gelu", "gelu_tanh", "silu")
] + [_huge, _huge_hidden]


def _gated(activation: str, seed: int, layout: str = "normal", scale: float = 1.0) -> Probe:
    def probe(dtype: torch.dtype) -> Example:
        draw = Draw(seed, dtype)
        return {
            "x": getattr(draw, layout)(2, 3, 4, scale=scale), "w_gate": draw.normal(7, 4), "w_up": draw.normal(7, 4),
            "w_down": getattr(draw, layout)(4, 7, scale=1 / scale), "activation": activation,
        }

    return probe


GATED = [
    _gated(activation, seed, layout, scale) for seed, (layout, scale) in enumerate((("normal", 1.0), ("turned", 1.0)))
    for activation in ("silu", "relu", "gelu", "gelu_tanh")
] + [_gated("silu", 9, scale=256.0)]

PROBES: dict[str, list[Probe]] = {
    "layer_norm": _norms(bias=True), "rms_norm": _norms(bias=False), "batch_norm": BATCH, "rotary": ROTARY,
    "sinusoidal": SINUSOIDAL, "alibi": ALIBI, "residual": RESIDUAL, "embedding": EMBEDDING, "input_embedding": INPUT,
    "unembedding": UNEMBEDDING, "patchify": PATCHIFY, "feed_forward": FEED, "gated_feed_forward": GATED,
}
