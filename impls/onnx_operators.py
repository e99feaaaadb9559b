"""ONNX operators in onnxruntime on the CPU: a graph of one node a call, shapes left open. There are no gradients."""
from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

import assay
from assay.impls._modules import installed, late

REQUIRES = ("onnx", "onnxruntime")
OPSET = 23
TYPES = {"float32": "FLOAT", "int64": "INT64", "bool": "BOOL"}
VERSION, URL = installed("onnxruntime"), "https://github.com/microsoft/onnxruntime"
OPTIONS: dict[str, Any] = {"dtypes": ("float32",), "devices": ("cpu",), "grad": False, "version": VERSION, "url": URL}


@functools.lru_cache(maxsize=256)
def session(operator: str, inputs: tuple[tuple[str, str, int], ...], attributes: tuple[tuple[str, Any], ...]) -> Any:
    """A graph of one node. inputs: name ("" for one that is left out), element type and rank of each."""
    onnx, runtime = late("onnx"), late("onnxruntime")
    given = [one for one in inputs if one[0]]
    types, info = onnx.TensorProto, onnx.helper.make_tensor_value_info
    values = [info(name, getattr(types, TYPES[kind]), [f"{name}{axis}" for axis in range(rank)]) for name, kind, rank in given]
    result = info("result", getattr(types, TYPES[given[0][1]]), None)
    node = onnx.helper.make_node(operator, [name for name, _, _ in inputs], ["result"], **dict(attributes))
    graph = onnx.helper.make_graph([node], "one", values, [result])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", OPSET)], ir_version=10)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    return runtime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def run(operator: str, inputs: Mapping[str, Tensor | None], **attributes: Any) -> Tensor:
    """The node's result on these tensors, which are named in the operator's own order; None leaves an optional one out."""
    arrays = {name: np.ascontiguousarray(t.detach().numpy()) for name, t in inputs.items() if t is not None}
    order = [(name, str(arrays[name].dtype), arrays[name].ndim) if name in arrays else ("", "", 0) for name in inputs]
    while order and not order[-1][0]:
        order.pop()
    known = tuple(sorted((name, value) for name, value in attributes.items() if value is not None))
    return torch.from_numpy(session(operator, tuple(order), known).run(None, arrays)[0])


@assay.implements("layer_norm", name="onnx-layer-normalization", **OPTIONS)
def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, *, eps: float) -> Tensor:
    """`LayerNormalization`."""
    return run("LayerNormalization", {"x": x, "weight": weight, "bias": bias}, axis=-1, epsilon=eps)


@assay.implements("rms_norm", name="onnx-rms-normalization", **OPTIONS)
def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """`RMSNormalization`."""
    return run("RMSNormalization", {"x": x, "weight": weight}, axis=-1, epsilon=eps)


@assay.implements("softmax", name="onnx-softmax", **OPTIONS)
def softmax(x: Tensor, *, dim: int = -1) -> Tensor:
    """`Softmax`."""
    return run("Softmax", {"x": x}, axis=dim)


# The operator's `is_causal` counts from the top left where there is no past.
@assay.implements("attention", name="onnx-attention", lacks={"empty"}, conventions={"causal_alignment": "top_left"}, **OPTIONS)
def attention(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, causal: bool = False, scale: float | None = None,
              softcap: float | None = None) -> Tensor:
    """`Attention` on four axes, the mask as it is: True = may attend."""
    seen = None if mask is None else mask.expand(q.shape[0], q.shape[1], q.shape[2], k.shape[2])
    return run("Attention", {"q": q, "k": k, "v": v, "mask": seen}, is_causal=int(causal), scale=scale, softcap=softcap)


@assay.implements("rotary", name="onnx-rotary-embedding", arithmetic={"angles": "float32"}, **OPTIONS)
def rotary(x: Tensor, positions: Tensor, *, base: float = 10000.0, pairing: str = "interleaved",
           rotary_dim: int | None = None) -> Tensor:
    """`RotaryEmbedding` by tables of cosines and sines of the positions given."""
    width = x.shape[-1] if rotary_dim is None else rotary_dim
    frequencies = 1.0 / base ** (torch.arange(0, width, 2, dtype=torch.float32) / width)
    angles = torch.atleast_2d(positions).float()[..., None] * frequencies
    angles = angles.expand(x.shape[0], *angles.shape[1:])
    return run("RotaryEmbedding", {"x": x, "cos": angles.cos(), "sin": angles.sin()}, interleaved=int(pairing == "interleaved"),
               rotary_embedding_dim=rotary_dim)


@assay.implements("embedding", name="onnx-gather", **OPTIONS)
def embedding(ids: Tensor, weight: Tensor) -> Tensor:
    """`Gather` along the rows."""
    return run("Gather", {"weight": weight, "ids": ids}, axis=0)
