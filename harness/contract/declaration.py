"""What `@assay.implements` recorded about one implementation, validated against its kind."""
from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from assay.contract import checks, conventions, limits, signature
from assay.contract.kinds import FEATURES, OFFERS, Kind, quoted, unknown
from assay.contract.kinds import kind as kind_named
from assay.errors import HarnessError, UsageError
from assay.numbers.arithmetic import Arithmetic

DEFAULT_DTYPES = ("float32", "bfloat16", "float16")
_HALF = frozenset({"bfloat16", "float16"})
_NEEDS_KEYWORD = {  # feature -> keywords one of which carries it, where the kind has any of them
    "gqa": ("num_kv_heads",), "cross_lengths": ("context",), "long_positions": ("positions",),
    "padding": ("mask", "key_mask", "src_mask", "memory_mask"), "two_sided_window": ("window",),
    "mask": ("mask", "key_mask", "src_mask", "tgt_mask", "memory_mask"),
}
_RESTS_ON = {"two_sided_window": "window", "negative_scale": "scale", "left_padding": "padding", "chunks": "cache",
             "beams": "cache"}


@dataclass(frozen=True)
class Declaration:
    """One implementation of one kind: claims, limits, conventions, arithmetic. JSON but for `function` and `cost`."""

    kind: str
    name: str
    function: Callable[..., Any] | None  # None on the parent's and judge's side of an isolated run
    dtypes: tuple[str, ...] = DEFAULT_DTYPES
    devices: tuple[str, ...] | None = None  # None: try what there is
    grad: bool = True
    lacks: frozenset[str] = frozenset()
    offers: frozenset[str] = frozenset()
    limits: Mapping[str, Any] = field(default_factory=dict)  # letter or argument -> frozenset of values, or range
    arithmetic: Arithmetic = field(default_factory=Arithmetic)
    conventions: Mapping[str, Any] = field(default_factory=dict)  # complete: every convention of the kind has a value
    keywords: frozenset[str] = frozenset()  # keyword-only arguments of the kind that the signature takes
    positional: tuple[str, ...] = ()  # arguments of the kind that must be handed over by position
    defaults: Mapping[str, str] = field(default_factory=dict)  # options whose default is not the contract's -> that default
    cost: Callable[..., Any] | None = None
    version: str = ""
    url: str = ""
    origin: str = "built in"  # or the file / import path it came from
    builtin: bool = False
    deep: bool = False  # planned by the profile deep, or where it is named: too slow for the rest

    def claims(self, feature: str) -> bool:
        """Whether the feature (a name out of FEATURES or a keyword of the kind) is held against the implementation."""
        kind = kind_named(self.kind)
        if feature in FEATURES:
            return self._claims_feature(kind, feature)
        if feature in kind.arguments:
            return True
        if feature not in kind.options:
            raise HarnessError(unknown(f"feature of {self.kind}", feature, (*FEATURES, *kind.names)))
        masked = feature.endswith("_mask") and "mask" in self.lacks
        return feature in self.keywords and not masked

    def _claims_feature(self, kind: Kind, feature: str) -> bool:
        base = _RESTS_ON.get(feature)
        if feature in self.lacks or (base is not None and not self._claims_feature(kind, base)):
            return False
        if feature in OFFERS and feature not in self.offers:
            return False
        if feature == "gradients" and not self.grad:
            return False
        if feature == "half_precision" and not _HALF.intersection(self.dtypes):
            return False
        if feature not in kind.features and feature not in kind.options:
            return False
        # Who takes `key_mask` alone has masks, yet none that the kind calls `mask`.
        named = (feature,) if feature in kind.options else _NEEDS_KEYWORD.get(feature, ())
        carriers = [name for name in named if name in kind.options]
        return not carriers or not self.keywords.isdisjoint(carriers)

    def allows(self, name: str, value: Any) -> bool:
        """Whether `limits` admit this value of a letter or argument (True where no limit was declared).

        An argument that is left out (None where None is its default) is not limited.
        """
        if value is None and kind_named(self.kind).options.get(name, "") is None:
            return True
        return name not in self.limits or limits.admits(self.limits[name], value)

    @property
    def fixed(self) -> dict[str, Any]:
        """Arguments that the signature lacks and for which there is one fixed choice: what the formula is given."""
        return {name: self.conventions[name] for name in conventions.FIXED
                if name in self.conventions and name not in self.keywords}

    def bind(self, arguments: Mapping[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments of a call as the signature takes them: those by position, those by name."""
        by_name = {name: value for name, value in arguments.items() if name not in self.positional}
        return [arguments[name] for name in self.positional], by_name

    def to_json(self) -> dict[str, Any]:
        """All but the callables, as JSON; `from_json` is the inverse."""
        return {
            "kind": self.kind, "name": self.name, "dtypes": list(self.dtypes),
            "devices": None if self.devices is None else list(self.devices), "grad": self.grad,
            "lacks": sorted(self.lacks), "offers": sorted(self.offers),
            "limits": {name: limits.encode(limit) for name, limit in self.limits.items()},
            "arithmetic": self.arithmetic.to_json(), "conventions": dict(self.conventions),
            "keywords": sorted(self.keywords), "positional": list(self.positional),
            **({"defaults": dict(self.defaults)} if self.defaults else {}),
            "version": self.version, "url": self.url, "origin": self.origin, "builtin": self.builtin,
            **({"deep": True} if self.deep else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Declaration:
        """The declaration without its callables, as it travels between processes."""
        return cls(
            kind=data["kind"], name=data["name"], function=None, dtypes=tuple(data["dtypes"]),
            devices=None if data["devices"] is None else tuple(data["devices"]), grad=data["grad"],
            lacks=frozenset(data["lacks"]), offers=frozenset(data["offers"]),
            limits={name: limits.decode(limit) for name, limit in data["limits"].items()},
            arithmetic=Arithmetic.from_json(data["arithmetic"]), conventions=dict(data["conventions"]),
            keywords=frozenset(data["keywords"]), positional=tuple(data["positional"]),
            defaults=data.get("defaults", {}),
            version=data["version"], url=data["url"], origin=data["origin"], builtin=data["builtin"],
            deep=data.get("deep", False))


def declare(
    kind: str, function: Callable[..., Any], *, name: Any = None, dtypes: Any = DEFAULT_DTYPES, devices: Any = None,
    grad: Any = True, lacks: Any = (), offers: Any = (), limits: Any = None, arithmetic: Any = None, cost: Any = None,
    version: Any = "", url: Any = "", conventions: Any = None, origin: str = "built in", builtin: bool = False,
    deep: bool = False, **other: Any,
) -> Declaration:
    """Validate everything that was declared; whatever is wrong is a UsageError of one line that says what to write."""
    made = kind_named(kind)
    if other:
        raise UsageError(unknown("option of implements", next(iter(other)), _OPTIONS))
    if not callable(function):
        raise UsageError(f"implements({made.name!r}) must decorate a callable, got {quoted(function)}")
    known = checks.name(_default_name(function) if name is None else name)
    try:
        return _declare(made, function, known, dict(
            dtypes=dtypes, devices=devices, grad=grad, lacks=lacks, offers=offers, limits=limits, arithmetic=arithmetic,
            cost=cost, version=version, url=url, conventions=conventions), origin=origin, builtin=builtin, deep=deep)
    except UsageError as error:
        raise UsageError(f"{made.name} {known!r}: {error}") from None


_OPTIONS = ("name", "dtypes", "devices", "grad", "lacks", "offers", "limits", "arithmetic", "cost", "version", "url",
            "conventions")


def _declare(made: Kind, function: Callable[..., Any], name: str, raw: Mapping[str, Any], *, origin: str,
             builtin: bool, deep: bool) -> Declaration:
    """The declaration of a callable whose kind and name are settled."""
    shape = signature.shape_of(made, function)
    named = dict(checks.mapping("conventions", raw["conventions"]))
    bounds = limits.read(made, checks.mapping("limits", raw["limits"]))
    for option in conventions.fixable(made):
        only = limits.single(bounds.get(option))
        if only is not None and option not in named and option not in shape.keywords:
            named[option] = only  # a limit of one value is a fixed choice too
    resolved = conventions.resolve(made, named, shape.keywords)
    for option in set(named).intersection(shape.keywords, conventions.fixable(made)):
        bounds[option] = frozenset({resolved[option]})  # named though it is taken: that value alone
    return Declaration(
        kind=made.name, name=name, function=function,
        dtypes=checks.dtypes(raw["dtypes"]), devices=checks.devices(raw["devices"]),
        grad=checks.flag("grad", raw["grad"]), lacks=checks.members("lacks", raw["lacks"], FEATURES),
        offers=checks.members("offers", raw["offers"], OFFERS), limits=bounds,
        arithmetic=Arithmetic.declared(checks.mapping("arithmetic", raw["arithmetic"])), conventions=resolved,
        keywords=shape.keywords, positional=shape.positional, defaults=shape.defaults,
        cost=checks.optional_callable("cost", raw["cost"]), version=checks.text("version", raw["version"]),
        url=checks.url(raw["url"]), origin=origin, builtin=builtin, deep=deep)


def _default_name(function: Callable[..., Any]) -> str:
    """The callable's own name; that of what a partial wraps; else its type's."""
    inner = function.func if isinstance(function, functools.partial) else function
    return str(getattr(inner, "__name__", type(inner).__name__))
