"""Parts of models: recognised by structure, held against their formulas on what they receive, the first wrong one named."""
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from assay import parts
from assay.impls import hf_causal_lm
from assay.spec.part_verdicts import Verdict, gathered, judged

IDS = torch.randint(0, 97, (2, 5), generator=torch.Generator().manual_seed(1))
Forward = Callable[..., Tensor]


def verdicts(model_type: str, change: Callable[[nn.Module], None] = lambda model: None) -> list[Verdict]:
    """A tiny model's, after a change to it."""
    made: Any = hf_causal_lm.of_type(model_type).function
    adapter = made(seed=0)
    change(adapter.model)
    return judged(gathered(lambda skip: parts.record(adapter.model, lambda: adapter(IDS), skip)))


def wrong(found: list[Verdict]) -> list[str]:
    return [one.part.name for one in found if one.status == "wrong"]


@pytest.mark.parametrize(("model_type", "kinds"), [
    ("llama", {"embedding", "rotary", "rms_norm", "rotation", "attention", "gated_feed_forward", "head"}),
    ("gpt2", {"embedding", "layer_norm", "attention", "feed_forward", "head"}),
    ("gemma2", {"embedding", "rotary", "rms_norm", "rotation", "attention", "gated_feed_forward", "head"}),
    ("phi3", {"fused_gated_feed_forward"}), ("mixtral", {"experts"}), ("cohere", {"norm", "rotation"})])
def test_the_parts_of_a_right_model_are_right(model_type: str, kinds: set[str]) -> None:
    found = verdicts(model_type)
    assert not wrong(found)
    assert kinds <= {one.part.kind for one in found if one.status == "right"}


def test_every_module_with_weights_is_told() -> None:
    """As a part, inside one, or as not recognised, with a reason."""
    found = verdicts("llama")
    made: Any = hf_causal_lm.of_type("llama").function
    told = {one.part.name for one in found}
    for name, module in made(seed=0).model.named_modules():
        if list(module.parameters(recurse=False)):
            assert any(name == one or name.startswith(f"{one}.") for one in told), name
    assert all(one.reason for one in found if one.status == "unrecognised")


def replaced(path: str, forward: Callable[[Any, Forward], Forward]) -> Callable[[nn.Module], None]:
    """One module's forward replaced by what is made of it and its own."""
    def change(model: nn.Module) -> None:
        module: Any = model.get_submodule(path)
        module.forward = forward(module, module.forward)

    return change


FAULTS: dict[str, tuple[str, str, Callable[[Any, Forward], Forward]]] = {
    "a norm without epsilon inside the root": ("llama", "model.layers.1.input_layernorm", lambda m, f: lambda x: m.weight * x / (
        x.pow(2).mean(-1, keepdim=True).sqrt() + 1e-3)),
    "a norm that takes the mean off": ("llama", "model.layers.0.post_attention_layernorm",
                                       lambda m, f: lambda x: f(x - x.mean(-1, keepdim=True))),
    "an offset that the others do not have": ("llama", "model.layers.1.input_layernorm", lambda m, f: lambda x: f(x) * (
        1 + m.weight) / m.weight),
    "a gate and an up that are swapped": ("llama", "model.layers.1.mlp", lambda m, f: lambda x: m.down_proj(
        m.gate_proj(x) * m.act_fn(m.up_proj(x)))),
    "a bias that is added twice": ("gpt2", "transformer.h.1.mlp", lambda m, f: lambda x: f(x) + m.c_proj.bias),
    "a head in half precision": ("llama", "lm_head", lambda m, f: lambda x: f(x.bfloat16().float())),
    "an embedding of the next word": ("llama", "model.embed_tokens", lambda m, f: lambda ids: f((ids + 1) % 97)),
    "sines of the wrong sign": ("llama", "model.rotary_emb", lambda m, f: lambda *a, **k: (f(*a, **k)[0], -f(*a, **k)[1])),
    "experts that forget one token": ("mixtral", "model.layers.1.mlp.experts", lambda m, f: lambda x, i, w: f(x, i, w) * (
        torch.arange(len(x)) > 0).unsqueeze(-1)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_part_with_the_fault_is_named_alone(fault: str) -> None:
    """The parts after it receive what it gave, and are right on that."""
    model_type, path, forward = FAULTS[fault]
    assert wrong(verdicts(model_type, replaced(path, forward))) == [path]


def test_an_attention_that_sees_too_much_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.llama import modeling_llama  # type: ignore[import-not-found]

    plain = modeling_llama.eager_attention_forward

    def leaking(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, **options: Any) -> Any:
        return plain(module, q, k, v, mask * 0 if module.layer_idx else mask, **options)

    monkeypatch.setattr(modeling_llama, "eager_attention_forward", leaking)
    assert wrong(verdicts("llama")) == ["model.layers.1.self_attn.eager_attention_forward"]


def test_a_switch_of_one_module_condemns_nobody() -> None:
    """Norms of one class that differ in a switch may mean different formulas: the odd one is told, not condemned."""
    def change(model: nn.Module) -> None:
        module: Any = model.get_submodule("model.layers.1.input_layernorm")
        plain, module.doubled = module.forward, True
        module.forward = lambda x: 2 * plain(x)

    odd, = (one for one in verdicts("llama", change) if one.part.name == "model.layers.1.input_layernorm")
    assert odd.status == "unrecognised" and odd.reason


def test_parts_are_handed_over_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not fit is asked for again, from where the last answer ended."""
    monkeypatch.setattr(parts, "TOGETHER", 20_000)
    made: Any = hf_causal_lm.of_type("llama").function
    adapter, skips = made(seed=0), []

    def ask(skip: int) -> tuple[Any, ...]:
        skips.append(skip)
        return parts.record(adapter.model, lambda: adapter(IDS), skip)

    found, at_once = judged(gathered(ask)), verdicts("llama")
    assert len(skips) > 1
    assert [(one.part.name, one.status) for one in found] == [(one.part.name, one.status) for one in at_once]
    assert {one.status for one in found} == {"right", "unrecognised"}
