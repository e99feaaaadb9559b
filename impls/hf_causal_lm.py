"""Whole language models of Hugging Face, as black boxes: tiny ones of every model type, and local checkpoints.

`hf:llama` is that type with a tiny configuration and weights from the seed; `hf:./folder` a checkpoint (config.json and
safetensors). Nothing is downloaded, no pickle is read, no code that lies beside a checkpoint is run.
"""
from __future__ import annotations

import copy
import difflib
import inspect
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from assay import parts
from assay.contract.declaration import Declaration, declare
from assay.contract.kinds import quoted
from assay.errors import NotExercisedError, UsageError
from assay.impls import _hf_families, _hf_inside, _hf_tiny
from assay.impls._hf_inside import Plug
from assay.impls._modules import installed, late

REQUIRES = ("transformers",)
os.environ.setdefault("HF_HUB_OFFLINE", "1")
VERSION, URL = installed("transformers"), "https://github.com/huggingface/transformers"
KIND, IMAGE = "causal_lm", "image"
CACHES = ("cache", "past_key_values", "state", "mems", "past_buckets_states")  # what `forward` calls it, by version and type
OFFERS = frozenset({"loss", "saving", "kernels", "parts"})


# ------------------------------------------------------------------------------------------------ names
def model_types() -> dict[str, str]:
    """Every model type that has a causal language model -> the name of its class."""
    return dict(late("transformers.models.auto.modeling_auto").MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def resolve(name: str, kind: str | None = None) -> list[Declaration]:
    """What `hf:NAME` or `hf:FOLDER` declares; for the loader."""
    found = _resolved(name)
    if kind not in (None, found.kind):
        raise UsageError(f"kind={kind} must be {found.kind} for the target {found.origin}; leave --kind out")
    return [found]


def _resolved(name: str) -> Declaration:
    name, separator, attention = name.partition("<")
    plugged = _hf_inside.plug(attention) if separator else None
    talk = late("transformers.utils.logging")
    talk.set_verbosity_error()
    talk.disable_progress_bar()
    task, colon, model_type = name.partition(":")
    if colon and plugged is None and task in (tasks := late("assay.impls._hf_tasks")).TASKS:
        return tasks.of_task(task, model_type)
    if colon and plugged is None and task == IMAGE:
        declared: Declaration = late("assay.impls._hf_images").of_type(model_type)
        return declared
    if "/" in name or os.path.isdir(name):
        return of_folder(name, plugged)
    return of_type(name, plugged)


def of_type(model_type: str, plugged: Plug | None = None) -> Declaration:
    """The declaration of a model type, with tiny models of it; plugged: the attention inside them."""
    known = model_types()
    if model_type not in known:
        near = [f"hf:{one}" for one in difflib.get_close_matches(model_type[:100], known, 3)]
        hint = f"did you mean {' or '.join(near)}?" if near else "a folder is written hf:./folder;"
        raise UsageError(f"target={quoted('hf:' + model_type)} is not one of the {len(known)} model types of transformers "
                         f"{VERSION} that have a causal language model; {hint} `assay audit transformers` tries them all")
    refused = [family.evidence for family in _hf_families.of(model_type) if family.refused]
    if refused:
        raise UsageError(f"target=hf:{model_type} is no causal language model by itself: {refused[0]}; give another")
    make = model_class(known[model_type])

    def factory(*, seed: int) -> Adapter:
        return Adapter(tiny(model_type, make, seed, plugged.name if plugged else "eager"), model_type, plugged)

    return _declared(f"hf:{model_type}", model_type, make, factory, plugged)


def of_folder(text: str, plugged: Plug | None = None) -> Declaration:
    """The declaration of a local checkpoint."""
    folder, shown = Path(text), quoted("hf:" + text)
    if not (folder / "config.json").is_file():
        raise UsageError(f"target={shown} must be a folder with a config.json and safetensors weights; check the path")
    if not list(folder.glob("*.safetensors")):
        raise UsageError(f"target={shown} has no *.safetensors; convert its weights with save_pretrained, pickles are not read")
    try:
        settings = late("transformers").AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (ValueError, KeyError, OSError) as error:
        raise UsageError(f"target={shown} has a config.json that transformers {VERSION} does not take: {_line(error)}") from None
    known, images = model_types(), late("assay.impls._hf_images")
    if plugged is None and settings.model_type in images.model_types() and settings.model_type not in known:
        declared: Declaration = images.of_folder(folder, settings.model_type)
        return declared
    if settings.model_type not in known:
        raise UsageError(f"target={shown} is of model type {quoted(settings.model_type)}, which has neither a causal language "
                         "model nor an image classifier; give a checkpoint of one that has")
    make = model_class(known[settings.model_type])

    def factory() -> Adapter:
        return Adapter(loaded(make, folder, plugged.name if plugged else "eager"), settings.model_type, plugged)

    return _declared(f"hf:{folder.resolve().name}", settings.model_type, make, factory, plugged)


def loaded(make: Any, folder: Path | str, kernel: str = "eager") -> nn.Module:
    """A model of the class from a local folder of safetensors."""
    model: nn.Module = make.from_pretrained(folder, use_safetensors=True, local_files_only=True, attn_implementation=kernel,
                                            dtype=torch.float32)
    return model.eval()


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def model_class(name: str) -> Any:
    """A class of the library by name; imported now, not in a call."""
    try:
        return getattr(late("transformers"), name)
    except (ImportError, RuntimeError) as error:
        raise UsageError(f"class={name} cannot be imported: {_line(error)}") from None


def tiny(model_type: str, make: Any, seed: int, kernel: str = "eager") -> nn.Module:
    """A tiny model of the type, its weights from the seed."""
    settings = _hf_tiny.of(model_type, make.config_class)
    torch.manual_seed(seed)
    model: nn.Module = make._from_config(settings, attn_implementation=kernel).eval()
    _hf_tiny.drawn(model, seed)
    return model


def _declared(name: str, model_type: str, make: Any, factory: Callable[..., Adapter], plugged: Plug | None) -> Declaration:
    """All that is claimed: everything, less what the table of families withholds and the signature does not take."""
    families = _hf_families.of(model_type)
    takes = set(inspect.signature(make.forward).parameters)
    lacks = {feature for family in families for feature in family.lacks}
    if not takes.intersection(CACHES):
        lacks |= {"cache"}
    if "attention_mask" not in takes:
        lacks |= {"mask"}
    conventions: dict[str, Any] = {"positions": "from_mask"} if "position_ids" in takes else {}
    for family in families:
        conventions |= dict(family.conventions)
    if conventions.get("positions") != "from_mask":
        lacks |= {"left_padding"}
    withheld = {offer for family in families for offer in family.withheld}
    origin = name
    if plugged is not None:
        seed = {"seed": 0} if "seed" in inspect.signature(factory).parameters else {}
        _hf_inside.in_force(plugged, lambda: factory(**seed).model, name)
        name, origin = f"{name} with {plugged.declaration.name}", f"{name}<{plugged.target}"
        conventions |= {trait: value for trait, value in plugged.traits.items() if trait not in conventions}
        lacks |= {feature for feature in ("mask", "gradients") if not plugged.declaration.claims(feature)}
    return declare(KIND, factory, name=name, dtypes=("float32",), devices=("cpu",), lacks=lacks, offers=OFFERS - withheld,
                   conventions=conventions, version=VERSION, url=URL, origin=origin)


# ------------------------------------------------------------------------------------------------ one model
@dataclass
class Held:
    """A cache of the library's, and how many tokens went into it."""

    cache: Any
    length: int


class Adapter:
    """A model of the library under the contract's call. Positions are left to the model without a mask; with one they count the
    real tokens, as the library's own `generate` gives them."""

    def __init__(self, model: nn.Module, model_type: str, plugged: Plug | None = None) -> None:
        self.model, self.model_type, self.plugged = model, model_type, plugged
        self.takes = frozenset(inspect.signature(model.forward).parameters)
        self.field = next((name for name in CACHES if name in self.takes), "")
        settings: Any = model.config
        self.vocab_size = int(settings.get_text_config().vocab_size)
        families = self._families(model_type)
        self.idle = tuple(part for family in families for part in family.idle)
        self.first = int(settings.pad_token_id or 0) + 1 if any(family.offset for family in families) else 0
        self.unmasked = any(family.unmasked for family in families)
        self.masked = any(family.masked for family in families)
        bounded = next((family.bounded for family in families if family.bounded), "")
        self.max_length: int | None = getattr(settings, bounded) if bounded else None
        self._others: dict[str, nn.Module] = {}

    def _families(self, model_type: str) -> tuple[_hf_families.Family, ...]:
        return _hf_families.of(model_type)

    def parameters(self) -> Iterator[Tensor]:
        """The model's own that a logit depends on."""
        return (parameter for name, parameter in self.model.named_parameters() if not any(part in name for part in self.idle))

    def __call__(self, ids: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """One pass without a cache."""
        out: Tensor = self._run(self.model, ids, mask, 0, {}).logits
        return out

    def step(self, ids: Tensor, cache: Held | None, *, mask: Tensor | None = None) -> tuple[Tensor, Held]:
        """New tokens after those in the cache; the library makes the first one."""
        past, options = 0, {"use_mems" if self.field == "mems" else "use_cache": True}
        if cache is not None:
            past, options[self.field] = cache.length, cache.cache
        found = self._run(self.model, ids, mask, past, options)
        held = getattr(found, self.field, None)
        if held is None:
            raise NotExercisedError(f"no cache came back in `{self.field}` although one was asked for")
        return found.logits, Held(held, past + ids.shape[1])

    def _run(self, model: nn.Module, ids: Tensor, mask: Tensor | None, past: int, options: dict[str, Any]) -> Any:
        given = {"use_cache": False, "use_mems": False, "return_dict": True, **self._given(ids, mask, past), **options}
        always, calls = ("input_ids", "return_dict"), self.plugged.calls if self.plugged else 0
        out = model(**{name: value for name, value in given.items() if name in self.takes or name in always})
        if self.plugged is not None and model is self.model and self.plugged.calls == calls:
            raise NotExercisedError(f"{self.plugged.declaration.name} was not called")
        return out

    def _given(self, ids: Tensor, mask: Tensor | None, past: int) -> dict[str, Any]:
        """Ids, mask and positions under the library's names."""
        given: dict[str, Any] = {"input_ids": ids}
        if mask is None and self.masked:
            mask = torch.ones(ids.shape[0], past + ids.shape[1], dtype=torch.bool)
        if mask is not None and not (past and self.unmasked):
            given["attention_mask"] = mask.long()
            given["position_ids"] = (mask.long().cumsum(-1) - 1).clamp(min=0)[:, past : past + ids.shape[1]] + self.first
        elif self.first:
            given["position_ids"] = torch.arange(past, past + ids.shape[1]).expand(ids.shape) + self.first
        return given

    # -------------------------------------------------------------------------------------------- what a library has besides
    def loss(self, ids: Tensor, labels: Tensor) -> Tensor:
        """The loss that the model computes when it is given labels."""
        out: Tensor = self._run(self.model, ids, None, 0, {"labels": labels}).loss
        return out

    def reloaded(self, ids: Tensor) -> Tensor:
        """Logits of the model after it was saved as safetensors and loaded again."""
        if "reloaded" not in self._others:
            with tempfile.TemporaryDirectory() as folder:
                self.model.save_pretrained(folder)
                self._others["reloaded"] = loaded(type(self.model), folder)
        out: Tensor = self._run(self._others["reloaded"], ids, None, 0, {}).logits
        return out

    def through(self, ids: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Logits with another attention of the library's in force: its formula instead of the user's own, else torch's kernel."""
        kernel = "eager" if self.plugged else "sdpa"
        if kernel not in self._others:
            self._others[kernel] = self._with(kernel)
        out: Tensor = self._run(self._others[kernel], ids, mask, 0, {}).logits
        return out

    def parts(self, ids: Tensor, *, skip: int = 0) -> tuple[Any, ...]:
        """What the modules of one pass received and gave; see `harness/parts.py`."""
        return parts.record(self.model, lambda: self(ids), skip)

    def _with(self, kernel: str) -> nn.Module:
        settings = copy.deepcopy(self.model.config)
        try:
            made = type(self.model)._from_config(settings, attn_implementation=kernel).eval()
        except (ValueError, ImportError) as error:
            raise NotImplementedError(f"attention {kernel}: {_line(error)}") from None
        made.load_state_dict(self.model.state_dict())
        inside = {getattr(module.config, "_attn_implementation", kernel) for module in made.modules() if hasattr(module, "config")}
        if inside != {kernel}:
            raise NotImplementedError(f"attention {kernel} was asked for, {', '.join(sorted(map(str, inside)))} is in force")
        return made


def listed(only: Sequence[str] = ()) -> list[str]:
    """Targets of all causal model types, or of those that match one of the patterns: `masked:*`, `seq2seq:*`, `image:*` too."""
    names = sorted(model_types())
    if any(":" in pattern for pattern in only):
        tasks = late("assay.impls._hf_tasks")
        names += [f"{task}:{name}" for task in tasks.TASKS for name in sorted(tasks.model_types(task))]
        names += [f"{IMAGE}:{name}" for name in sorted(late("assay.impls._hf_images").model_types())]
    return [f"hf:{name}" for name in names if not only or any(fnmatchcase(name, pattern) for pattern in only)]


def notes() -> list[tuple[str, str, str]]:
    """The table of families for a report: types, what is not claimed or bounded, evidence."""
    return [(", ".join(family.types), family.told(), family.evidence) for family in _hf_families.FAMILIES]
