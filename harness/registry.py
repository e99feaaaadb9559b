"""The registry: joins specification, references, implementations and faults by the name of their kind."""
from __future__ import annotations

import ast
import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from assay import properties as _properties
from assay.contract.declaration import Declaration, declare
from assay.contract.kinds import KINDS, unknown
from assay.contract.kinds import kind as kind_named
from assay.errors import HarnessError, UsageError
from assay.numbers.forms import Form

Implementation = TypeVar("Implementation", bound=Callable[..., Any])
GROUP = "assay.implementations"


class Collection:
    """Declarations in the order in which they were made; one name once per kind."""

    def __init__(self, *, origin: str = "this process", builtin: bool = False, renew: bool = False) -> None:
        self.origin = origin
        self.builtin = builtin
        self._renew = renew  # a function declared again (a notebook cell run twice) replaces the earlier one
        self._found: dict[tuple[str, str], Declaration] = {}

    def add(self, made: Declaration) -> None:
        """Take a declaration in; a name that is taken is a UsageError."""
        key = (made.kind, made.name)
        if key in self._found and not (self._renew and _where(self._found[key]) == _where(made)):
            raise UsageError(f"{made.kind} name={made.name!r} is declared twice; give each its own name=")
        self._found[key] = made

    def __iter__(self) -> Iterator[Declaration]:
        return iter(list(self._found.values()))

    def __len__(self) -> int:
        return len(self._found)

    def find(self, kind: str, name: str) -> Declaration | None:
        """The declaration of that kind and name, if there is one."""
        return self._found.get((kind, name))


@dataclass(frozen=True)
class Fault:
    """A deliberately wrong implementation. origin: id of the report it comes from, or ""."""

    id: str
    kind: str
    function: Callable[..., Any]
    origin: str
    summary: str
    declaration: Declaration


@dataclass(frozen=True)
class Benign:
    """A correct implementation that evaluates in an unusual way: no property may fail on it."""

    id: str
    kind: str
    function: Callable[..., Any]
    summary: str
    declaration: Declaration


_SESSION = Collection(renew=True)
_BUILT_IN = Collection(origin="built in", builtin=True, renew=True)
_COLLECTING: ContextVar[Collection] = ContextVar("collecting", default=_SESSION)
_FAULTS: dict[str, Fault] = {}
_BENIGNS: dict[str, Benign] = {}
_UNAVAILABLE: list[tuple[str, str]] = []


def implements(kind: str, **options: Any) -> Callable[[Implementation], Implementation]:
    """Declare a callable as an implementation of a kind; it comes back unchanged."""
    kind_named(kind)

    def register(function: Implementation) -> Implementation:
        ours = str(getattr(function, "__module__", "")).startswith(("assay.impls.", "assay.reference."))
        into = _BUILT_IN if ours else _COLLECTING.get()  # whoever imports a built-in module does not thereby declare it
        into.add(declare(kind, function, **{**options, "origin": into.origin, "builtin": into.builtin}))
        return function
    return register


@contextmanager
def collecting(*, origin: str = "this process", builtin: bool = False) -> Iterator[Collection]:
    """What is declared inside goes into the collection that this gives, and nowhere else."""
    with _into(Collection(origin=origin, builtin=builtin)) as collection:
        yield collection


@contextmanager
def _into(collection: Collection) -> Iterator[Collection]:
    token = _COLLECTING.set(collection)
    try:
        yield collection
    finally:
        _COLLECTING.reset(token)


def declarations(kind: str | None = None) -> list[Declaration]:
    """Every known implementation: references first, then built-in ones, installed ones, and those of this process."""
    if kind is not None:
        kind_named(kind)
    everything = [*_references(), *_built_in(), *_installed(), *_SESSION]
    return [made for made in everything if kind is None or made.kind == kind]


def implementations(kind: str) -> list[str]:
    """Names of the implementations of a kind."""
    return list(dict.fromkeys(made.name for made in declarations(kind)))


def get(kind: str, name: str) -> Callable[..., Any]:
    """The callable of a registered implementation."""
    kind_named(kind)
    mine = _SESSION.find(kind, name) if isinstance(name, str) else None
    for made in ([mine] if mine else declarations(kind)):
        if made.name == name and made.function is not None:
            return made.function
    raise UsageError(unknown(f"implementation of {kind}", name, implementations(kind)))


@cache
def reference(kind: str) -> ModuleType:
    """The module with the kind's formula: a function of the kind's name, and FORMS."""
    kind_named(kind)
    module = f"assay.reference.{kind}"
    if importlib.util.find_spec(module) is None:
        raise HarnessError(f"kind={kind} has no reference; write reference/{kind}.py")
    return importlib.import_module(module)


@cache
def forms(kind: str) -> tuple[Form, ...]:
    """The legitimate ways to evaluate the kind's formula."""
    found: Sequence[Form] = getattr(reference(kind), "FORMS", ())
    if not found:
        raise HarnessError(f"kind={kind} must have at least one form; write FORMS in reference/{kind}.py")
    return tuple(found)


def fault(
    kind: str, *, origin: str = "", summary: str = "", **options: Any,
) -> Callable[[Implementation], Implementation]:
    """Plant a fault: a function with the kind's signature and one thing wrong; its id is `kind/function_name`."""
    def register(function: Implementation) -> Implementation:
        id, about, made = _planted(kind, function, summary, options, _FAULTS)
        _FAULTS[id] = Fault(id, kind, function, origin, about, made)
        return function
    return register


def benign(kind: str, *, summary: str = "", **options: Any) -> Callable[[Implementation], Implementation]:
    """Plant a correct implementation that evaluates in an unusual way."""
    def register(function: Implementation) -> Implementation:
        id, about, made = _planted(kind, function, summary, options, _BENIGNS)
        _BENIGNS[id] = Benign(id, kind, function, about, made)
        return function
    return register


def faults(kind: str | None = None) -> list[Fault]:
    """Planted faults."""
    _import_all("assay.faults")
    return [made for made in _FAULTS.values() if kind is None or made.kind == kind]


def own_faults(kind: str) -> list[Fault]:
    """The kind's faults of value, without importing those of other kinds: what `faults/<kind>.py` and its parts plant."""
    own = f"assay.faults.{kind}"
    for name in _modules("assay.faults"):
        if name == own or name.startswith(f"{own}_"):
            importlib.import_module(name)
    return [made for made in _FAULTS.values() if made.kind == kind and made.function.__module__.startswith("assay.faults.")]


def benigns(kind: str | None = None) -> list[Benign]:
    """Correct implementations that evaluate in unusual ways."""
    _import_all("assay.faults")
    return [made for made in _BENIGNS.values() if kind is None or made.kind == kind]


def properties(kind: str | None = None) -> list[_properties.Property]:
    """The specification: properties of one kind or of all."""
    _import_all("assay.spec")
    return _properties.registered(kind)


def unavailable() -> list[tuple[str, str]]:
    """Modules with implementations that could not be imported here, each with the reason."""
    _built_in()
    _installed()
    return list(_UNAVAILABLE)


def missing(kind: str | None = None) -> list[tuple[str, str, str]]:
    """Kind, name and reason of each built-in implementation whose library is not here, read without importing its module; a name
    that is put together as the module runs has a * for what is put in."""
    return [(made, name, reason) for module, reason in unavailable() if module.startswith("assay.impls.")
            for made, name in _declared(module) if kind in (None, made)]


def _planted(kind: str, function: Callable[..., Any], summary: str, options: dict[str, Any],
             taken: dict[str, Any]) -> tuple[str, str, Declaration]:
    """Id, summary (the first docstring line where none is given) and declaration of a planted implementation."""
    id = f"{kind}/{function.__name__}"
    if id in taken:
        raise HarnessError(f"planted={id} is registered twice; rename one of the functions")
    about = summary or (function.__doc__ or "").strip().partition("\n")[0]
    if not about:
        raise HarnessError(f"planted={id} must say what is unusual about it; write summary= or a docstring")
    return id, about, declare(kind, function, **{"name": function.__name__, **options}, builtin=True)


@cache
def _references() -> tuple[Declaration, ...]:
    """One implementation named `reference` for every kind that has a reference module.

    The module may decorate its function itself; else the function of the kind's name is declared, with the options that
    the module's DECLARATION holds.
    """
    found = []
    for name in KINDS:
        if importlib.util.find_spec(f"assay.reference.{name}") is None:
            continue
        with _into(_BUILT_IN):
            module = reference(name)
        made = _BUILT_IN.find(name, "reference")
        if made is None:
            options = {"dtypes": ("float64", "float32", "bfloat16", "float16"), **getattr(module, "DECLARATION", {})}
            made = declare(name, getattr(module, name), **options, name="reference", builtin=True)
        found.append(made)
    return tuple(found)


@cache
def _built_in() -> tuple[Declaration, ...]:
    """What `assay.impls` declares; a module whose optional library is missing is noted and left out."""
    for name in _modules("assay.impls"):
        needs, missing = _requires(name), missing_libraries(name)
        if missing:
            _UNAVAILABLE.append((name, f"needs {', '.join(missing)}, not installed"))
            continue
        try:
            with _into(_BUILT_IN):
                importlib.import_module(name)
        except ImportError as error:
            if not needs:
                raise HarnessError(f"module={name} must import, or name what it needs in REQUIRES; {error}") from error
            _UNAVAILABLE.append((name, f"needs {', '.join(needs)}: {error}"))
    return tuple(made for made in _BUILT_IN if made.name != "reference")


@cache
def _installed() -> tuple[Declaration, ...]:
    """What installed packages declare through the entry point group."""
    found: list[Declaration] = []
    for point in entry_points(group=GROUP):
        origin = f"entry point {point.name} ({point.value})"
        try:
            with collecting(origin=origin) as collection:
                point.load()
        except Exception as error:  # noqa: BLE001 - a foreign package; whatever it raises must not take the built-in ones with it
            _UNAVAILABLE.append((origin, f"{type(error).__name__}: {error}"))
            continue
        found.extend(collection)
    return tuple(found)


def missing_libraries(module: str) -> list[str]:
    """Those of a module's optional libraries that are not installed."""
    return [library for library in _requires(module) if importlib.util.find_spec(library) is None]


def _requires(module: str) -> tuple[str, ...]:
    """The literal REQUIRES of a module, read without importing it: its first line may be the import that fails."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return ()
    for node in ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.Assign):
            continue
        if any(isinstance(target, ast.Name) and target.id == "REQUIRES" for target in node.targets):
            value = ast.literal_eval(node.value)
            return (value,) if isinstance(value, str) else tuple(value)
    return ()


def _declared(module: str) -> list[tuple[str, str]]:
    """Kind and name of every `implements(kind, name=…)` in a module's text."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:
        return []
    calls = [node for node in ast.walk(ast.parse(Path(spec.origin).read_text(encoding="utf-8"))) if isinstance(node, ast.Call)
             and ast.unparse(node.func).endswith("implements") and node.args]
    kinds = [(ast.literal_eval(call.args[0]), call) for call in calls if isinstance(call.args[0], ast.Constant)]
    return [(kind, _name(keyword.value)) for kind, call in kinds for keyword in call.keywords if keyword.arg == "name"]


def _name(text: ast.expr) -> str:
    """A name as it is written, a * for each part that is not text."""
    if isinstance(text, ast.Constant):
        return str(text.value)
    return "".join(_name(part) for part in text.values) if isinstance(text, ast.JoinedStr) else "*"


def _modules(package: str) -> list[str]:
    """Names of all modules of a package and its sub-packages; private ones are left to those that import them."""
    found = pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}.")
    return sorted(module.name for module in found if not module.name.rpartition(".")[2].startswith("_"))


@cache
def _import_all(package: str) -> None:
    """Import every module of a package, so that its decorators run."""
    for name in _modules(package):
        importlib.import_module(name)


def _where(made: Declaration) -> tuple[str, str]:
    """Where the function was written."""
    return str(getattr(made.function, "__module__", "")), str(getattr(made.function, "__qualname__", made.function))
