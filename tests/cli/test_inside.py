"""The user's attention inside models of Hugging Face: in force, right where it is right; its faults are seen by the audit."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from assay.contract.loading import load
from assay.errors import UsageError
from assay.impls import hf_causal_lm
from assay.run.judge import Settings
from assay.run.judging import Bench
from assay.run.plan import CaseSpec

Call = Callable[..., tuple[int, str, str]]
MINE = '''
import assay, torch
reference = assay.get("attention", "reference")

@assay.implements("attention", name="plain")
def plain(q, k, v, *, mask=None, causal=False, scale=None):
    return reference(q, k, v, mask=mask, causal=causal, scale=scale)

@assay.implements("attention", name="top-left")
def top_left(q, k, v, *, mask=None, causal=False, scale=None):
    seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).tril() if causal else None
    return reference(q, k, v, mask=seen if mask is None else mask if seen is None else mask & seen, scale=scale)

@assay.implements("attention", name="maskless")
def maskless(q, k, v, *, causal=False):
    return reference(q, k, v, causal=causal)
'''
NARROW = ("--profile", "quick", "--isolate", "never", "--workers", "1", "--quiet")
CHUNKS = ("--only", "causal_lm/chunks_with_a_cache_give_what_one_pass_gives")
KERNELS = ("--only", "causal_lm/every_kernel_gives_the_same")


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


@pytest.mark.parametrize("model_type", ["llama", "gemma2", "gpt2"])
def test_the_reference_inside_gives_what_the_model_gives(model_type: str) -> None:
    """Groups, windows, a cap on scores, a scale of the model's own; with padding and without."""
    made, = hf_causal_lm.resolve(f"{model_type}<reference")
    bench = Bench([{"isolated": False, "declarations": [], "declared": [made]}], Settings(profile="quick", most=4), None)
    found = bench.run(CaseSpec("causal_lm/every_kernel_gives_the_same", "causal_lm", made.name, "cpu", "float32"))
    assert found["status"] == "pass", found["message"]


def test_a_right_attention_is_right_inside(assay: Call, mine: Path, tmp_path: Path) -> None:
    code, _, err = assay("check", f"{mine}:plain", "--inside", "hf:llama", *NARROW, *CHUNKS, *KERNELS, "--out", tmp_path)
    assert code == 0, err


def test_a_wrong_one_is_found_and_replayed(assay: Call, mine: Path, tmp_path: Path) -> None:
    """Top-left causality is right in every square call and wrong in every chunk."""
    code, _, _ = assay("check", f"{mine}:top-left", "--inside", "hf:llama", *NARROW, *CHUNKS, "--out", tmp_path)
    assert code == 1
    text = (tmp_path / "summary.md").read_text()
    assert "hf:llama with top-left" in text and f"hf:llama<{mine}:top-left" in (tmp_path / "report.jsonl").read_text()
    code, _, err = assay("replay", tmp_path / "report.jsonl", "--isolate", "never")
    assert code == 1, err


def test_what_an_attention_does_not_take_is_not_claimed(mine: Path) -> None:
    declared, = load(f"hf:llama<{mine}:maskless")
    assert {"mask"} <= declared.lacks


@pytest.mark.parametrize(("target", "said"), [
    ("hf:mamba<reference", "does not take its attention from"), ("hf:gpt_neo<reference", "takes no attention of others"),
    ("hf:llama<nothing", "nothing")])
def test_what_cannot_be_is_told(target: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        load(target)


def test_one_attention_of_several_must_be_named(assay: Call, mine: Path) -> None:
    code, _, err = assay("check", mine, "--inside", "hf:llama", "--isolate", "never")
    assert code == 2 and "declares 3 attentions" in err
    code, _, err = assay("check", mine, "--inside", "llama")
    assert code == 2 and "hf:TYPE" in err
