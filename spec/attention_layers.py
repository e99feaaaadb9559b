"""What must hold of attention over attention, layer upon layer: SWA-3."""
from __future__ import annotations

import torch

from assay.cases import Example
from assay.ledger import fact, identical
from assay.spec.attention import output_is_the_formula, spec
from assay.subject import Subject

DEPTHS = (2, 3)


@spec.holds("SWA-3", kills=("window_one_too_wide", "window_one_too_narrow", "window_ignored"), gradient=True,
            needs=("causal", "window"), rests_on=(output_is_the_formula,),
            given={"B": 1, "H": (2, 1), "G": "H", "Tq": "Tk", "Tk": (9, 8, 12), "D": (4, 2, 8, 64), "Dv": "D", "causal": True,
                   "window": (2, 3), "mask": "none", "bias": "none", "softcap": None, "scale": None, "lengths": "equal",
                   "family": "normal", "layout": "contiguous"})
def layers_of_a_window_see_that_many_tokens_back(attention: Subject, example: Example) -> None:
    """Through L layers of a window of w the last token sees exactly L·(w − 1) tokens back, and itself: no gradient beyond.

    Each layer is attention of the one before over itself. Within, every token gets a gradient other than 0: logits are moderate and
    layers are few, so that the one path to the furthest token does not underflow.
    """
    length, window = example.dims["Tk"], example.window
    for depth in DEPTHS:
        inputs = [0.5 * example.q]
        for _ in range(depth):
            inputs.append(attention.values(*[inputs[-1]] * 3, causal=True, window=window).to(attention.dtype))
        above = torch.zeros_like(inputs.pop())
        above[..., -1, :] = example.values("above", *above[..., -1, :].shape, family="normal")
        for x in reversed(inputs):
            found = attention.answer(q=x, k=x, v=x, causal=True, window=window, _wrt=("q", "k", "v"), _upstream=(above,)).gradients
            above = sum((part for part in found.values() if part is not None), torch.zeros_like(x))
        reached = (above != 0).any(-1)[0].all(0)
        within, which = torch.arange(length) >= length - 1 - depth * (window - 1), f"{depth} layers of {window}"
        assert identical(above[..., ~within, :].double(), 0.0, witness=bool(reached.any()), check=f"tokens beyond {which}")
        assert fact(bool(reached[within].all()), "a token within the layers' windows gets no gradient", check=f"within {which}",
                    got=f"{int(reached[within].sum())} tokens", expected=str(int(within.sum())))
