"""`assay check MODEL --parts`: a line a part, what is not recognised, exit codes; and the property in a check."""
from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

Call = Callable[..., tuple[int, str, str]]
WRONG = '''
import assay
from assay.faults.causal_lm_parts import norm_of_second_layer_centred as made
assay.implements("causal_lm", name="mine", dtypes=("float32",), offers=("parts",), lacks=("cache", "mask", "refused_ids"))(made)
'''


def test_a_line_a_part(assay: Call) -> None:
    code, out, err = assay("check", "hf:gpt2", "--parts", "--isolate", "never")
    assert code == 0, err
    assert "hf:gpt2: 12 parts right, 0 out of bound" in out and "transformer.h.0.ln_1" in out
    assert "not recognised: torch's own linear map: transformer.h.0.attn.c_attn (Conv1D)" in out


def test_the_first_wrong_part_is_named(assay: Call, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(WRONG)
    code, out, _ = assay("check", tmp_path / "mine.py", "--parts")
    assert code == 1 and "first part out of its bound: norms.1 (RMSNorm, rms norm)" in out
    code, out, _ = assay("check", tmp_path / "mine.py", "--parts", "--json", "--isolate", "never")
    wrong = [row["part"] for row in json.loads(out)["parts"] if row["status"] == "out of bound"]
    assert code == 1 and wrong == ["norms.1"]


def test_a_check_names_it_too(assay: Call, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(WRONG)
    code, _, err = assay("check", tmp_path / "mine.py", "--profile", "quick", "--only", "causal_lm/every_part_gives_its_formula",
                         "--isolate", "never", "--workers", 1, "--out", tmp_path / "report")
    assert code == 1, err
    assert "norms.1 (RMSNorm) is rms norm" in (tmp_path / "report" / "summary.md").read_text()


def test_what_has_no_parts_is_told(assay: Call) -> None:
    code, out, err = assay("check", "torch-softmax", "--parts")
    assert code == 2 and not out and "hands over its parts" in err
