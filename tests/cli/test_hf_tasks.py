"""Masked and sequence-to-sequence models of Hugging Face under the call of a causal one."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from assay.contract.loading import load
from assay.errors import UsageError
from assay.impls import _hf_tasks, hf_causal_lm

Call = Callable[..., tuple[int, str, str]]
NARROW = ("--profile", "quick", "--isolate", "never", "--workers", "1", "--quiet")
IDS = torch.randint(3, 90, (2, 6), generator=torch.Generator().manual_seed(1))


def test_a_masked_model_is_not_asked_for_causality() -> None:
    declared, = load("hf:masked:bert")
    assert {"causal", "cache"} <= declared.lacks and declared.claims("padding")
    assert load("hf:bert")[0].claims("causal")


def test_a_masked_model_sees_later_tokens() -> None:
    """The claim that is left out is one that does not hold."""
    made = load("hf:masked:bert")[0].function
    assert made is not None
    model, other = made(seed=0), IDS.clone()
    other[:, -1] = (other[:, -1] + 1) % 90
    assert bool((model(IDS)[:, 0] != model(other)[:, 0]).any())


def test_the_decoder_reads_its_source() -> None:
    """Another source, other logits: the encoder is in use."""
    made = load("hf:seq2seq:t5")[0].function
    assert made is not None
    model = made(seed=0)
    before = model(IDS)
    model.source = (model.source + 1) % 90
    assert bool((model(IDS) != before).any())


@pytest.mark.parametrize(("target", "name"), [
    ("hf:masked:bert", "right_padding_moves_nothing"), ("hf:seq2seq:t5", "chunks_with_a_cache_give_what_one_pass_gives"),
    ("hf:masked:roberta", "the_loss_is_the_cross_entropy_of_the_logits")])
def test_they_are_checked(assay: Call, tmp_path: Path, target: str, name: str) -> None:
    code, _, err = assay("check", target, *NARROW, "--only", f"causal_lm/{name}", "--out", tmp_path)
    assert code == 0, err


@pytest.mark.parametrize(("target", "said"), [
    ("hf:masked:bart", "sequence-to-sequence"), ("hf:seq2seq:barts", "did you mean hf:seq2seq:bart"),
    ("hf:masked:zzz", "they are albert"), ("hf:seq2seq:voxtral", "no decoder of its own")])
def test_what_cannot_be_is_told(target: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        load(target)
    assert "\n" not in str(caught.value)


def test_an_audit_lists_them_where_they_are_asked_for() -> None:
    assert hf_causal_lm.listed(["masked:b*"]) == ["hf:masked:bart", "hf:masked:bert", "hf:masked:big_bird"]
    assert len(hf_causal_lm.listed()) == len(hf_causal_lm.model_types())


def test_what_is_not_claimed_has_evidence() -> None:
    types = {name for task in _hf_tasks.TASKS for name in _hf_tasks.model_types(task)}
    assert set(_hf_tasks.TRAITS) | set(_hf_tasks.REFUSED) | set(_hf_tasks.OWN) <= types
    assert all(lacks and evidence for lacks, evidence in _hf_tasks.TRAITS.values())
