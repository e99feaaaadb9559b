"""Tokenizer: text as the bytes of its UTF-8 form, and batches padded or cut to one length."""
from __future__ import annotations

import torch
from torch import Tensor

from assay.numbers.forms import Form

BYTES = 256


class ByteTokenizer:
    """One id a byte; the id after the last byte is for padding.

    vocab_size: 257. pad_id: 256.
    """

    vocab_size = BYTES + 1
    pad_id = BYTES

    def encode(self, text: str) -> list[int]:
        """The bytes of the text."""
        return list(text.encode("utf-8", errors="surrogatepass"))

    def decode(self, ids: list[int]) -> str:
        """The text of the bytes; padding is left out, bytes that are no text become U+FFFD."""
        for wrong in (i for i in ids if not 0 <= i < self.vocab_size):
            raise ValueError(f"ids={wrong} must lie in 0 … {self.vocab_size - 1}, got {wrong}; decode what encode gave")
        raw = bytes(i for i in ids if i != self.pad_id)
        try:
            return raw.decode("utf-8", errors="surrogatepass")
        except UnicodeDecodeError:
            return raw.decode("utf-8", errors="replace")

    def pad(self, sequences: list[list[int]], *, length: int | None = None, side: str = "right",
            truncate: str = "right") -> tuple[Tensor, Tensor]:
        """Sequences as one batch of ids (B,T) and a mask, True = real; T is `length` or the longest.

        side: where padding goes. truncate: which end of a longer sequence is cut off.
        """
        for name, value in (("side", side), ("truncate", truncate)):
            if value not in ("left", "right"):
                raise ValueError(f"{name}={value!r} must be 'left' or 'right', got {value!r}; choose one of them")
        if length is not None and length < 0:
            raise ValueError(f"length={length} must be at least 0, got {length}; pass None for the longest")
        size = max(map(len, sequences), default=0) if length is None else length
        ids = torch.full((len(sequences), size), self.pad_id, dtype=torch.int64)
        mask = torch.zeros((len(sequences), size), dtype=torch.bool)
        for row, sequence in enumerate(sequences):
            kept = sequence[:size] if truncate == "right" else sequence[max(0, len(sequence) - size):]
            first = 0 if side == "right" else size - len(kept)
            ids[row, first: first + len(kept)] = torch.tensor(kept, dtype=torch.int64)
            mask[row, first: first + len(kept)] = True
        return ids, mask


def tokenizer() -> ByteTokenizer:
    """Make the byte tokenizer: encode and decode are inverse on every text.

    Formula: encode(text) = UTF-8 bytes of text.

    returns: an object with encode, decode, pad, vocab_size and pad_id

    Conventions: byte level; padding id 256, on the right unless asked otherwise.
    Raises: ValueError for an unknown side or end, a negative length, an id outside the vocabulary.
    Source: Xue et al., "ByT5", section 3.1, arXiv 2105.13626.

    >>> tokenizer().decode(tokenizer().encode("Ωmega"))
    'Ωmega'
    >>> tokenizer().pad([[1, 2], [3]])[0].tolist()
    [[1, 2], [3, 256]]
    """
    return ByteTokenizer()


FORMS: tuple[Form, ...] = (Form("bytes", tokenizer),)
