"""The bridge to ONNX: what its mask means, which axis is which, what an absent option is, and that its operator ran."""
from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from bars import formula, gives, within
from torch import Tensor

from assay import registry

pytest.importorskip("onnx", reason="onnx is not installed; the extra `onnx` has it")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed; the extra `onnx` has it")


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


OPERATORS: list[tuple[str, str, str, dict[str, Any]]] = [
    ("layer_norm", "onnx-layer-normalization", "LayerNormalization",
     {"x": drawn(2, 3), "weight": drawn(3), "bias": drawn(3), "eps": 1e-5}),
    ("rms_norm", "onnx-rms-normalization", "RMSNormalization", {"x": drawn(2, 3), "weight": drawn(3), "eps": 1e-5}),
    ("softmax", "onnx-softmax", "Softmax", {"x": drawn(2, 3)}),
    ("attention", "onnx-attention", "Attention", {name: drawn(1, 2, 3, 4) for name in "qkv"}),
    ("rotary", "onnx-rotary-embedding", "RotaryEmbedding", {"x": drawn(1, 2, 3, 4), "positions": torch.arange(3)}),
    ("embedding", "onnx-gather", "Gather", {"ids": torch.tensor([1, 0]), "weight": drawn(2, 3)}),
]


@pytest.mark.parametrize(("kind", "name", "operator", "call"), OPERATORS, ids=[one[1] for one in OPERATORS])
def test_the_operator_ran(kind: str, name: str, operator: str, call: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """One node of that name in the model that onnxruntime was given, its result what came back."""
    import onnx
    import onnxruntime

    from assay.impls import onnx_operators as bridge  # here: an import declares what it holds, also where onnx is missing

    models: list[Any] = []
    results: list[Tensor] = []

    class Noted(onnxruntime.InferenceSession):
        def __init__(self, model: bytes, *others: Any, **options: Any) -> None:
            models.append(onnx.load_from_string(model))
            super().__init__(model, *others, **options)

        def run(self, *given: Any) -> Any:
            found = super().run(*given)
            results.append(torch.from_numpy(found[0]))
            return found

    monkeypatch.setattr(onnxruntime, "InferenceSession", Noted)
    bridge.session.cache_clear()
    out = registry.get(kind, name)(**call)
    bridge.session.cache_clear()
    assert [[node.op_type for node in model.graph.node] for model in models] == [[operator]]
    assert models[0].opset_import[0].version == bridge.OPSET and torch.equal(out, results[0])


def called(**options: Any) -> dict[str, Any]:
    """Equal scores: each query gives the mean of the values 1, 10, 100 that it sees."""
    return {"q": torch.zeros(1, 1, 3, 1), "k": torch.zeros(1, 1, 3, 1),
            "v": torch.tensor([1.0, 10.0, 100.0]).reshape(1, 1, 3, 1), **options}


def attention(**options: Any) -> Tensor:
    found: Tensor = registry.get("attention", "onnx-attention")(**called(**options))
    return found


@pytest.mark.parametrize("axes", [(3, 3), (1, 3, 3), (1, 1, 3, 3)], ids=str)
def test_a_mask_says_what_is_kept(axes: tuple[int, ...]) -> None:
    assert attention(mask=torch.eye(3, dtype=torch.bool).expand(axes)).flatten().tolist() == [1, 10, 100]


def test_causality_keeps_what_came_before() -> None:
    means = torch.tensor([1, 5.5, 37], dtype=torch.float64).reshape(1, 1, 3, 1)
    gives(attention(causal=True), means, "attention", called(causal=True))


def test_causality_counts_from_the_top_left() -> None:
    """As it is declared: the one query of a call sees the first key alone."""
    assert attention(q=torch.zeros(1, 1, 1, 1), causal=True).item() == 1


def test_heads_come_before_tokens_and_neighbours_share_a_key_head() -> None:
    v = torch.arange(12.0).reshape(1, 2, 3, 2)  # (B, G, Tk, Dv)
    call = called(q=torch.zeros(1, 4, 2, 1), k=torch.zeros(1, 2, 3, 1), v=v)
    gives(attention(**call), v.double().mean(2, keepdim=True).repeat_interleave(2, 1), "attention", call)


def test_options_left_out_have_the_kind_s_defaults() -> None:
    q, k, v = drawn(1, 1, 2, 16), drawn(1, 1, 3, 16, seed=1), drawn(1, 1, 3, 2, seed=2)
    for options in ({}, {"scale": 0.5}, {"softcap": 1.5}):
        call: dict[str, Any] = {"q": q, "k": k, "v": v, **options}
        within(attention(**call), formula("attention", call))


def test_softmax_runs_along_the_axis_that_is_named() -> None:
    x = drawn(2, 3, 4)
    for dim in (0, 1, 2, -1, -2):
        within(registry.get("softmax", "onnx-softmax")(x, dim=dim), formula("softmax", {"x": x, "dim": dim}))


def test_rotary_turns_the_pairs_that_are_named() -> None:
    """At position 1 the first pair turns by 1: (1, 0) becomes (cos 1, sin 1), neighbours or halves apart."""
    for pairing, second in (("interleaved", 1), ("half", 2)):
        x = torch.zeros(1, 1, 1, 4)
        x[..., 0] = 1
        call: dict[str, Any] = {"x": x, "positions": torch.tensor([1]), "pairing": pairing}
        wanted = torch.zeros(1, 1, 1, 4, dtype=torch.float64)
        wanted[..., 0], wanted[..., second] = math.cos(1), math.sin(1)
        gives(registry.get("rotary", "onnx-rotary-embedding")(**call), wanted, "rotary", call)


def test_weights_and_epsilon_are_placed() -> None:
    call: dict[str, Any] = {"x": torch.tensor([[3.0, -3.0]]), "weight": torch.tensor([2.0, 5.0]), "eps": 16.0}  # √(9 + 16) = 5
    wanted, bias = torch.tensor([[0.6 * 2, -0.6 * 5]], dtype=torch.float64), torch.tensor([0.5, 7.0])
    gives(registry.get("rms_norm", "onnx-rms-normalization")(**call), wanted, "rms_norm", call)
    call |= {"bias": bias}
    gives(registry.get("layer_norm", "onnx-layer-normalization")(**call), wanted + bias, "layer_norm", call)


def test_strided_tensors_are_read_as_they_look() -> None:
    x = drawn(4, 6)
    for view in (x.mT, x[:, ::2], x[:1].expand(3, 6)):
        within(registry.get("softmax", "onnx-softmax")(view), formula("softmax", {"x": view}))


def test_ids_pick_rows() -> None:
    weight = drawn(4, 3)
    assert torch.equal(registry.get("embedding", "onnx-gather")(torch.tensor([[2, 0], [3, 3]]), weight)[0, 0], weight[2])
