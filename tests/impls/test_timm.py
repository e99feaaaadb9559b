"""The bridge to timm: where weights lie, what a mask means, how heads are grouped, and models whose weights the seed decides."""
from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from bars import formula, within
from torch import Tensor

from assay import registry

if registry.missing_libraries("assay.impls.timm_layers"):
    pytest.skip("timm or torchvision is not installed; the extra `timm` has both", allow_module_level=True)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def heads(groups: int = 4, **options: Any) -> dict[str, Any]:
    """Four query heads of 2 channels on tokens of 5, outputs of 5."""
    weights = {"w_q": drawn(8, 5, seed=1), "w_k": drawn(2 * groups, 5, seed=2), "w_v": drawn(2 * groups, 5, seed=3),
               "w_o": drawn(5, 8, seed=4), "w_gate": drawn(8, 5, seed=5)}
    return {"x": drawn(2, 3, 5), **weights, "num_heads": 4, **options}


NORM = {"x": drawn(2, 3, 5), "weight": drawn(5, seed=1), "bias": drawn(5, seed=2), "eps": 1e-5}
GATED = {"x": drawn(2, 3), "w_gate": drawn(4, 3, seed=1), "w_up": drawn(4, 3, seed=2), "w_down": drawn(3, 4, seed=3)}
SMALL: dict[tuple[str, str], tuple[str, Callable[[], dict[str, Any]]]] = {
    ("rms_norm", "timm-rms-norm"): ("RmsNorm", lambda: {name: NORM[name] for name in ("x", "weight", "eps")}),
    ("rms_norm", "timm-rms-norm-fp32"): ("RmsNormFp32", lambda: {name: NORM[name] for name in ("x", "weight", "eps")}),
    ("layer_norm", "timm-layer-norm"): ("LayerNorm", lambda: NORM),
    ("layer_norm", "timm-layer-norm-fp32"): ("LayerNormFp32", lambda: NORM),
    ("layer_norm", "timm-layer-norm-2d"): ("LayerNorm2d", lambda: NORM),
    ("feed_forward", "timm-mlp"): ("Mlp", lambda: {
        "x": drawn(2, 3), "w_in": drawn(4, 3, seed=1), "b_in": None, "w_out": drawn(3, 4, seed=2), "b_out": drawn(3, seed=3),
        "activation": "gelu_tanh"}),
    ("gated_feed_forward", "timm-swiglu"): ("SwiGLU", lambda: GATED),
    ("gated_feed_forward", "timm-glu-mlp"): ("GluMlp", lambda: GATED),
    ("multi_head_attention", "timm-attention"): ("Attention", lambda: heads(b_q=drawn(8, seed=6), b_o=drawn(5, seed=7))),
    ("multi_head_attention", "timm-attention-eager"): ("Attention", lambda: heads(mask=torch.ones(3, 3, dtype=torch.bool).tril())),
    ("multi_head_attention", "timm-attention-rope"): ("AttentionRope", lambda: heads(
        2, num_kv_heads=2, positions=torch.tensor([[0, 1, 5], [3, 2, 9]]), causal=True,
        key_mask=torch.tensor([[True, True, True], [True, False, True]]))),
    ("patchify", "timm-patch-embed"): ("PatchEmbed", lambda: {"image": drawn(2, 3, 4, 6), "patch_size": 2}),
}


@pytest.mark.parametrize(("kind", "name"), SMALL)
def test_the_library_ran_and_gave_the_formula(kind: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from assay.impls._timm import timm

    layer, call = SMALL[kind, name]
    module, called = getattr(timm("timm.layers"), layer), []
    own = module.forward

    def noted(*arguments: Any, **options: Any) -> Any:
        called.append(layer)
        return own(*arguments, **options)

    monkeypatch.setattr(module, "forward", noted)
    within(registry.get(kind, name)(**call()), formula(kind, call()))
    assert called == [layer]


@pytest.mark.parametrize("pairing", ["interleaved", "half"])
def test_both_pairings_turn(pairing: str) -> None:
    call = {"x": drawn(2, 3, 4, 6), "positions": torch.tensor([[0, 1, 5, 7], [3, 2, 9, 1]]), "pairing": pairing}
    within(registry.get("rotary", "timm-rotary")(**call), formula("rotary", call))


@pytest.mark.parametrize("name", ["timm-attention", "timm-attention-eager", "timm-attention-rope"])
def test_a_mask_says_what_is_kept(name: str) -> None:
    one = torch.eye(1)
    x = torch.tensor([1.0, 10.0, 100.0]).reshape(1, 3, 1)
    found = registry.get("multi_head_attention", name)(x, one * 0, one, one, one, num_heads=1, mask=torch.eye(3, dtype=torch.bool))
    assert found.flatten().tolist() == [1, 10, 100]


def test_the_seed_decides_and_the_global_generator_stays() -> None:
    make, before = registry.get("image_classifier", "timm-vit"), torch.get_rng_state()
    first, again, other = (make(seed=seed) for seed in (1, 1, 2))
    image = drawn(2, *first.image_shape)
    assert torch.equal(first(image), again(image)) and not torch.equal(first(image), other(image))
    assert torch.equal(before, torch.get_rng_state())


def test_what_stood_in_for_torchvision_is_gone() -> None:
    """And the listing imports neither."""
    code = ("import sys, torch; from assay import registry; registry.declarations(); print('timm' in sys.modules); "
            "from assay.impls._timm import timm; timm('timm.layers'); import torchvision; "
            "print(hasattr(torch.ops.torchvision, 'nms') == torchvision.extension._has_ops())")
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "False\nTrue\n"
