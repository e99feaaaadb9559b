"""torch.nn.functional for the smaller kinds, called as it is."""
from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import assay
from assay.impls._modules import bare, run

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu,
}


@assay.implements("feed_forward", name="torch-linear", version=torch.__version__)
def feed_forward(
    x: Tensor, w_in: Tensor, b_in: Tensor | None, w_out: Tensor, b_out: Tensor | None, *, activation: str
) -> Tensor:
    """Two calls of F.linear around the activation."""
    return F.linear(ACTIVATIONS[activation](F.linear(x, w_in, b_in)), w_out, b_out)


@assay.implements("gated_feed_forward", name="torch-glu", version=torch.__version__)
def gated_feed_forward(x: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor, *, activation: str = "silu") -> Tensor:
    """Three calls of F.linear."""
    return F.linear(ACTIVATIONS[activation](F.linear(x, w_gate)) * F.linear(x, w_up), w_down)


@assay.implements("gated_feed_forward", name="torch-glu-fused", conventions={"activation": "silu"},
                  version=torch.__version__)
def gated_by_one_product(x: Tensor, w_gate: Tensor, w_up: Tensor, w_down: Tensor) -> Tensor:
    """Gate and up in one product, cut in two afterwards."""
    gate, up = F.linear(x, torch.cat([w_gate, w_up])).chunk(2, dim=-1)
    return F.linear(F.silu(gate) * up, w_down)


@assay.implements("dropout", name="torch-dropout", version=torch.__version__)
def dropout(x: Tensor, *, p: float, training: bool, seed: int) -> Tensor:
    """The function, which draws from the global generator: seeded for the call, and put back."""
    with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
        torch.manual_seed(seed)
        return F.dropout(x, p, training)


@assay.implements("dropout", name="torch-nn-dropout", version=torch.__version__)
def dropout_module(x: Tensor, *, p: float, training: bool, seed: int) -> Tensor:
    """The module."""
    with torch.random.fork_rng(devices=[x.device] if x.is_cuda else []):
        torch.manual_seed(seed)
        out: Tensor = nn.Dropout(p).train(training)(x)
        return out


@assay.implements("embedding", name="torch-embedding", version=torch.__version__)
def embedding(ids: Tensor, weight: Tensor) -> Tensor:
    """The function."""
    return F.embedding(ids, weight)


@assay.implements("embedding", name="torch-nn-embedding", version=torch.__version__)
def embedding_module(ids: Tensor, weight: Tensor) -> Tensor:
    """The module."""
    out: Tensor = run(bare(nn.Embedding, *weight.shape), {"weight": weight}, ids)
    return out


@assay.implements("unembedding", name="torch-norm-linear", version=torch.__version__)
def unembedding(
    h: Tensor, w_norm: Tensor, w_out: Tensor, *, eps: float, b_norm: Tensor | None = None, norm: str | None = "rms"
) -> Tensor:
    """The fused norm and F.linear."""
    if norm == "rms":
        h = F.rms_norm(h, (h.shape[-1],), w_norm, eps)
    elif norm == "layer":
        h = F.layer_norm(h, (h.shape[-1],), w_norm, b_norm, eps)
    return F.linear(h, w_out)


@assay.implements("router", name="torch-softmax-topk", version=torch.__version__)
def router(x: Tensor, w_router: Tensor, *, top_k: int) -> tuple[Tensor, Tensor]:
    """Softmax over all experts, the largest of them, made to sum to 1."""
    weights, indices = torch.topk(F.softmax(F.linear(x, w_router), dim=-1), top_k, dim=-1)
    return weights / weights.sum(dim=-1, keepdim=True), indices


@assay.implements("router", name="torch-topk-softmax", version=torch.__version__)
def router_reordered(x: Tensor, w_router: Tensor, *, top_k: int) -> tuple[Tensor, Tensor]:
    """The largest scores, and softmax over those."""
    scores, indices = torch.topk(F.linear(x, w_router), top_k, dim=-1)
    return F.softmax(scores, dim=-1), indices


@assay.implements("router", name="torch-softmax-topk-raw", conventions={"router": "topk_of_softmax"},
                  version=torch.__version__)
def router_not_renormalised(x: Tensor, w_router: Tensor, *, top_k: int) -> tuple[Tensor, Tensor]:
    """Softmax over all experts, the largest of them as they are."""
    weights, indices = torch.topk(F.softmax(F.linear(x, w_router), dim=-1), top_k, dim=-1)
    return weights, indices


@assay.implements("sampler", name="torch-multinomial", grad=False, version=torch.__version__)
def sampler(logits: Tensor, *, seed: int, num_samples: int) -> Tensor:
    """torch.multinomial on the softmax, with a generator of its own."""
    generator = torch.Generator(device=logits.device).manual_seed(seed)
    return torch.multinomial(F.softmax(logits, dim=-1), num_samples, replacement=True, generator=generator)


@assay.implements("patchify", name="torch-unfold", version=torch.__version__)
def patchify(image: Tensor, *, patch_size: int) -> Tensor:
    """F.unfold puts the channel first in each patch: moved to the end. It leaves out what fills no patch, which is refused here."""
    if image.shape[-2] % patch_size or image.shape[-1] % patch_size:
        raise ValueError(f"patch_size={patch_size} must divide {tuple(image.shape[-2:])}; crop or pad the image")
    columns = F.unfold(image, patch_size, stride=patch_size)  # (B, Ci*P*P, N)
    return columns.unflatten(1, (image.shape[1], patch_size * patch_size)).permute(0, 3, 2, 1).flatten(2)


# With B = 0 the function gives back the shape it was given.
@assay.implements("patchify", name="torch-pixel-unshuffle", lacks={"empty"}, version=torch.__version__)
def patchify_unshuffle(image: Tensor, *, patch_size: int) -> Tensor:
    """F.pixel_unshuffle, whose channel axis holds (channel, row, column)."""
    packed = F.pixel_unshuffle(image, patch_size).flatten(2)  # (B, Ci*P*P, N)
    return packed.unflatten(1, (image.shape[1], patch_size * patch_size)).permute(0, 3, 2, 1).flatten(2)
