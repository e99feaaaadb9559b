"""Other rotary embeddings of Hugging Face: GPT-NeoX turns the first channels, GPT-J and Cohere pair neighbours."""
from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

import assay
from assay.impls import hf_llama
from assay.impls._modules import installed, late

REQUIRES = ("transformers",)
VERSION, URL = installed("transformers"), "https://github.com/huggingface/transformers"
IN_INPUT = {"angles": "float32", "tables": "input"}
ROWS = 1 << 14  # GPT-J looks positions up in a table; longer ones are refused rather than a table of gigabytes made


def modelling(name: str) -> ModuleType:
    """The module of one model type."""
    return late(f"transformers.models.{name}.modeling_{name}")


@assay.implements("rotary", name="hf-gpt-neox-rotary", conventions={"pairing": "half"}, arithmetic=IN_INPUT,
                  version=VERSION, url=URL)
def gpt_neox(x: Tensor, positions: Tensor, *, base: float = 10000.0, rotary_dim: int | None = None) -> Tensor:
    """GPT-NeoX: the first `rotary_dim` channels turn, the others pass."""
    width = x.shape[-1] if rotary_dim is None else rotary_dim
    cos, sin = hf_llama.tables(x, positions, width, hf_llama.rope_parameters(base, None))
    out: Tensor = modelling("gpt_neox").apply_rotary_pos_emb(x, x, cos, sin)[0]
    return out


@assay.implements("rotary", name="hf-cohere-rotary", arithmetic=IN_INPUT, version=VERSION, url=URL)
def cohere(x: Tensor, positions: Tensor, *, base: float = 10000.0) -> Tensor:
    """Cohere: neighbouring channels turn together."""
    library, settings = modelling("cohere"), hf_llama.settings(x.shape[-1], hf_llama.rope_parameters(base, None))
    embedding: Any = library.CohereRotaryEmbedding(settings).to(x.device)
    out: Tensor = library.apply_rotary_pos_emb(x, x, *embedding(x, torch.atleast_2d(positions)))[0]
    return out


@assay.implements("rotary", name="hf-gptj-rotary", dtypes=("float32",), devices=("cpu",), lacks={"negative_positions"},
                  version=VERSION, url=URL)
def gptj(x: Tensor, positions: Tensor) -> Tensor:
    """GPT-J: a table of sines and cosines by position, base 10000, neighbouring channels."""
    last = int(positions.max()) if positions.numel() else 0
    if last >= ROWS:
        raise NotImplementedError(f"positions={last} must be below {ROWS}, the rows of the table")
    table = modelling("gptj").create_sinusoidal_positions(last + 1, x.shape[-1])
    sin, cos = table[torch.atleast_2d(positions)].chunk(2, dim=-1)
    out: Tensor = modelling("gptj").apply_rotary_pos_emb(x.transpose(1, 2), sin, cos)
    return out.transpose(1, 2)
