"""Loading: every way in, and everything that can be wrong with a file."""
from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay import registry
from assay.contract.loading import load
from assay.errors import UsageError

GOOD = """
import assay
from helper_of_this_test import SCALE

@assay.implements("softmax", name="a name")
def first(x, *, dim=-1):
    import late_helper_of_this_test
    return late_helper_of_this_test.VALUE

@assay.implements("rms_norm", conventions={"eps": 1e-5})
def second(x, weight):
    return x

def plain(x, *, dim=-1):
    return x
"""


@pytest.fixture
def good(tmp_path: Path) -> str:
    (tmp_path / "helper_of_this_test.py").write_text("SCALE = 1\n")
    (tmp_path / "late_helper_of_this_test.py").write_text("VALUE = 7\n")
    (tmp_path / "good.py").write_text(GOOD)
    return str(tmp_path / "good.py")


def test_a_file_gives_all_that_it_declares(good: str) -> None:
    assert [(d.kind, d.name) for d in load(good)] == [("softmax", "a name"), ("rms_norm", "second")]
    assert [d.name for d in load(good, "rms_norm")] == ["second"]
    assert all(d.origin == good and not d.builtin for d in load(good))


def test_helpers_beside_the_file_are_found_later_too(good: str) -> None:
    made = load(good)[0]
    assert made.function is not None and made.function(None) == 7
    assert sys.path[0] != str(Path(good).parent)


@pytest.mark.parametrize(("name", "kind", "found"), [
    ("a name", None, "a name"), ("first", None, "a name"), ("second", None, "second"), ("plain", "softmax", "plain"),
])
def test_one_of_a_file_by_name_or_attribute(good: str, name: str, kind: str | None, found: str) -> None:
    assert [d.name for d in load(f"{good}:{name}", kind)] == [found]


@pytest.mark.parametrize(("source", "message"), [
    ("x = 1\n", "declares nothing; put @assay.implements"),
    ("\ndef f(:\n", r"f.py:2 does not parse"),
    ("x = '\0'\n", "does not parse"),
    ("(" * 5000 + ")" * 5000, "does not parse"),
    ("\nraise SystemExit(0)\n", r"f.py:2 raises SystemExit on import: 0"),
    ("raise KeyboardInterrupt\n", r"f.py:1 raises KeyboardInterrupt on import"),
    ("class E(BaseException):\n def __str__(self): raise E\nraise ValueError('\\x1b[31m' + 'x' * 10**6)",
     r"raises ValueError on import: \\x1b\[31mx+\.\.\.$"),
    ("class E(Exception):\n def __str__(self): return 1/0\nraise E", r"f.py:3 raises E on import"),
    ("import assay\nassay.implements('softmax', name='\\n')(lambda x: x)\n", r"f.py:2: name='\\n' must be 1 to 100"),
    ("import assay\nf = lambda x, **k: x\nfor _ in 'ab': assay.implements('softmax', name='n')(f)\n", "declared twice"),
])
def test_a_bad_file_is_told_in_one_line(tmp_path: Path, source: str, message: str) -> None:
    (tmp_path / "f.py").write_text(source)
    with pytest.raises(UsageError, match=message) as raised:
        load(str(tmp_path / "f.py"))
    assert str(raised.value).isprintable() and len(str(raised.value)) < 800


@pytest.mark.parametrize(("target", "kind", "message"), [
    ("no/such.py", None, "does not exist"), ("/", None, "is a directory"), ("hf:lama", None, "did you mean hf:llama"),
    ("json:dumps", None, "--kind"), ("json:nothing", "softmax", "has no 'nothing'"),
    ("no_such_module:f", "softmax", "raises ModuleNotFoundError"), ("nothing", None, "is unknown"),
    ("nothing", "no_kind", "kind='no_kind' is unknown"), ("", None, "is unknown"), ("a\0b.py", None, "does not exist"),
])
def test_a_target_that_is_not_there_is_told(target: str, kind: str | None, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load(target, kind)


def test_an_object_of_a_module_and_a_callable() -> None:
    assert load("torch:relu", "softmax")[0].name == "relu"
    assert load(lambda x, *, dim: x, "softmax")[0].keywords == {"dim"}
    assert load("reference", "rms_norm")[0].builtin


@settings(deadline=None, max_examples=60)
@given(text=st.text(max_size=40))
def test_any_text_is_loaded_or_refused(text: str) -> None:
    try:
        assert all(made.name == text for made in load(text))  # hypothesis tries strings of the code too
    except UsageError as error:
        assert str(error).isprintable()


@settings(deadline=None, max_examples=40)
@given(content=st.binary(max_size=60))
def test_any_bytes_are_no_program_or_declare_nothing(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.py"
    path.write_bytes(content)
    with pytest.raises(UsageError) as raised:
        load(str(path))
    assert str(raised.value).isprintable()


def test_what_is_built_in_and_lacks_its_library_is_told_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "unavailable", lambda: [("assay.impls.rotary_libraries", "needs a_library, not installed")])
    assert registry.missing("rotary") == [("rotary", "rotary-embedding-torch", "needs a_library, not installed")]
    assert registry.missing("softmax") == []
    monkeypatch.setattr(registry, "declarations", lambda kind=None: ())
    with pytest.raises(UsageError, match="is built in, yet needs a_library, not installed; install that"):
        load("rotary-embedding-torch")
