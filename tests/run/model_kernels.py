"""A tiny causal language model and a tokenizer, declared through factories."""
import torch

import assay


class Model(torch.nn.Module):
    vocab_size = 11
    max_length = None

    def __init__(self, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.table = torch.nn.Parameter(torch.randn(11, 11))
        self.calls = 0

    def forward(self, ids, *, mask=None):
        self.calls += 1
        return self.table[ids].cumsum(1)

    def step(self, ids, cache, *, mask=None):
        """Cache: the running sum, updated in place."""
        cache = [torch.zeros(ids.shape[0], 1, 11)] if cache is None else cache
        logits = cache[0] + self.table[ids].cumsum(1)
        cache[0] = logits[:, -1:].detach()
        return logits, cache


@assay.implements("causal_lm", name="sums")
def sums(*, seed):
    return Model(seed)


class Letters:
    vocab_size = 27
    pad_id = 0

    def encode(self, text):
        return [ord(c) - 96 for c in text]

    def decode(self, ids):
        return "".join(chr(i + 96) for i in ids)

    def pad(self, rows, *, length=None, side="right", truncate="right"):
        ids = torch.tensor(rows)
        return ids, ids > 0


@assay.implements("tokenizer", name="letters")
def letters():
    return Letters()
