"""The parts of a model in one pass: hooks write down what its modules and the functions of its source file receive and give.

Runs in the process that holds the model. `harness/recognition.py` says what each module is.
"""
from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from assay.recognition import RECOGNISED, Part, Seen, apply_rotary_pos_emb, eager_attention_forward, head, weights

FUNCTIONS: dict[str, Callable[..., Part]] = {  # of a model's source file, that its modules call
    "eager_attention_forward": eager_attention_forward, "apply_rotary_pos_emb": apply_rotary_pos_emb}
TOGETHER = 1 << 28  # bytes of parts that are handed over at a time


class Recorder:
    """Writes down the parts of one forward call, in the order in which they end; those from `skip` on keep their tensors."""

    def __init__(self, model: nn.Module, skip: int = 0) -> None:
        self.model, self.skip, self.held = model, skip, 0
        self.parts: list[Part] = []
        self.reached: set[str] = set()
        self._stack: list[tuple[nn.Module, Seen]] = []

    def before(self, name: str, module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Copies of what a module is given: it may change them."""
        tensors = [t.detach().clone() for t in (*args, *named.values()) if isinstance(t, Tensor)]
        others = {str(place): value for place, value in enumerate(args) if not isinstance(value, Tensor)} | {
            key: value for key, value in named.items() if not isinstance(value, Tensor)}
        self._stack.append((module, Seen(name, module, tensors, others)))

    def after(self, is_head: bool, module: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        """What the module is, now that it has answered; what it was given was written down before."""
        while self._stack and self._stack[-1][0] is not module:
            self._stack.pop()
        if not self._stack:
            return
        _, seen = self._stack.pop()
        seen.out = out
        self.reached.add(seen.name)
        found = head(seen) if is_head else next((made for make in RECOGNISED if (made := make(seen)) is not None), None)
        if isinstance(found, str):
            found = Part(seen.name, type(module).__name__, reason=found)
        if found is not None:
            self.add(found)

    def add(self, part: Part) -> None:
        """Keep a part, its tensors as they are now, while there is room."""
        room = self.skip <= len(self.parts) and self.held + part.size <= max(TOGETHER, part.size if not self.held else 0)
        if room:
            self.held += part.size
            part.tensors = {name: tensor.detach().clone() for name, tensor in part.tensors.items()}
        elif len(self.parts) >= self.skip and part.kind:
            self.held = TOGETHER + 1  # those after it wait too: parts are handed over in order
        part.tensors = part.tensors if room else {}
        part.options = {**part.options, "kept": room}
        self.parts.append(part)

    def unknown(self) -> Iterator[Part]:
        """Modules with weights of their own, and functions, that no part covers."""
        covered = {part.name for part in self.parts}
        for name, module in self.model.named_modules():
            owned = list(module.parameters(recurse=False))
            inside = any(name == one or name.startswith(f"{one}.") for one in covered)
            if not owned or inside:
                continue
            why = "not reached by this call" if name not in self.reached else "torch's own linear map" \
                if weights(module) is not None else "no rule knows its structure"
            yield Part(name, type(module).__name__, reason=why)


def record(model: nn.Module, call: Callable[[], Any], skip: int = 0) -> tuple[Any, ...]:
    """Run the call and give its parts: a list as JSON (recognised or not), then the tensors of those from `skip` on."""
    recorder = Recorder(model, skip)
    outer = getattr(model, "get_output_embeddings", lambda: None)()
    with ExitStack() as stack, torch.no_grad():
        for name, module in model.named_modules():
            hooks = (module.register_forward_pre_hook(functools.partial(recorder.before, name), with_kwargs=True),
                     module.register_forward_hook(functools.partial(recorder.after, module is outer)))
            for hook in hooks:
                stack.callback(hook.remove)
        stack.enter_context(_functions(model, recorder))
        call()
    found = [*recorder.parts, *recorder.unknown()]
    return ([part.told() for part in found], *(tensor for part in found for tensor in part.tensors.values()))


@contextmanager
def _functions(model: nn.Module, recorder: Recorder) -> Iterator[None]:
    """The functions of the models' source files, replaced while the call runs by ones that write down what they are given."""
    sources = {type(module).__module__: sys.modules[type(module).__module__] for module in model.modules()
               if type(module).__module__ in sys.modules}
    replaced = [(source, name, vars(source)[name]) for source in sources.values() for name in FUNCTIONS if name in vars(source)]
    for source, name, plain in replaced:
        setattr(source, name, _written(recorder, name, plain))
    try:
        yield
    finally:
        for source, name, plain in replaced:
            setattr(source, name, plain)


def _written(recorder: Recorder, name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself, and a part for every call of it."""
    describe = FUNCTIONS[name]

    @functools.wraps(plain)
    def called(*args: Any, **named: Any) -> Any:
        copies = [a.detach().clone() if isinstance(a, Tensor) else a for a in args]
        others = {key: a.detach().clone() if isinstance(a, Tensor) else a for key, a in named.items()}
        out = plain(*args, **named)
        where = recorder._stack[-1][1].name if recorder._stack else ""
        recorder.add(describe(f"{where}.{name}", tuple(copies), others, out))
        return out

    return called
