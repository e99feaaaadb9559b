"""The bridge to x-transformers: what a mask means there, how heads are grouped, where weights lie, and that the library ran."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from runpy import run_path
from typing import Any

import pytest
import torch
from bars import formula, within
from torch import Tensor

from assay import registry
from assay.run.judge import Settings
from assay.run.judging import Bench
from assay.run.plan import CaseSpec

pytest.importorskip("x_transformers", reason="x-transformers is not installed; the extra `thirdparty` has it")

HEADS = {"w_q": 8, "w_k": 4, "w_v": 6, "w_o": 12}  # four query heads of 2 channels on two key heads, values of 3


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def heads(**options: Any) -> dict[str, Any]:
    weights = {name: drawn(size, 5, seed=size) for name, size in HEADS.items()}
    return {"x": drawn(1, 3, 5), **weights, "w_o": drawn(5, 12, seed=3), "num_heads": 4, "num_kv_heads": 2, **options}


def noting(module: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of what was called, the thing itself left as it is."""
    called: list[str] = []
    own = getattr(module, name)

    def noted(*arguments: Any, **options: Any) -> Any:
        called.append(name)
        return own(*arguments, **options)

    monkeypatch.setattr(module, name, noted)
    return called


SMALL: dict[tuple[str, str], Callable[[], dict[str, Any]]] = {
    ("attention", "x-transformers-attend"): lambda: {name: drawn(1, 2, 3, 4) for name in "qkv"},
    ("attention", "x-transformers-attend-flash"): lambda: {name: drawn(1, 2, 3, 4) for name in "qkv"},
    ("sink_attention", "x-transformers-sink"): lambda: {**{name: drawn(1, 2, 3, 4) for name in "qkv"}, "sinks": drawn(2)},
    ("multi_head_attention", "x-transformers-attention"): heads,
    ("feed_forward", "x-transformers-feed-forward"): lambda: {
        "x": drawn(2, 3), "w_in": drawn(4, 3), "b_in": None, "w_out": drawn(3, 4), "b_out": None, "activation": "relu"},
    ("gated_feed_forward", "x-transformers-glu"): lambda: {
        "x": drawn(2, 3), "w_gate": drawn(4, 3), "w_up": drawn(4, 3, seed=1), "w_down": drawn(3, 4)},
    ("alibi", "x-transformers-alibi"): lambda: {"num_heads": 2, "q_len": 2, "k_len": 3},
    ("sinusoidal", "x-transformers-sinusoidal"): lambda: {"positions": torch.arange(3), "dim": 4},
}
RUNS = {"attention": "Attend", "sink_attention": "Attend", "multi_head_attention": "Attention", "feed_forward": "FeedForward",
        "gated_feed_forward": "GLU", "alibi": "AlibiPositionalBias", "sinusoidal": "ScaledSinusoidalEmbedding"}


@pytest.mark.parametrize(("kind", "name"), SMALL)
def test_the_library_ran(kind: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from x_transformers import x_transformers as library

    called = noting(getattr(library, RUNS[kind]), "forward", monkeypatch)
    registry.get(kind, name)(**SMALL[kind, name]())
    assert called == ["forward"]


def test_the_functions_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    from x_transformers import autoregressive_wrapper as wrapper
    from x_transformers import x_transformers as library

    called = [noting(*one, monkeypatch) for one in ((library, "apply_rotary_pos_emb"), (wrapper, "top_k"), (wrapper, "top_p"))]
    registry.get("rotary", "x-transformers-rotary")(drawn(1, 1, 3, 4), torch.arange(3))
    registry.get("logits_filter", "x-transformers-filters")(drawn(2, 5), top_k=3, top_p=0.5)
    assert called == [["apply_rotary_pos_emb"], ["top_k"], ["top_p"]]


@pytest.mark.parametrize("name", ["x-transformers-attend", "x-transformers-attend-flash"])
def test_a_mask_says_what_is_kept(name: str) -> None:
    v = torch.tensor([1.0, 10.0, 100.0]).reshape(1, 1, 3, 1)
    q = k = torch.zeros(1, 1, 3, 1)
    for mask in (torch.eye(3, dtype=torch.bool), torch.eye(3, dtype=torch.bool).expand(1, 1, 3, 3)):
        assert registry.get("attention", name)(q, k, v, mask=mask).flatten().tolist() == [1, 10, 100]


@pytest.mark.parametrize("name", ["x-transformers-attend", "x-transformers-attend-flash"])
def test_neighbouring_query_heads_share_a_key_head(name: str) -> None:
    """Its own order is the other one: that is why heads are handed over in turn."""
    from x_transformers.attend import Attend

    q, k = torch.zeros(1, 4, 1, 2), torch.zeros(1, 2, 1, 2)
    v = torch.tensor([1.0, 2.0]).reshape(1, 2, 1, 1)
    assert registry.get("attention", name)(q, k, v).flatten().tolist() == [1, 1, 2, 2]
    assert Attend()(q, k, v)[0].flatten().tolist() == [1, 2, 1, 2]


def test_a_mask_by_head_follows_its_head() -> None:
    q, k, v = drawn(1, 4, 2, 2), drawn(1, 2, 3, 2, seed=1), drawn(1, 2, 3, 2, seed=2)
    mask, bias = (drawn(4, 2, 3, seed=3) > -0.5) | (torch.arange(3) == 0), drawn(4, 2, 3, seed=4)
    call = {"q": q, "k": k, "v": v, "mask": mask, "bias": bias}
    for name in ("x-transformers-attend", "x-transformers-attend-flash"):
        within(registry.get("attention", name)(**call), formula("attention", call))


def test_padding_hides_keys_and_leaves_queries() -> None:
    """`Attention(mask=…)` would zero the padded query's own output."""
    mine, real = registry.get("multi_head_attention", "x-transformers-attention"), torch.tensor([[True, True, False]])
    out = mine(**heads(key_mask=real))
    other = mine(**heads(key_mask=real, x=torch.cat([drawn(1, 3, 5)[:, :2], torch.full((1, 1, 5), 9.0)], 1)))
    assert torch.equal(out[:, :2], other[:, :2]) and bool((out[:, 2] != 0).all())


def test_gradients_reach_every_weight() -> None:
    call = heads()
    for name in HEADS:
        call[name].requires_grad_()
    registry.get("multi_head_attention", "x-transformers-attention")(**call).square().sum().backward()
    assert all(bool((call[name].grad != 0).all()) for name in HEADS)


def test_the_gate_is_what_is_activated() -> None:
    one, zero = torch.ones(1, 1), torch.zeros(1, 1)
    glu = registry.get("gated_feed_forward", "x-transformers-glu")
    assert glu(one, -one, one, one, activation="relu").item() == 0 and glu(one, one, -one, one, activation="relu").item() == -1
    assert glu(one, one, zero, one, activation="relu").item() == 0


@pytest.mark.parametrize("name", ["x-transformers-decoder", "x-transformers-decoder-alibi"])
def test_models_are_the_library_s_with_weights_from_the_seed(name: str) -> None:
    make, ids = registry.get("causal_lm", name), torch.tensor([[5, 3, 8, 13]])
    model, state = make(seed=1), torch.get_rng_state()
    assert torch.equal(model(ids), make(seed=1)(ids)) and torch.equal(model(ids), model.net(ids))
    assert not torch.equal(model(ids), make(seed=2)(ids)) and torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize("name", ["chunks_with_a_cache_give_what_one_pass_gives", "every_kernel_gives_the_same"])
@pytest.mark.parametrize("model", ["x-transformers-decoder", "x-transformers-decoder-alibi"])
def test_steps_and_the_other_attention_give_what_one_pass_gives(model: str, name: str) -> None:
    target = {"isolated": False, "declarations": [{"kind": "causal_lm", "name": model}]}
    bench = Bench([target], Settings(profile="quick", most=4), None)
    found = bench.run(CaseSpec(f"causal_lm/{name}", "causal_lm", model, "cpu", "float32"))
    assert found["status"] == "pass", found["message"]


def test_the_other_attention_is_in_force() -> None:
    from x_transformers.attend import Attend

    model = registry.get("causal_lm", "x-transformers-decoder")(seed=1)
    model.through(torch.tensor([[5, 3, 8]]))
    for net, flash in ((model.net, False), (model.fused, True)):
        assert {module.flash for module in net.modules() if isinstance(module, Attend)} == {flash}


@pytest.mark.parametrize("finding", ["x_transformers_no_keys", "x_transformers_filters"])
def test_the_findings_stand_or_a_refusal_is_stale(finding: str) -> None:
    """`lacks={"empty_rows"}` rests on the one, the filters' refusals on the other."""
    page = Path(__file__).resolve().parents[2] / "reports" / "findings" / f"{finding}.py"
    with pytest.raises(SystemExit) as ended:
        run_path(str(page))
    assert ended.value.code == 1
