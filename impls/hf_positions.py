"""Hugging Face's position tables: ALiBi of BLOOM and MPT; sinusoids of DistilBERT, GPT-J, CTRL and Marian."""
from __future__ import annotations

import os

import torch
from torch import Tensor

import assay
from assay.impls._modules import installed, late

REQUIRES = ("transformers",)
os.environ.setdefault("HF_HUB_OFFLINE", "1")
VERSION, URL = installed("transformers"), "https://github.com/huggingface/transformers"
ROWS, SLOW_ROWS = 1 << 14, 1 << 11  # longer tables are refused; some are built entry by entry in Python


def rows(positions: Tensor, most: int) -> int:
    """How long the table must be."""
    last = int(positions.max()) if positions.numel() else 0
    first = int(positions.min()) if positions.numel() else 0
    if last >= most or first < 0:
        raise NotImplementedError(f"positions={first} … {last} must be rows of a table, 0 … {most - 1}")
    return last + 1


def interleaved(table: Tensor) -> Tensor:
    """[sines | cosines] to sine, cosine, sine, cosine."""
    return torch.stack(table.chunk(2, dim=-1), dim=-1).flatten(-2)


def by_distance(line: Tensor, q_len: int, k_len: int) -> Tensor:
    """The builders give slope · position, (H, Tk): relative to every query that is -slope · |i - j|, (H, Tq, Tk)."""
    query = torch.arange(q_len) + (k_len - q_len)
    return -(line[:, None, :] - line[:, query][:, :, None]).abs()


def refuse_more_queries(q_len: int, k_len: int) -> None:
    """The line holds the positions of the keys; a query before the first has none."""
    if q_len > k_len:
        raise NotImplementedError(f"q_len={q_len} must be at most k_len={k_len}")


@assay.implements("alibi", name="hf-bloom-alibi", dtypes=("float32",), grad=False, version=VERSION, url=URL)
def bloom(num_heads: int, q_len: int, k_len: int) -> Tensor:
    """BLOOM's `build_alibi_tensor`."""
    refuse_more_queries(q_len, k_len)
    build = late("transformers.models.bloom.modeling_bloom").build_alibi_tensor
    line: Tensor = build(torch.ones(1, k_len, dtype=torch.long), num_heads, torch.float32)[:, 0]
    return by_distance(line, q_len, k_len)


@assay.implements("alibi", name="hf-mpt-alibi", dtypes=("float32",), grad=False, version=VERSION, url=URL)
def mpt(num_heads: int, q_len: int, k_len: int) -> Tensor:
    """MPT's `build_mpt_alibi_tensor`."""
    refuse_more_queries(q_len, k_len)
    line: Tensor = late("transformers.models.mpt.modeling_mpt").build_mpt_alibi_tensor(num_heads, k_len)[:, 0]
    return by_distance(line, q_len, k_len)


@assay.implements("sinusoidal", name="hf-distilbert-sinusoidal", dtypes=("float32",), version=VERSION, url=URL)
def distilbert(positions: Tensor, dim: int) -> Tensor:
    """DistilBERT's `create_sinusoidal_embeddings`, which fills a parameter."""
    refuse_odd(dim)
    table = torch.empty(rows(positions, SLOW_ROWS), dim)
    module = late("transformers.models.distilbert.modeling_distilbert")
    module.create_sinusoidal_embeddings(n_pos=table.shape[0], dim=dim, out=table)
    return table.detach()[positions]


@assay.implements("sinusoidal", name="hf-gptj-sinusoidal", dtypes=("float32",), version=VERSION, url=URL)
def gptj(positions: Tensor, dim: int) -> Tensor:
    """GPT-J's `create_sinusoidal_positions`."""
    refuse_odd(dim)
    make = late("transformers.models.gptj.modeling_gptj").create_sinusoidal_positions
    return interleaved(make(rows(positions, ROWS), dim))[positions]


@assay.implements("sinusoidal", name="hf-ctrl-sinusoidal", dtypes=("float32",), version=VERSION, url=URL)
def ctrl(positions: Tensor, dim: int) -> Tensor:
    """CTRL's `positional_encoding`."""
    refuse_odd(dim)
    make = late("transformers.models.ctrl.modeling_ctrl").positional_encoding
    return interleaved(make(rows(positions, ROWS), dim, torch.float32))[positions]


@assay.implements("sinusoidal", name="hf-marian-sinusoidal", dtypes=("float32",), version=VERSION, url=URL)
def marian(positions: Tensor, dim: int) -> Tensor:
    """Marian's `create_weight`, sines first and cosines behind."""
    refuse_odd(dim)
    module = late("transformers.models.marian.modeling_marian").MarianSinusoidalPositionalEmbedding
    return interleaved(module(rows(positions, SLOW_ROWS), dim).create_weight())[positions]


def refuse_odd(dim: int) -> None:
    """The kind refuses an odd width; the libraries would make some table or other."""
    if dim % 2:
        raise ValueError(f"dim={dim} must be even; sines and cosines come in pairs")
