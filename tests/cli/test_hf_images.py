"""Image classifiers: tiny ones of Hugging Face by type, a checkpoint by folder, and a stranger's own."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from assay.contract.loading import load
from assay.errors import UsageError
from assay.impls import _hf_images, hf_causal_lm

Call = Callable[..., tuple[int, str, str]]
NARROW = ("--profile", "quick", "--isolate", "never", "--workers", "1", "--quiet")
OWN = '''
import assay, torch
@assay.implements("image_classifier", name="mine")
class Mine(torch.nn.Module):
    image_shape, num_classes = [1, 6, 4], 3
    def __init__(self, *, seed):
        super().__init__()
        torch.nn.Module.train(self, False)
        self.table = torch.nn.Parameter(torch.randn(3, 24, generator=torch.Generator().manual_seed(seed)))
    def forward(self, image):
        return image.flatten(1) @ self.table.T{wrong}
'''


@pytest.mark.parametrize("wrong", ["", " - (image.flatten(1) @ self.table.T).mean(0)"])
def test_a_strangers_own_is_checked(assay: Call, tmp_path: Path, wrong: str) -> None:
    """The right one is, the one that mixes the images of a batch is not."""
    (tmp_path / "mine.py").write_text(OWN.format(wrong=wrong))
    code, out, err = assay("check", tmp_path / "mine.py", *NARROW, "--out", tmp_path / "report")
    assert code == (1 if wrong else 0), out + err
    assert not wrong or "images_do_not_touch_each_other" in (tmp_path / "report" / "summary.md").read_text()


@pytest.mark.parametrize("name", [
    "every_quarter_of_an_image_matters", "every_kernel_gives_the_same", "every_part_gives_its_formula"])
def test_a_type_is_checked(assay: Call, tmp_path: Path, name: str) -> None:
    code, _, err = assay("check", "hf:image:vit", *NARROW, "--only", f"image_classifier/{name}", "--out", tmp_path)
    assert code == 0, err


def test_a_fault_of_the_library_is_found(assay: Call, tmp_path: Path) -> None:
    """SwiftFormer's weights have no effect: see reports/findings/swiftformer_weights.md."""
    only = "image_classifier/every_parameter_learns"
    code, _, err = assay("check", "hf:image:swiftformer", *NARROW, "--only", only, "--out", tmp_path)
    assert code == 1, err


def test_a_checkpoint_gives_what_the_saved_model_gives(tmp_path: Path) -> None:
    made = load("hf:image:vit")[0].function
    assert made is not None
    saved = made(seed=3)
    saved.model.save_pretrained(tmp_path)
    declared, = load(f"hf:{tmp_path}")
    assert declared.kind == "image_classifier" and declared.function is not None
    image = torch.randn(2, *saved.image_shape, generator=torch.Generator().manual_seed(0))
    assert torch.equal(declared.function()(image), saved(image))


@pytest.mark.parametrize(("target", "said"), [
    ("hf:image:vitt", "did you mean hf:image:vit"), ("hf:image:zzzz", "they are beit"), ("hf:image:imagegpt", "not pixels")])
def test_what_cannot_be_is_told(target: str, said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        load(target)
    assert "\n" not in str(caught.value)


def test_a_kind_that_the_target_is_not_is_refused() -> None:
    with pytest.raises(UsageError, match="must be image_classifier"):
        load("hf:image:vit", "causal_lm")


def test_an_audit_lists_them_where_they_are_asked_for() -> None:
    assert hf_causal_lm.listed(["image:vit*"]) == ["hf:image:vit", "hf:image:vit_msn"]


def test_what_is_not_tried_and_what_idles_has_evidence() -> None:
    types = set(_hf_images.model_types())
    assert set(_hf_images.OWN) | set(_hf_images.REFUSED) | set(_hf_images.IDLE) <= types
    assert all(parts and evidence for parts, evidence in _hf_images.IDLE.values())
