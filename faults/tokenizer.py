"""Planted faults of the tokenizer, and unusual ways that are right."""
from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from assay.registry import benign, fault

NOT_EXPRESSIBLE: dict[str, str] = {}
Padded = tuple[Tensor, Tensor]


def text_of(raw: bytes) -> str:
    """The text of the bytes; what is none becomes U+FFFD."""
    try:
        return raw.decode("utf-8", errors="surrogatepass")
    except UnicodeDecodeError:
        return raw.decode("utf-8", errors="replace")


class Bytes:
    """A right byte tokenizer; faults change one method."""

    vocab_size = 257
    pad_id = 256

    def encode(self, text: str) -> list[int]:
        return list(text.encode("utf-8", errors="surrogatepass"))

    def decode(self, ids: list[int]) -> str:
        return text_of(bytes(i for i in ids if i != self.pad_id))

    def cut(self, ids: list[int], size: int, truncate: str) -> list[int]:
        return ids[:size] if truncate == "right" else ids[max(0, len(ids) - size):]

    def pad(self, sequences: list[list[int]], *, length: int | None = None, side: str = "right",
            truncate: str = "right") -> Padded:
        size = max(map(len, sequences), default=0) if length is None else length
        ids = torch.full((len(sequences), size), self.pad_id, dtype=torch.int64)
        mask = torch.zeros((len(sequences), size), dtype=torch.bool)
        for row, sequence in enumerate(sequences):
            kept = self.cut(sequence, size, truncate)
            first = 0 if side == "right" else size - len(kept)
            ids[row, first : first + len(kept)] = torch.tensor(kept, dtype=torch.int64)
            mask[row, first : first + len(kept)] = True
        return ids, mask


def planted(mark: Callable[..., Any], summary: str) -> Callable[[type[Bytes]], type[Bytes]]:
    """Register a tokenizer class through its factory, under the class' name in small letters."""
    def register(wrong: type[Bytes]) -> type[Bytes]:
        def tokenizer() -> Bytes:
            return wrong()

        name = "".join(f"_{c.lower()}" if c.isupper() else c for c in wrong.__name__).lstrip("_")
        tokenizer.__name__ = tokenizer.__qualname__ = name
        tokenizer.__module__, tokenizer.__doc__ = wrong.__module__, summary
        mark("tokenizer", summary=summary)(tokenizer)
        return wrong

    return register


@planted(fault, "sequences beyond the length are cut in the caller's own lists")
class PadCutsInPlace(Bytes):
    def pad(self, sequences: list[list[int]], *, length: int | None = None, side: str = "right",
            truncate: str = "right") -> Padded:
        batch = super().pad(sequences, length=length, side=side, truncate=truncate)
        for sequence in sequences:
            sequence[:] = self.cut(sequence, batch[0].shape[1], truncate)
        return batch


@planted(fault, "the caller's list of sequences is left in the order of their lengths")
class PadSortsItsBatch(Bytes):
    def pad(self, sequences: list[list[int]], *, length: int | None = None, side: str = "right",
            truncate: str = "right") -> Padded:
        batch = super().pad(sequences, length=length, side=side, truncate=truncate)
        sequences.sort(key=len, reverse=True)
        return batch


@planted(fault, "a batch that fits into the one before is written into it, and what that held is left around it")
class PadReusesItsBatch(Bytes):
    def __init__(self) -> None:
        self.mask = torch.zeros((0, 0), dtype=torch.bool)

    def pad(self, sequences: list[list[int]], *, length: int | None = None, side: str = "right",
            truncate: str = "right") -> Padded:
        ids, mask = super().pad(sequences, length=length, side=side, truncate=truncate)
        rows, size = mask.shape
        if rows <= self.mask.shape[0] and size <= self.mask.shape[1]:
            return ids, mask | self.mask[:rows, :size]
        self.mask = mask
        return ids, mask


@planted(fault, "characters outside ASCII become question marks")
class AsciiOnly(Bytes):
    def encode(self, text: str) -> list[int]:
        return list(text.encode("ascii", errors="replace"))


@planted(fault, "letters are made small")
class Lowercased(Bytes):
    def encode(self, text: str) -> list[int]:
        return super().encode(text.lower())


@planted(fault, "white space at the ends is dropped")
class Stripped(Bytes):
    def encode(self, text: str) -> list[int]:
        return super().encode(text.strip())


@planted(fault, "runs of spaces become one")
class SpacesJoined(Bytes):
    def encode(self, text: str) -> list[int]:
        return super().encode(text.replace("  ", " "))


@planted(fault, "carriage returns vanish")
class CarriageReturnsDropped(Bytes):
    def encode(self, text: str) -> list[int]:
        return super().encode(text.replace("\r", ""))


@planted(fault, "the name of the padding token in a text becomes padding")
class PaddingReadFromText(Bytes):
    def encode(self, text: str) -> list[int]:
        first, *rest = (Bytes.encode(self, part) for part in text.split("<pad>"))
        return [*first, *(i for part in rest for i in (self.pad_id, *part))]


@planted(fault, "a line end of two characters becomes one")
class LineEndsJoined(Bytes):
    def encode(self, text: str) -> list[int]:
        return super().encode(text.replace("\r\n", "\n"))


@planted(fault, "the line end at the end of a text is dropped")
class LastLineEndDropped(Bytes):
    def encode(self, text: str) -> list[int]:
        return super().encode(text.removesuffix("\n"))


@planted(fault, "long texts are decoded 256 bytes at a time: characters that a cut goes through are lost")
class LongTextsCutWithinCharacters(Bytes):
    def decode(self, ids: list[int]) -> str:
        return "".join(super(LongTextsCutWithinCharacters, self).decode(ids[i : i + 256]) for i in range(0, len(ids), 256))


@planted(fault, "length 0 is taken for no length")
class LengthZeroTakenForNone(Bytes):
    def pad(self, sequences: list[list[int]], *, length: int | None = None, side: str = "right",
            truncate: str = "right") -> Padded:
        return super().pad(sequences, length=length or None, side=side, truncate=truncate)


@planted(fault, "byte 0 ends the text")
class EndsAtZero(Bytes):
    def decode(self, ids: list[int]) -> str:
        return super().decode(ids[: ids.index(0)] if 0 in ids else ids)


@planted(fault, "text is brought into composed form")
class Composed(Bytes):
    def encode(self, text: str) -> list[int]:
        return super().encode(unicodedata.normalize("NFC", text))


@planted(fault, "decoded byte by byte: characters of several bytes are broken")
class DecodedByByte(Bytes):
    def decode(self, ids: list[int]) -> str:
        return "".join(chr(i) for i in ids if i < 256)


@planted(fault, "ids reach beyond vocab_size")
class VocabularyTooSmall(Bytes):
    vocab_size = 128


@planted(fault, "a marker is put before every text and not taken away")
class MarkerKept(Bytes):
    def encode(self, text: str) -> list[int]:
        return [32, *super().encode(text)]


@planted(fault, "every second call puts a space in front")
class EncodingDrifts(Bytes):
    def __init__(self) -> None:
        self.calls = 0

    def encode(self, text: str) -> list[int]:
        self.calls += 1
        return super().encode(" " * (self.calls % 2) + text)


@planted(fault, "what a text gives is remembered by its first 32 characters")
class RememberedByItsBeginning(Bytes):
    def __init__(self) -> None:
        self.seen: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        return list(self.seen.setdefault(text[:32], super().encode(text))) if len(text) > 32 else super().encode(text)


@planted(fault, "the mask is inverted")
class MaskInverted(Bytes):
    def pad(self, sequences: list[list[int]], *, length: int | None = None, side: str = "right",
            truncate: str = "right") -> Padded:
        ids, mask = super().pad(sequences, length=length, side=side, truncate=truncate)
        return ids, ~mask


@planted(fault, "the mask is read off the padding id, which is a byte")
class MaskFromPaddingId(Bytes):
    pad_id = 0

    def decode(self, ids: list[int]) -> str:
        return text_of(bytes(ids))

    def pad(self, sequences: list[list[int]], *, length: int | None = None, side: str = "right",
            truncate: str = "right") -> Padded:
        ids, _ = super().pad(sequences, length=length, side=side, truncate=truncate)
        return ids, ids != 0


@planted(fault, "the side is ignored: always padded on the right")
class SideIgnored(Bytes):
    def pad(self, sequences: list[list[int]], *, length: int | None = None, side: str = "right",
            truncate: str = "right") -> Padded:
        return super().pad(sequences, length=length, side="right", truncate=truncate)


@planted(fault, "the end to cut is ignored: always the right one")
class TruncateIgnored(Bytes):
    def cut(self, ids: list[int], size: int, truncate: str) -> list[int]:
        return ids[:size]


@planted(fault, "cut on the side where padding goes")
class TruncateBySide(Bytes):
    def pad(self, sequences: list[list[int]], *, length: int | None = None, side: str = "right",
            truncate: str = "right") -> Padded:
        return super().pad(sequences, length=length, side=side, truncate=side)


@planted(fault, "a fixed length is taken as the least length: longer texts are not cut")
class NeverCut(Bytes):
    def pad(self, sequences: list[list[int]], *, length: int | None = None, side: str = "right",
            truncate: str = "right") -> Padded:
        longest = max(map(len, sequences), default=0)
        return super().pad(sequences, length=None if length is None else max(length, longest), side=side, truncate=truncate)


@planted(fault, "a fixed length is cut to the longest text")
class FixedLengthIgnored(Bytes):
    def pad(self, sequences: list[list[int]], *, length: int | None = None, side: str = "right",
            truncate: str = "right") -> Padded:
        longest = max(map(len, sequences), default=0)
        return super().pad(sequences, length=None if length is None else min(length, longest), side=side, truncate=truncate)


@planted(fault, "cut one token too short")
class CutTooShort(Bytes):
    def cut(self, ids: list[int], size: int, truncate: str) -> list[int]:
        return ids if len(ids) <= size else super().cut(ids, max(0, size - 1), truncate)


@planted(fault, "padded with token 0 in place of pad_id")
class PaddedWithZero(Bytes):
    def pad(self, sequences: list[list[int]], *, length: int | None = None, side: str = "right",
            truncate: str = "right") -> Padded:
        ids, mask = super().pad(sequences, length=length, side=side, truncate=truncate)
        return ids.masked_fill(~mask, 0), mask


@planted(fault, "the mask comes as integers")
class MaskAsIntegers(Bytes):
    def pad(self, sequences: list[list[int]], *, length: int | None = None, side: str = "right",
            truncate: str = "right") -> Padded:
        ids, mask = super().pad(sequences, length=length, side=side, truncate=truncate)
        return ids, mask.long()


@planted(fault, "the mask covers the first row's length in every row")
class MaskOfFirstRow(Bytes):
    def pad(self, sequences: list[list[int]], *, length: int | None = None, side: str = "right",
            truncate: str = "right") -> Padded:
        ids, mask = super().pad(sequences, length=length, side=side, truncate=truncate)
        return ids, mask[:1].expand(mask.shape).clone() if len(mask) else mask


@planted(benign, "padding id in front of the bytes, which are shifted by one")
class PaddingFirst(Bytes):
    pad_id = 0

    def encode(self, text: str) -> list[int]:
        return [i + 1 for i in super().encode(text)]

    def decode(self, ids: list[int]) -> str:
        return text_of(bytes(i - 1 for i in ids if i))


@planted(benign, "pairs of bytes merged greedily into ids of their own")
class PairsMerged(Bytes):
    vocab_size = 258

    def encode(self, text: str) -> list[int]:
        raw, ids, i = super().encode(text), [], 0
        while i < len(raw):
            pair = raw[i : i + 2] == [116, 104]  # "th"
            ids.append(257 if pair else raw[i])
            i += 2 if pair else 1
        return ids

    def decode(self, ids: list[int]) -> str:
        return super().decode([byte for i in ids for byte in ((116, 104) if i == 257 else (i,))])
