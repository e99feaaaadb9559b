"""Loading: from what a user names (a file, an import path, a built-in name, a callable) to declarations.

Runs in the process that is to run the implementation: what the file does to it, it does to that process alone.
"""
from __future__ import annotations

import fnmatch
import hashlib
import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, NoReturn

from assay import registry
from assay.contract.declaration import Declaration, declare
from assay.contract.kinds import kind as kind_named
from assay.contract.kinds import quoted, unknown
from assay.errors import UsageError

LONGEST_MESSAGE = 300
SCHEMES = {"hf": "assay.impls.hf_causal_lm"}  # what a target may begin with -> the module whose `resolve` knows the rest
_IMPORT_PATH = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")
_WAYS = "a file path.py or path.py:NAME, package.module:OBJECT with --kind, hf:MODEL_TYPE, hf:./FOLDER, or the name of a " \
        "built-in implementation"


def load(target: str | Callable[..., Any], kind: str | None = None) -> list[Declaration]:
    """All declarations that the target names, only those of `kind` where it is given; never an empty list."""
    if kind is not None:
        kind_named(kind)
    if not isinstance(target, str):
        return [_of_object(target, kind, _name_of(target), list(registry.declarations(kind)), "this process")]
    scheme, colon, rest = target.partition(":")
    if colon and scheme in SCHEMES:
        return _from_scheme(scheme, rest, kind)
    head, _, tail = target.rpartition(":")
    if head.endswith(".py") and not os.path.exists(target):
        return _from_file(head, tail, kind)
    if _is_path(target):
        return _from_file(target, None, kind)
    if head and tail and _IMPORT_PATH.fullmatch(head) and _IMPORT_PATH.fullmatch(tail):
        return [_from_module(head, tail, kind)]
    return _built_in(target, kind)


def _is_path(text: str) -> bool:
    """Whether the text means a file: it looks like one, or there is one (a folder `reference` is no file)."""
    return text.endswith(".py") or "/" in text or os.sep in text or os.path.isfile(text)


def _built_in(name: str, kind: str | None) -> list[Declaration]:
    known = registry.declarations(kind)
    found = [made for made in known if made.name == name]
    if not found:
        for _, pattern, reason in registry.missing(kind):
            if fnmatch.fnmatchcase(name, pattern):
                raise UsageError(f"implementation={quoted(name)} is built in, yet {reason}; install that, or take one that "
                                 "`assay list implementations` shows")
        hidden = [f"{module}: {reason}" for module, reason in registry.unavailable() if name in module]
        more = f"; {hidden[0]}" if hidden else ""
        message = unknown("implementation", name, {made.name for made in known}, "assay list implementations")
        raise UsageError(f"{message}{more}; or give {_WAYS}")
    return found


def _from_scheme(scheme: str, rest: str, kind: str | None) -> list[Declaration]:
    """What a bridge to a library of whole models declares."""
    missing = registry.missing_libraries(SCHEMES[scheme])
    if missing:
        raise UsageError(f"target={quoted(f'{scheme}:{rest}')} needs {', '.join(missing)}; install assay[thirdparty]")
    found: list[Declaration] = importlib.import_module(SCHEMES[scheme]).resolve(rest, kind)
    return found


def _from_file(text: str, name: str | None, kind: str | None) -> list[Declaration]:
    """What a file declares, all of it or by name."""
    path = _existing(text)
    shown = printable(text)
    module, found = _execute(path, shown)
    if name is None:
        return _of_kind(found, kind, shown)
    named = [made for made in found if made.name == name and kind in (None, made.kind)]
    if named:
        return named
    if not name or not hasattr(module, name):
        raise UsageError(f"{shown}: {unknown('implementation', name, {made.name for made in found})}")
    return [_of_object(getattr(module, name), kind, name, found, f"{path}:{name}", shown)]


def _of_kind(found: list[Declaration], kind: str | None, shown: str) -> list[Declaration]:
    """Those of the kind; none at all is a mistake to be told."""
    asked = [made for made in found if kind in (None, made.kind)]
    if found and not asked:
        others = ", ".join(sorted({made.kind for made in found}))
        raise UsageError(f"{shown} declares nothing of kind {kind}, only of {others}")
    if not asked:
        example = kind or "attention"
        raise UsageError(f"{shown} declares nothing; put @assay.implements({example!r}, name=...) on a function, "
                         f"or name one: {shown}:FUNCTION --kind {example}")
    return asked


def _of_object(target: Any, kind: str | None, name: str, declared: list[Declaration], origin: str,
               shown: str = "") -> Declaration:
    """The declaration of an object: the one it has, or a new one of the kind that is given."""
    where = f"{shown}: " if shown else ""
    own = [made for made in declared if made.function is target and kind in (None, made.kind)]
    if len(own) == 1:
        return own[0]
    if own:
        listed = ", ".join(f"{made.kind} {made.name!r}" for made in own)
        raise UsageError(f"{where}{quoted(name)} is declared {len(own)} times ({listed}); name one of them")
    if kind is None:
        raise UsageError(f"{where}{quoted(name)} is not declared; say what it is with --kind (kind=), or decorate it "
                         "with @assay.implements(KIND)")
    try:
        return declare(kind, target, name=name, origin=origin)
    except UsageError as error:
        raise UsageError(f"{where}{error}") from None


def _from_module(head: str, tail: str, kind: str | None) -> Declaration:
    """An object of an importable module, by its dotted name."""
    with registry.collecting(origin=f"{head}:{tail}") as collection, _importable(Path.cwd()):
        try:
            found: Any = importlib.import_module(head)
        except BaseException as error:  # noqa: BLE001 - foreign code; whatever it raises, it cannot be loaded
            _refuse(error, head, None)
    for part in tail.split("."):
        if not hasattr(found, part):
            raise UsageError(f"{head} has no {quoted(part)}; check the spelling of {quoted(tail)}")
        found = getattr(found, part)
    return _of_object(found, kind, tail, [*collection, *registry.declarations(kind)], f"{head}:{tail}", head)


def _existing(text: str) -> Path:
    """The absolute path of a Python file that is there."""
    shown = printable(text)
    if not os.path.exists(text):
        raise UsageError(f"{shown} does not exist; check the path")
    if os.path.isdir(text):
        raise UsageError(f"{shown} is a directory; name a file in it")
    if not text.endswith(".py"):
        raise UsageError(f"{shown} must be a Python file (.py)")
    return Path(text).resolve()


def _execute(path: Path, shown: str) -> tuple[ModuleType, list[Declaration]]:
    """Run a file as a module of its own and give what it declared."""
    code = _compile(path, shown)
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()[:12]
    name = f"assay_user_{re.sub(r'[^0-9A-Za-z]', '_', path.stem)}_{digest}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None:
        raise UsageError(f"{shown} must be a Python file (.py)")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    with registry.collecting(origin=str(path)) as collection, _importable(path.parent):
        try:
            exec(code, module.__dict__)  # the user's file, which they asked to run
        except BaseException as error:  # noqa: BLE001 - foreign code; SystemExit is what the file did
            sys.modules.pop(name, None)
            _refuse(error, shown, path)
    return module, list(collection)


def _compile(path: Path, shown: str) -> CodeType:
    try:
        return compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except OSError as error:
        raise UsageError(f"{shown} cannot be read: {error.strerror}") from None
    except SyntaxError as error:
        raise UsageError(f"{shown}:{error.lineno or 1} does not parse: {printable(error.msg)}") from None
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:  # null bytes, nesting
        raise UsageError(f"{shown} does not parse: {printable(str(error)) or type(error).__name__}") from None


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """The folder first on the import path, as for a script; afterwards last, for imports that functions make late.

    Last, so that a `random.py` beside the user's file shadows nothing that the harness imports later.
    """
    entry = str(folder)
    there = entry in sys.path
    sys.path.insert(0, entry)
    try:
        yield
    finally:
        if entry in sys.path:
            sys.path.remove(entry)
        if not there:
            sys.path.append(entry)


def _refuse(error: BaseException, shown: str, path: Path | None) -> NoReturn:
    """Say in one line what foreign code raised, and where in the file."""
    frames = [line for frame, line in traceback.walk_tb(error.__traceback__)
              if path is not None and frame.f_code.co_filename == str(path)]
    place = f"{shown}:{frames[-1]}" if frames else shown
    if isinstance(error, UsageError):
        raise UsageError(f"{place}: {error}") from None
    kind, message = printable(type(error).__name__), _message(error)
    raise UsageError(f"{place} raises {kind} on import{': ' if message else ''}{message}") from None


def _message(error: BaseException) -> str:
    try:
        return printable(str(error))
    except Exception:  # noqa: BLE001 - a foreign `__str__` may raise anything; then there is no message
        return ""


def printable(text: str) -> str:
    """One line without control characters, cut to a length that can be read."""
    cut = text if len(text) <= LONGEST_MESSAGE else text[: LONGEST_MESSAGE - 3] + "..."
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in cut)


def _name_of(target: object) -> str:
    return str(getattr(target, "__name__", type(target).__name__))
