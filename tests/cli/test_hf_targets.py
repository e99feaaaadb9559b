"""Whole models of Hugging Face as targets: tiny ones by type, checkpoints by folder, the audit, the table of families."""
from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from assay.contract.kinds import KINDS
from assay.contract.loading import load
from assay.errors import UsageError
from assay.impls import _hf_families, hf_causal_lm
from assay.report import html, jsonl
from assay.run import audit, events
from assay.run.audit import Row
from assay.run.audit_report import BUILDING, as_report
from assay.run.plan import CaseSpec

Call = Callable[..., tuple[int, str, str]]
NARROW = ("--profile", "quick", "--isolate", "never", "--workers", "1", "--quiet",
          "--only", "causal_lm/chunks_with_a_cache_give_what_one_pass_gives", "--only", "causal_lm/later_tokens_do_not_matter")
ENDS = '''
import os, assay, torch
@assay.implements("causal_lm", name="ends", lacks=("cache", "mask"))
class Ends(torch.nn.Module):
    vocab_size, max_length = 97, None
    def __init__(self, *, seed):
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(97, 97, generator=torch.Generator().manual_seed(seed)))
    def forward(self, ids, *, mask=None):
        if ids.shape[1] > 3:
            os._exit(4)
        return self.table[ids]
'''


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A tiny GPT-2, saved."""
    make = hf_causal_lm.model_class("GPT2LMHeadModel")
    folder = tmp_path / "small"
    hf_causal_lm.tiny("gpt2", make, 3).save_pretrained(folder)  # type: ignore[operator]
    return folder


def test_a_model_type_is_checked(assay: Call, tmp_path: Path) -> None:
    code, _, err = assay("check", "hf:llama", *NARROW, "--out", tmp_path)
    assert code == 0, err


def test_a_checkpoint_is_checked(assay: Call, checkpoint: Path, tmp_path: Path) -> None:
    code, _, err = assay("check", f"hf:{checkpoint}", *NARROW, "--out", tmp_path / "report")
    assert code == 0, err


def test_a_checkpoint_has_its_own_weights(checkpoint: Path) -> None:
    """No seed is taken, and every parameter is that of the model that was saved."""
    made = load(f"hf:{checkpoint}")[0]
    assert made.name == "hf:small" and "seed" not in made.keywords and made.function is not None
    saved = hf_causal_lm.tiny("gpt2", hf_causal_lm.model_class("GPT2LMHeadModel"), 3)
    pairs = list(zip(made.function().parameters(), saved.parameters(), strict=True))
    assert pairs and all(torch.equal(loaded, own) for loaded, own in pairs)


def test_a_pickle_is_not_read(checkpoint: Path) -> None:
    for file in checkpoint.glob("*.safetensors"):
        file.rename(checkpoint / "pytorch_model.bin")
    with pytest.raises(UsageError, match="pickles are not read"):
        load(f"hf:{checkpoint}")


@pytest.mark.parametrize(("target", "said"), [
    ("hf:lama", "did you mean hf:llama"), ("hf:zzzzzz", "a folder is written hf:./folder"), ("hf:./nothere", "config.json"),
    ("hf:xlnet", "permutation language modelling"), ("hf:", "not one of the")])
def test_what_cannot_be_is_told(target: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        load(target)
    assert "\n" not in str(caught.value) and f"{target}" in str(caught.value)


def test_a_kind_that_it_is_not(assay: Call) -> None:
    code, _, err = assay("check", "hf:llama", "--kind", "attention", "--isolate", "never")
    assert code == 2 and "causal_lm" in err and err.count("\n") == 1


def test_a_cache_that_is_not_used_is_found(monkeypatch: pytest.MonkeyPatch, assay: Call, tmp_path: Path) -> None:
    """The bridge hands each step's tokens over without the cache: the specification says so."""
    def step(self: Any, ids: torch.Tensor, cache: Any, *, mask: torch.Tensor | None = None) -> tuple[torch.Tensor, Any]:
        return self(ids), hf_causal_lm.Held(None, 0)

    monkeypatch.setattr(hf_causal_lm.Adapter, "step", step)
    code, _, _ = assay("check", "hf:gpt2", *NARROW, "--out", tmp_path)
    assert code == 1


# ------------------------------------------------------------------------------------------------ the audit
def test_an_audit_writes_a_table_and_a_report(assay: Call, tmp_path: Path) -> None:
    code, out, err = assay("audit", "transformers", "--only", "gpt2", "--workers", 1, "--timeout", 300, "--out", tmp_path)
    assert code == 0, err
    assert "1 model type, 1 built" in out
    rows = [json.loads(line) for file in tmp_path.glob("audit-*.jsonl") for line in file.read_text().splitlines()]
    assert [row["type"] for row in rows] == ["gpt2"] and rows[0]["verdict"] == "conformant"
    text = next(tmp_path.glob("audit-*.md")).read_text()
    assert "gpt2 | yes | conformant" in text and "evidence" in text
    report = jsonl.read(tmp_path)
    assert report.footer and not report.missing and report.footer["counts"]["pass"] > 10 and not report.footer["counts"]["fail"]
    assert {one["implementation"] for one in report.results} == {"hf:gpt2"}
    assert "hf:gpt2" in (tmp_path / "report.html").read_text()


def test_a_type_that_is_not_built_is_left_out_of_the_reports_plan_and_says_why() -> None:
    report = as_report([Row("odd", reason="ImportError: no")], command="assay audit", seed=0, seconds=1)
    assert report.plan["left_out"] == [
        {"property": BUILDING, "implementation": "odd", "reason": "ImportError: no", "status": "not-supported"}]
    assert report.summary["verdict"] == "inconclusive"
    assert "ImportError: no" in html.render(report)


@pytest.mark.parametrize(("arguments", "said"), [(("tranformers",), "did you mean transformers"),
                                                 (("transformers", "--only", "nothing*"), "matches none")])
def test_an_audit_of_nothing_is_told(assay: Call, arguments: tuple[str, ...], said: str) -> None:
    code, out, err = assay("audit", *arguments)
    assert code == 2 and said in err and not out


def test_what_is_not_reached_in_time_is_told() -> None:
    """A second is over before anything is built, or in the first cases: the type is given up, and nothing is said against it."""
    row, = audit.run(["hf:gpt2"], workers=1, timeout=0.5)
    assert not row.failing and row.verdict in ("not built", "inconclusive") and row.reason


@pytest.mark.parametrize(("text", "verdict", "told"), [
    ("import os; os._exit(3)", "not built", "exited with code 3"),
    (ENDS, "non-conformant", "exited with code 4")])
def test_a_type_that_ends_its_host_is_told(tmp_path: Path, text: str, verdict: str, told: str) -> None:
    """The host is gone and the audit is not: while it is imported that is why it is not built, in a case it is a crash."""
    (tmp_path / "ends.py").write_text(text)
    row, = audit.run([str(tmp_path / "ends.py")], workers=1, timeout=100)
    assert row.verdict == verdict and told in " ".join([row.reason, *row.to_json()["messages"].values()])


def test_a_verdict_follows_from_what_is_known_by_the_rule_of_every_report() -> None:
    def row(*statuses: str, planned: int = 0, **given: Any) -> Row:
        cases = [CaseSpec(f"causal_lm/p{place}", "causal_lm", "some", "cpu", "float32")
                 for place in range(max(planned, len(statuses)))]
        results = [dict(events.result(id=case.id, property=case.property, implementation="some", device="cpu", dtype="float32",
                                      status=status, statements=[])) for case, status in zip(cases, statuses, strict=False)]
        made = Row("some", cases=cases, results=results, **given)
        made.settle()
        return made

    assert row(reason="ImportError").verdict == "not built"
    assert row("pass", "not-exercised", built=True).verdict == "conformant"
    assert row("pass", "fail", built=True).verdict == "non-conformant"
    assert row("crash", planned=2, built=True).verdict == "non-conformant"
    assert row("pass", planned=2, built=True, reason="not finished: its time was over").verdict == "inconclusive"
    undecided = row("pass", "pass", "inconclusive", built=True)  # two of three, yet one property is shown in no type
    assert undecided.verdict == "inconclusive" and "p2 was decided in none" in undecided.reason
    broken = row("pass", "harness-error", built=True)  # nothing that the model did
    assert broken.verdict == "inconclusive" and not broken.failing and "assay itself failed" in broken.reason


# ------------------------------------------------------------------------------------------------ the table of families
@pytest.mark.parametrize("family", _hf_families.FAMILIES, ids=lambda family: family.types[0])
def test_a_family_names_what_there_is_and_why(family: _hf_families.Family) -> None:
    assert set(family.types) <= set(hf_causal_lm.model_types()), "a model type that the library does not have"
    assert family.evidence and len(set(family.types)) == len(family.types)
    assert family.lacks <= KINDS["causal_lm"].features and family.withheld <= hf_causal_lm.OFFERS
    assert set(family.conventions) <= set(KINDS["causal_lm"].conventions)
    assert family.told(), "an entry that says nothing"
