"""The part of a standalone script that is the same in each: torch alone, no assay. `run/script.py` writes it out whole."""
from __future__ import annotations

import base64
import copy
import importlib
import importlib.util
import os
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch


def tensor(dtype: str, shape: list[int], values: Any, strides: list[int] | None = None, offset: int = 0,
           grad: bool = False, device: str = "cpu") -> torch.Tensor:
    """Values (a flat list, or the raw bytes in base64) as a tensor, in memory with these strides and this offset."""
    kind = getattr(torch, dtype)
    if isinstance(values, str):
        raw = bytearray(base64.b64decode(values))
        made = (torch.frombuffer(raw, dtype=kind) if raw else torch.empty(0, dtype=kind)).reshape(shape)
    else:
        made = torch.tensor(values, dtype=kind).reshape(shape)
    if strides is not None and made.numel():
        cells = [1 if stride == 0 else size for size, stride in zip(shape, strides, strict=True)]
        extent = 1 + sum((size - 1) * stride for size, stride in zip(cells, strides, strict=True))
        memory = torch.zeros(offset + extent, dtype=kind)
        memory.as_strided(cells, strides, offset).copy_(made[tuple(slice(0, size) for size in cells)])
        made = torch.empty(0, dtype=kind).set_(memory.untyped_storage(), offset, shape, strides)
    made = made.to(device)
    return made.requires_grad_() if grad else made


def load(origin: str, kind: str, name: str) -> Callable[..., Any]:
    """The implementation in a file or module; ends with code 2 where it is not to be had, which says nothing of the failure."""
    try:
        return _found(origin, kind, name)
    except Exception as error:  # noqa: BLE001 - foreign code: whatever its import raises
        print(f"{origin} cannot be loaded from {os.getcwd()}: {type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(2)


def _found(origin: str, kind: str, name: str) -> Callable[..., Any]:
    """Where the file or module imports assay, it gets a stand-in that only takes declarations."""
    if origin == "built in":
        return importlib.import_module("assay").get(kind, name)  # type: ignore[no-any-return]
    declared: dict[tuple[str, str], Any] = {}

    def implements(of: str, **options: Any) -> Callable[[Any], Any]:
        def register(function: Any) -> Any:
            declared[of, str(options.get("name") or getattr(function, "__name__", type(function).__name__))] = function
            return function
        return register

    stand_in = types.ModuleType("assay")
    stand_in.implements = implements  # type: ignore[attr-defined]
    sys.modules["assay"] = stand_in
    place, colon, tail = origin.rpartition(":")
    if not colon or os.path.exists(origin):
        place, tail = origin, ""
    module = _imported(place)
    if (kind, name) in declared:
        return declared[kind, name]  # type: ignore[no-any-return]
    found: Any = module
    for part in (tail or name).split("."):
        found = getattr(found, part)
    return found  # type: ignore[no-any-return]


def _imported(place: str) -> types.ModuleType:
    """A file by its path, or a module by its name."""
    if not place.endswith(".py"):
        sys.path.insert(0, os.getcwd())
        return importlib.import_module(place)
    sys.path.insert(0, os.path.dirname(os.path.abspath(place)))
    spec = importlib.util.spec_from_file_location("implementation_under_test", place)
    if spec is None or spec.loader is None:
        raise ImportError(f"{place} is no Python file")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(implementation: Callable[..., Any], call: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Results of one call, outputs by number and gradients by the path of their argument; and the inputs that it changed."""
    keywords = call["keywords"]
    torch.utils.deterministic.fill_uninitialized_memory = call["fill_empty"]
    torch.use_deterministic_algorithms(call["fill_empty"], warn_only=True)
    tree = {**call["names"], **keywords}
    before = {path: leaf.detach().clone() for path, leaf in leaves(tree, "")}
    with torch.set_grad_enabled(call["grad_mode"]):
        out = implementation(*call["names"].values(), **keywords)
    listed = list(out.values()) if isinstance(out, dict) else list(out) if isinstance(out, (tuple, list)) else [out]
    results = {str(place): value.detach() for place, value in enumerate(listed) if isinstance(value, torch.Tensor)}
    asked = {path: leaf for path, leaf in leaves(tree, "") if leaf.requires_grad}
    floating = [value for value in listed if isinstance(value, torch.Tensor) and value.is_floating_point()]
    pairs = [(value, up) for value, up in zip(floating, call["upstream"], strict=False) if value.requires_grad]
    if asked and call["upstream"]:
        values = list(asked.values())
        found = torch.autograd.grad([value for value, _ in pairs], values, [up for _, up in pairs], allow_unused=True) \
            if pairs else [None] * len(values)
        results |= {path: torch.zeros_like(leaf) if gradient is None else gradient.detach()
                    for (path, leaf), gradient in zip(asked.items(), found, strict=True)}
    changed = [path for path, leaf in leaves(tree, "") if not same(leaf.detach(), before[path])]
    return results, changed


def leaves(value: Any, path: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor of an argument tree with its path."""
    if isinstance(value, torch.Tensor):
        yield path, value
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    for name, item in items:
        yield from leaves(item, f"{path}/{name}" if path else str(name))


def same(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal values in the same type, NaN equal to itself."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(((one == other) | ((one != one) & (other != other))).all())


def compared(name: str, got: torch.Tensor, expected: torch.Tensor, bound: torch.Tensor) -> bool:
    """Print a result beside what was expected; whether it lies outside the bound anywhere."""
    got = got.detach().to("cpu", torch.float64)
    what = f"result {name}" if name.isdecimal() else f"gradient of {name}"
    if got.shape != expected.shape:
        print(f"{what}: got shape {tuple(got.shape)}, expected {tuple(expected.shape)}")
        return True
    wrong = ~((got == expected) | (got.isnan() & expected.isnan()) | ((got - expected).abs() <= bound))
    if got.numel() <= 64:
        print(f"{what}:\n  got      {got.tolist()}\n  expected {expected.tolist()}\n  bound    {bound.tolist()}")
    for index in wrong.nonzero().tolist()[:5]:
        place = tuple(index)
        print(f"  wrong at {index}: got {float(got[place]):.9g}, expected {float(expected[place]):.9g} ± {float(bound[place]):.3g}")
    print(f"  {int(wrong.sum())} of {wrong.numel()} elements wrong")
    return bool(wrong.any())


def main(implementation: Callable[..., Any], calls: list[dict[str, Any]], relation: bool) -> int:
    """Run the calls; 1 when one is wrong, raises, or changes its input, or when a broken relation shows the same results again."""
    wrong, again = False, True
    copies = {"": implementation}  # by what the call says of its copy
    for number, call in enumerate(calls, 1):
        print(f"call {number} of {len(calls)}")
        try:
            if call["copy"] not in copies:
                copies[call["copy"]] = copy.deepcopy(implementation)
            results, changed = run(copies[call["copy"]], call)
        except Exception as error:  # noqa: BLE001 - foreign code: whatever it raises is what is shown
            print(f"  raised {type(error).__name__}: {error}")
            return 1
        for name, (expected, bound) in call["right"].items():
            if name not in results:
                print(f"result {name} is missing")
            wrong |= name not in results or compared(name, results[name], expected, bound)
        for path in changed:
            print(f"  it changed its argument {path}")
        wrong |= bool(changed)
        again &= all(name in results and same(results[name].cpu(), got) for name, got in call["got"].items())
    if relation and not wrong:
        print("the values of each call are right by themselves; together the calls "
              f"{'give the same results' if again else 'no longer give the results'} with which the property failed")
        return int(again)
    print("reproduced" if wrong else "not reproduced")
    return int(wrong)
