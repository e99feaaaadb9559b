"""Configurations, examples and how they are drawn (layer 2).

hypothesis draws a `Configuration` only: dims, flags, value family, memory layout, seed. Tensors are built on the CPU by a local
generator from the seed, so that a configuration of a few dozen bytes rebuilds its example anywhere. Options are listed from
the simplest; shrinking walks towards the front of each list.
"""
from __future__ import annotations

import hashlib
import itertools
import json
import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from hypothesis import strategies as st

from assay.axes import LETTERS
from assay.contract.declaration import Declaration
from assay.contract.kinds import KINDS

LAYOUTS = ("contiguous", "transposed", "sliced", "offset", "expanded", "head_last")
SEEDS = 1 << 16
BOUNDARY = 12  # boundary examples of one case at most
TRIES, MOST_TRIES = 400, 20_000  # combinations that are tried at least, and at most, for one within the claims


@dataclass(frozen=True)
class Configuration:
    """All that is needed to rebuild an example anywhere: JSON, a few dozen bytes."""

    kind: str
    dims: Mapping[str, int]  # letter -> size
    flags: Mapping[str, Any] = field(default_factory=dict)  # option -> JSON value
    family: str = "integers"  # value family
    layout: str = "contiguous"  # memory layout of the tensors
    seed: int = 0
    values: Mapping[str, Any] = field(default_factory=dict)  # argument -> nested lists that replace what the seed gives

    def to_json(self) -> dict[str, Any]:
        told = {"kind": self.kind, "dims": dict(self.dims), "flags": dict(self.flags), "family": self.family,
                "layout": self.layout, "seed": self.seed}
        return told | ({"values": dict(self.values)} if self.values else {})

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Configuration:
        return cls(data["kind"], dict(data["dims"]), dict(data["flags"]), data["family"], data["layout"], data["seed"],
                   dict(data.get("values", {})))

    def key(self) -> str:
        """Canonical text: equal for equal configurations."""
        return json.dumps(self.to_json(), sort_keys=True)

    def but(self, **changes: Any) -> Configuration:
        """A copy with dims, flags, family, layout or seed changed by name."""
        dims, flags, own = dict(self.dims), dict(self.flags), {}
        for name, value in changes.items():
            if name in ("family", "layout", "seed", "values"):
                own[name] = value
            elif name in dims:
                dims[name] = value
            else:
                flags[name] = value
        return replace(self, dims=dims, flags=flags, **own)


def numbers(nested: Any) -> Any:
    """Nested lists of floats out of nested lists of JSON numbers and the words Infinity, -Infinity, NaN."""
    return [numbers(part) for part in nested] if isinstance(nested, list) else float(nested)


def words(nested: Any) -> Any:
    """The inverse: what JSON has no number for as words."""
    if isinstance(nested, list):
        return [words(part) for part in nested]
    return nested if math.isfinite(nested) else "NaN" if math.isnan(nested) else "Infinity" if nested > 0 else "-Infinity"


def generator(seed: int, label: str) -> torch.Generator:
    """A local generator for one named purpose; independent of every other label and of all global state."""
    digest = hashlib.sha256(f"{seed}/{label}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))


class Example(Mapping[str, Any]):
    """The arguments of one call by name, ready for `**example`, with the configuration they were built from."""

    def __init__(self, configuration: Configuration, dtype: torch.dtype, arguments: Mapping[str, Any],
                 extras: Mapping[str, Any] | None = None) -> None:
        self.configuration = configuration
        self.dtype = dtype
        self.arguments = dict(arguments)
        self.extras = dict(extras or {})

    def __getitem__(self, name: str) -> Any:
        return self.arguments[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.arguments)

    def __len__(self) -> int:
        return len(self.arguments)

    def __getattr__(self, name: str) -> Any:
        for source in (self.__dict__.get("arguments", {}), self.__dict__.get("extras", {})):
            if name in source:
                return source[name]
        raise AttributeError(f"example has no argument or extra {name!r}")

    @property
    def dims(self) -> Mapping[str, int]:
        return self.configuration.dims

    def but(self, **changes: Any) -> Example:
        """The same example with some arguments replaced."""
        return Example(self.configuration, self.dtype, {**self.arguments, **changes}, self.extras)

    def without(self, *names: str) -> Example:
        """The same example with some arguments left out (so at their defaults)."""
        kept = {name: value for name, value in self.arguments.items() if name not in names}
        return Example(self.configuration, self.dtype, kept, self.extras)

    def generator(self, label: str) -> torch.Generator:
        return generator(self.configuration.seed, label)

    def integer(self, label: str, low: int, high: int) -> int:
        """A whole number in low … high, drawn for one named purpose."""
        return int(torch.randint(low, high + 1, (), generator=self.generator(label)))

    # An example is a mapping for `**example` alone; what it holds is read by key, so the name is free for what is drawn.
    def values(  # type: ignore[override]
        self, label: str, *shape: int, family: str | None = None,
    ) -> torch.Tensor:
        """Fresh values of the example's family and type, for one named purpose."""
        return draw_values(family or self.configuration.family, shape, self.generator(label), self.dtype)

    def permutation(self, label: str, length: int) -> torch.Tensor:
        return torch.randperm(length, generator=self.generator(label))


# ------------------------------------------------------------------------------------------------ value families
def _normal(shape: tuple[int, ...], source: torch.Generator) -> torch.Tensor:
    return torch.randn(shape, generator=source, dtype=torch.float64)


def _integers(shape: tuple[int, ...], source: torch.Generator) -> torch.Tensor:
    return torch.randint(-3, 4, shape, generator=source).double()


def _cancelling(shape: tuple[int, ...], source: torch.Generator) -> torch.Tensor:
    """A common mean of 8 under unit noise: sums of products cancel in gradients."""
    return 8 + _normal(shape, source)


def _heavy(shape: tuple[int, ...], source: torch.Generator) -> torch.Tensor:
    """Unit normal with about one element in twenty times 30."""
    rare = torch.rand(shape, generator=source, dtype=torch.float64) < 0.05
    return torch.where(rare, 30.0, 1.0) * _normal(shape, source)


def _one_hot(shape: tuple[int, ...], source: torch.Generator) -> torch.Tensor:
    if not shape or 0 in shape:
        return torch.zeros(shape, dtype=torch.float64)
    place = torch.randint(0, shape[-1], shape[:-1], generator=source)
    return torch.nn.functional.one_hot(place, shape[-1]).double() * 2


def _constant(shape: tuple[int, ...], source: torch.Generator) -> torch.Tensor:
    """One value a row: ties everywhere along the last axis."""
    rows = (*shape[:-1], 1) if shape else ()
    return torch.randint(1, 4, rows, generator=source).double().expand(shape)


FAMILIES: Mapping[str, Callable[[tuple[int, ...], torch.Generator], torch.Tensor]] = {
    "integers": _integers,
    "normal": _normal,
    "positive": lambda shape, source: torch.rand(shape, generator=source, dtype=torch.float64),
    "peaked": lambda shape, source: 4 * _normal(shape, source),
    "very_peaked": lambda shape, source: 16 * _normal(shape, source),
    "small": lambda shape, source: 2.0**-7 * _normal(shape, source),
    "tiny": lambda shape, source: 2.0**-14 * _normal(shape, source),
    "cancelling": _cancelling,
    "heavy": _heavy,
    "one_hot": _one_hot,
    "constant": _constant,
}


def draw_values(family: str, shape: tuple[int, ...], source: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
    """Values of a family, rounded to the type under test: from here on they are exact."""
    return FAMILIES[family](shape, source).to(dtype)


# ------------------------------------------------------------------------------------------------ cases of a kind
class Cases:
    """How the examples of one kind are drawn. A kind's `spec/` file subclasses this.

    dims and flags list the options of every letter and option, simplest first; `adapt` makes letters agree with each other and
    with what an implementation claims (or rejects the combination); `build` makes the tensors.
    """

    kind: str
    dims: Mapping[str, tuple[int, ...]] = {}
    flags: Mapping[str, tuple[Any, ...]] = {}
    families: tuple[str, ...] = ("integers", "normal", "peaked", "positive", "small", "cancelling", "heavy", "one_hot")
    layouts: tuple[str, ...] = LAYOUTS

    def adapt(self, configuration: Configuration, claims: Declaration) -> Configuration | None:
        """The configuration made consistent and within the claims, or None when it cannot be."""
        return configuration

    def build(self, configuration: Configuration, dtype: torch.dtype) -> Example:
        """The example of a configuration, values rounded to `dtype`."""
        raise NotImplementedError(f"{type(self).__name__} must define build()")

    def example(self, configuration: Configuration, dtype: torch.dtype) -> Example:
        """The example, with the tensors that the configuration gives outright in place of the drawn ones."""
        made = self.build(configuration, dtype)
        given = {}
        for name, values in configuration.values.items():
            drawn = made.arguments.get(name)
            if isinstance(drawn, torch.Tensor):
                given[name] = torch.tensor(numbers(values), dtype=torch.float64).to(drawn.dtype).reshape(drawn.shape)
        return made.but(**given) if given else made

    def may_be_refused(self, configuration: Configuration) -> bool:
        """Whether right implementations are known that raise here: raising then takes the example out, counted; a result is
        judged like any other."""
        return False

    # -------------------------------------------------------------------------------------------- options
    def options(self, claims: Declaration, given: Mapping[str, Any]) -> dict[str, tuple[Any, ...]]:
        """What each letter, flag, `family` and `layout` may be, after claims, limits and the property's `given`."""
        found: dict[str, tuple[Any, ...]] = {
            letter: self._sizes(letter, sizes, claims) for letter, sizes in self.dims.items()}
        found |= {flag: self._choices(flag, choices, claims) for flag, choices in self.flags.items()}
        found |= {"family": self.families, "layout": self.layouts if claims.claims("strided") else ("contiguous",)}
        return {name: self._chosen(name, given[name], choices, claims) if name in given else choices
                for name, choices in found.items()}

    def _chosen(self, name: str, rule: Any, choices: tuple[Any, ...], claims: Declaration) -> tuple[Any, ...]:
        """`given` narrows the choices: a value fixes, a tuple lists, a predicate filters; a letter's name means equal."""
        if callable(rule):
            return tuple(choice for choice in choices if rule(choice)) or choices
        if isinstance(rule, tuple):  # whole, as far as the claims go: values beyond the kind's own too
            settled = name == "layout" or (name in KINDS[self.kind].options and name not in claims.keywords)
            return tuple(one for one in rule if (one in choices if settled else claims.allows(name, one))) or rule
        return choices if isinstance(rule, str) and rule in LETTERS else (rule,)

    def reaches(self, name: str, values: tuple[Any, ...], claims: Declaration) -> bool:
        """Whether the implementation can be asked for one of these values: what its signature lacks stands at one value."""
        lacking = name in self.flags and name in KINDS[self.kind].options and name not in claims.keywords
        return not lacking or any(value in self._choices(name, self.flags[name], claims) for value in values)

    def _sizes(self, letter: str, sizes: tuple[int, ...], claims: Declaration) -> tuple[int, ...]:
        within = tuple(size for size in sizes if claims.allows(letter, size))
        if within:
            return within
        return tuple(sorted(claims.limits[letter])[:3])

    def _choices(self, flag: str, choices: tuple[Any, ...], claims: Declaration) -> tuple[Any, ...]:
        kind = KINDS[self.kind]
        fixed = claims.conventions.get(flag) if flag in kind.options and flag not in claims.keywords else None
        if fixed is not None and fixed in choices:
            return (fixed,)
        if flag in kind.options and flag not in claims.keywords:
            return choices[:1]
        return self._admitted(flag, choices, claims)

    def _admitted(self, flag: str, choices: tuple[Any, ...], claims: Declaration) -> tuple[Any, ...]:
        """The choices within the limits; where a limit admits none of the numbers here, numbers of its own."""
        within = tuple(choice for choice in choices if claims.allows(flag, choice))
        limit = claims.limits.get(flag)
        if limit is None or any(_is_number(choice) for choice in within):
            return within or choices[:1]
        own = tuple(sorted(value for value in limit if _is_number(value))) if isinstance(limit, frozenset) else tuple(limit[:3])
        return (within + own[:3] if any(_is_number(choice) for choice in choices) else within) or choices[:1]

    # -------------------------------------------------------------------------------------------- drawing
    def make(self, picked: Mapping[str, Any], seed: int, claims: Declaration,
             given: Mapping[str, Any]) -> Configuration | None:
        """One consistent configuration out of one option per name, or None."""
        dims = {letter: picked[letter] for letter in self.dims}
        flags = {flag: picked[flag] for flag in self.flags}
        for name, rule in given.items():  # a letter named as another's value: the two are equal
            if isinstance(rule, str) and rule in dims and name in dims:
                dims[name] = dims[rule]
        drawn = Configuration(self.kind, dims, flags, picked["family"], picked["layout"], seed)
        adapted = self.adapt(drawn, claims)
        if adapted is None or not self._within(adapted, claims, given):
            return None
        return adapted

    def admits(self, configuration: Configuration, claims: Declaration, given: Mapping[str, Any]) -> bool:
        """Whether this configuration might have been drawn for a property with this `given`."""
        drawn = {"family": configuration.family, "layout": configuration.layout}
        return self._within(configuration, claims, given) and all(
            _fits(given[name], value, {}) for name, value in drawn.items() if name in given)

    def _within(self, configuration: Configuration, claims: Declaration, given: Mapping[str, Any]) -> bool:
        sizes = configuration.dims
        for name, value in (*sizes.items(), *configuration.flags.items()):
            if (name in sizes or _is_number(value)) and not claims.allows(name, value):
                return False
        for name, rule in given.items():
            if name not in sizes and name not in configuration.flags:
                continue
            value = sizes.get(name, configuration.flags.get(name))
            if not _fits(rule, value, sizes if name in sizes else {}):
                return False
        return True

    def boundary(self, claims: Declaration, given: Mapping[str, Any]) -> list[Configuration]:
        """The configurations that always run: a fixed covering walk in which every option of every name turns up."""
        found: dict[str, Configuration] = {}
        for made in self._walked(claims, given):
            found.setdefault(made.key(), made)
        return list(found.values())

    def _walked(self, claims: Declaration, given: Mapping[str, Any]) -> Iterator[Configuration]:
        """The walk's configurations, one after the other."""
        options = self.options(claims, given)
        rows = min(BOUNDARY, max(len(choices) for choices in options.values()))
        for row in range(rows):
            picked = {name: choices[_walk(name, len(choices), row)] for name, choices in options.items()}
            made = self.make(picked, row, claims, given)
            if made is not None:
                yield made

    def possible(self, claims: Declaration, given: Mapping[str, Any]) -> bool:
        """Whether an example within the claims can be found: one of the boundary, or of the combinations."""
        if next(self._walked(claims, given), None) is not None:
            return True
        picks = enumerate(self._combinations(claims, given))
        return any(self.make(picked, seed, claims, given) is not None for seed, picked in picks)

    def _combinations(self, claims: Declaration, given: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """All combinations of what `given` and limits narrow (many of them, where there are too many), each with the rest drawn."""
        options = {name: tuple(dict.fromkeys(choices)) for name, choices in self.options(claims, given).items()}
        narrowed = [name for name in options if name in given or name in claims.limits]
        count, source = math.prod(len(options[name]) for name in narrowed), random.Random(0)
        rows = range(count) if count <= MOST_TRIES else [source.randrange(count) for _ in range(MOST_TRIES)]
        for row in itertools.chain(*itertools.repeat(rows, -(-TRIES // len(rows)))):
            picked = {name: source.choice(choices) for name, choices in options.items()}
            for name in narrowed:
                row, place = divmod(row, len(options[name]))
                picked[name] = options[name][place]
            yield picked

    def strategy(self, claims: Declaration, given: Mapping[str, Any]) -> st.SearchStrategy[Configuration | None]:
        """hypothesis' view of the same options; None for combinations that cannot be.

        One draw of bytes, a byte for each name and two for the seed: a draw of its own for each name costs more than the
        example itself. Byte 0 is the simplest option.
        """
        options = self.options(claims, given)

        def decoded(drawn: bytes) -> Configuration | None:
            picked = {name: choices[byte % len(choices)] for (name, choices), byte in zip(options.items(), drawn, strict=False)}
            return self.make(picked, int.from_bytes(drawn[-2:], "big"), claims, given)

        size = len(options) + 2
        return st.binary(min_size=size, max_size=size).map(decoded)

    def simpler(self, configuration: Configuration, claims: Declaration,
                given: Mapping[str, Any]) -> Iterator[Configuration]:
        """Configurations one step simpler, in a fixed order: what the shrinker tries."""
        options = self.options(claims, given)
        current = {**configuration.dims, **configuration.flags, "family": configuration.family,
                   "layout": configuration.layout}
        for name, choices in options.items():
            ordered = sorted(choices) if name in self.dims and name not in given else list(choices)
            for choice in ordered[: ordered.index(current[name])] if current[name] in ordered else ordered[:1]:
                if name in self.dims and choice == 0:
                    continue
                made = self.make({**current, name: choice}, configuration.seed, claims, given)
                if made is not None and made.key() != configuration.key():
                    yield made
        for seed in range(min(3, configuration.seed)):
            yield configuration.but(seed=seed)


def _is_number(value: Any) -> bool:
    """A number as an argument takes it: what stands for an argument ("padding") and switches are none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def at_least(size: int) -> Callable[[int], bool]:
    """A rule for `given`: a letter of this size or more."""
    return lambda value: value >= size


def _fits(rule: Any, value: Any, sizes: Mapping[str, int]) -> bool:
    """Whether a value is as `given` has it. sizes: of the letters that it may have to be equal to."""
    if callable(rule):
        return bool(rule(value))
    if isinstance(rule, str) and (rule in sizes or rule in LETTERS):
        return bool(value == sizes.get(rule, value))
    return value in rule if isinstance(rule, tuple) else bool(value == rule)


def _walk(name: str, count: int, row: int) -> int:
    """Which option of a name a row of the boundary walk takes: the simplest first, then every option once a block, in an order
    of its own for each name and block, so that no two names move together."""
    if row == 0:
        return 0
    block, place = divmod(row - 1, count)
    order = sorted(range(count), key=lambda option: hashlib.sha256(f"{name}/{block}/{option}".encode()).digest())
    return order[place]
