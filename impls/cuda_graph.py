"""A decoding step as a CUDA graph: split-KV attention, recorded once for every sort of call and replayed from then on.

What is recorded reads and writes memory of its own: a call copies its tensors in, replays, and copies the result out. Nothing of it
runs anywhere else than on CUDA.
"""
from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

import assay
from assay.errors import NotExercisedError
from assay.impls.split_kv import FEW, split_kv

GRAPHS = 16  # kept at once
WARM = 3  # calls before recording, as torch's manual asks for: libraries set themselves up


class Recorded:
    """A function of tensors, as graphs. replays: how often one ran."""

    def __init__(self, function: Callable[..., Tensor]) -> None:
        self.function, self.replays = function, 0
        self._graphs: OrderedDict[Any, tuple[Any, dict[str, Tensor], Tensor]] = OrderedDict()

    def __call__(self, tensors: dict[str, Tensor], **options: Any) -> Tensor:
        """The function's result, out of a replay."""
        device = next(iter(tensors.values())).device
        if device.type != "cuda":
            raise NotImplementedError(f"device={device}: CUDA graphs need a CUDA device")
        key = tuple((name, x.shape, x.dtype, x.device) for name, x in tensors.items()), repr(options)
        if key not in self._graphs:
            self._graphs[key] = self._record(tensors, options)
            if len(self._graphs) > GRAPHS:
                self._graphs.popitem(last=False)
        graph, inputs, result = self._graphs[key]
        for name, x in tensors.items():
            inputs[name].copy_(x)
        graph.replay()
        self.replays += 1
        return result.clone()

    def _record(self, tensors: dict[str, Tensor], options: dict[str, Any]) -> tuple[Any, dict[str, Tensor], Tensor]:
        inputs = {name: x.detach().clone() for name, x in tensors.items()}
        aside = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(WARM):
                self.function(**inputs, **options)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = self.function(**inputs, **options)
        return graph, inputs, result


STEP = Recorded(split_kv)


@assay.implements("attention", name="cuda-graph-split-kv", devices=("cuda",), grad=False, limits={"Tq": FEW},
                  arithmetic={"internal": "float32"}, version=torch.__version__)
def decoding_step(
    q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None, bias: Tensor | None = None, causal: bool = False,
    window: int | None = None, scale: float | None = None, softcap: float | None = None,
) -> Tensor:
    """Few queries against a long cache; no gradients."""
    given = {"q": q, "k": k, "v": v, "mask": mask, "bias": bias}
    before = STEP.replays
    with torch.no_grad():
        out = STEP({name: x for name, x in given.items() if x is not None}, causal=causal, window=window, scale=scale,
                   softcap=softcap)
    if STEP.replays == before:
        raise NotExercisedError("no CUDA graph was replayed")
    return out
