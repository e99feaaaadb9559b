"""What must hold of a tokenizer made by a factory: TOK-1, TOK-2.

Texts hold what byte-level tokenizers must bring back: all scripts, combining marks in either form, zero bytes, white space at
the ends, characters outside the basic plane, and what looks like a special token but is text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from assay.cases import Cases, Configuration, Example, generator
from assay.contract.declaration import Declaration
from assay.errors import ExampleOverError
from assay.ledger import fact
from assay.properties import Specification
from assay.subject import Subject

ALPHABETS: dict[str, str] = {
    "ascii": "abcdefgh thTH ABC  .,!?09-_'\"/\\",
    "spaces": " ab \t\n\r  x\r\n",
    "letters": "äöüßéèñçøåłžœÆ ",
    "accents": "e\u0301 a\u0308 \u00e9 \u00e4 \ufb01 \u2126\u03a9",
    "scripts": "漢字かなカナ한글مرحباשלוםहिन्दीไทย ",
    "pictures": "🙂👩\u200d👩\u200d👧🇩🇪🏳\ufe0f ",
    "markers": "<pad></s><s>[MASK][PAD]<|endoftext|>",
    "control": "a\x00b\x01\x7f\x1f\u200b\ufeff",
}


class TokenizerCases(Cases):
    """Rows of texts of up to T characters, from one alphabet or mixed; empty texts too."""

    kind = "tokenizer"
    dims = {"B": (3, 1, 2, 5), "T": (5, 1, 2, 0, 8, 17, 40, 600)}
    flags = {"alphabet": (*ALPHABETS, "mixed")}
    families = ("integers",)
    layouts = ("contiguous",)

    def adapt(self, configuration: Configuration, claims: Declaration) -> Configuration | None:
        return configuration

    def build(self, configuration: Configuration, dtype: torch.dtype) -> Example:
        name, source = configuration.flags["alphabet"], generator(configuration.seed, "texts")
        alphabet = "".join(ALPHABETS.values()) if name == "mixed" else ALPHABETS[name]
        texts = []
        for row in range(configuration.dims["B"]):
            length = (
                configuration.dims["T"]
                if row == 0
                else int(torch.randint(0, configuration.dims["T"] + 1, (), generator=source))
            )
            places = torch.randint(0, len(alphabet), (length,), generator=source).tolist()
            texts.append("".join(alphabet[place] for place in places))
        return Example(configuration, dtype, {}, {"texts": [*texts, alphabet]})


spec = Specification("tokenizer", TokenizerCases())


@dataclass(frozen=True)
class Batch:
    """What `pad` gave."""

    ids: torch.Tensor
    mask: torch.Tensor


def encoded(tokenizer: Subject, text: str) -> list[int]:
    """The ids of a text, found to be a list of whole numbers; ends the example where they are not."""
    ids = tokenizer.method("encode", text)
    if not fact(
        isinstance(ids, list) and all(type(i) is int for i in ids),
        "encode gives no list of whole numbers",
        got=type(ids).__name__,
        expected="list[int]",
        check="result of encode",
        decided=False,
    ):
        raise ExampleOverError("no ids")
    return list(ids)


def padded(tokenizer: Subject, sequences: list[list[int]], **options: Any) -> Batch:
    """A batch, found to be a tensor of ids and a tensor of truth values; ends the example where it is not."""
    got = tokenizer.method("pad", sequences, **options)
    tensors = isinstance(got, tuple) and len(got) == 2 and all(isinstance(one, torch.Tensor) for one in got)
    if not fact(tensors, "pad gives no pair of tensors", expected="(ids, mask)", check="result of pad", decided=False):
        raise ExampleOverError("no batch")
    ids, mask = got
    if not fact(
        ids.dtype == torch.int64 and mask.dtype == torch.bool,
        f"ids are {ids.dtype}, the mask is {mask.dtype}",
        expected="int64 and bool",
        check="types of ids and mask",
    ):
        raise ExampleOverError("wrong types")
    if not fact(
        ids.shape == mask.shape and ids.dim() == 2 and len(ids) == len(sequences),
        f"ids are {tuple(ids.shape)}, the mask is {tuple(mask.shape)}",
        expected=f"({len(sequences)}, T) both",
        check="shapes of ids and mask",
    ):
        raise ExampleOverError("wrong shapes")
    return Batch(ids, mask)


def holds(tokenizer: Subject, batch: Batch, wanted: list[list[int]], size: int, side: str) -> None:
    """The batch holds these ids on the side away from the padding, pad_id elsewhere, and a mask that says which are real."""
    assert fact(
        batch.ids.shape[1] == size,
        f"the batch is {batch.ids.shape[1]} long",
        expected=str(size),
        check="length of the batch",
    )
    pad_id = tokenizer.method("pad_id")
    for row, ids in enumerate(wanted):
        empty = [pad_id] * (size - len(ids))
        full = [*ids, *empty] if side == "right" else [*empty, *ids]
        real = [True] * len(ids) + [False] * len(empty)
        assert fact(
            batch.ids[row].tolist() == full,
            f"row {row} holds other ids",
            got=str(batch.ids[row].tolist()[:16]),
            expected=str(full[:16]),
            check="ids of the batch",
            decided=bool(ids) or bool(empty),
        )
        assert fact(
            batch.mask[row].tolist() == (real if side == "right" else real[::-1]),
            f"row {row} has another mask",
            got=str(batch.mask[row].int().tolist()[:16]),
            expected=f"{len(ids)} real at the {_other(side)}",
            check="mask",
        )


def _other(side: str) -> str:
    return "left" if side == "right" else "right"


def sequences(tokenizer: Subject, example: Example) -> list[list[int]]:
    """The example's texts as ids."""
    return [encoded(tokenizer, text) for text in example.texts]


@spec.holds(
    "TOK-1",
    kills=(
        "ascii_only",
        "lowercased",
        "stripped",
        "spaces_joined",
        "carriage_returns_dropped",
        "ends_at_zero",
        "composed",
        "decoded_by_byte",
        "marker_kept",
        "padding_read_from_text",
        "line_ends_joined",
        "last_line_end_dropped",
        "long_texts_cut_within_characters",
    ),
)
def text_comes_back(tokenizer: Subject, example: Example) -> None:
    """Text to ids and back gives the same text."""
    for text in example.texts:
        back = tokenizer.method("decode", encoded(tokenizer, text))
        assert fact(
            back == text,
            "the text does not come back",
            got=repr(back)[:80],
            expected=repr(text)[:80],
            check="round trip",
            decided=bool(text),
        )


@spec.holds("TOK-1", kills=("vocabulary_too_small",))
def ids_lie_in_the_vocabulary(tokenizer: Subject, example: Example) -> None:
    """Every id, and the padding id, lies in 0 … vocab_size − 1."""
    size, pad_id = tokenizer.method("vocab_size"), tokenizer.method("pad_id")
    assert fact(
        0 <= pad_id < size, f"pad_id is {pad_id}", expected=f"0 to {size - 1}", check="padding id", decided=False
    )
    for ids in sequences(tokenizer, example):
        wrong = [i for i in ids if not 0 <= i < size]
        assert fact(
            not wrong, f"ids lie outside 0 … {size - 1}", got=str(wrong[:4]), check="range of ids", decided=bool(ids)
        )


@spec.holds("TOK-1", kills=("remembered_by_its_beginning",), rests_on=(text_comes_back,))
def texts_that_begin_alike_are_told_apart(tokenizer: Subject, example: Example) -> None:
    """Long texts of the same beginning, and of the same end, come back each as it was, one after the other."""
    for text in filter(None, example.texts):
        long, last = text * (64 // len(text) + 1), text[-1]
        for other in (long + last, long + 2 * last, last + long):
            back = tokenizer.method("decode", encoded(tokenizer, other))
            assert fact(back == other, "the text does not come back after one that begins alike", got=f"{len(back)} characters",
                        expected=f"{len(other)} characters", check="round trip of texts that begin alike")


@spec.holds("TOK-1", kills=("encoding_drifts",))
def same_text_gives_the_same_ids(tokenizer: Subject, example: Example) -> None:
    """The same text gives the same ids, from one tokenizer and from another one made alike."""
    for text in example.texts:
        first, again = encoded(tokenizer, text), encoded(tokenizer, text)
        other = tokenizer.method("encode", text, instance=1)
        assert fact(
            first == again == other,
            "two calls give other ids",
            got=str(again[:16]),
            expected=str(first[:16]),
            check="ids of one text",
            decided=bool(first),
        )


@spec.holds(
    "TOK-1",
    "TOK-2",
    kills=("mask_inverted", "mask_from_padding_id", "padded_with_zero", "mask_as_integers", "mask_of_first_row"),
)
def padding_to_the_longest(tokenizer: Subject, example: Example) -> None:
    """Without a length the batch is as long as its longest text; the mask says which ids are real."""
    wanted = [*sequences(tokenizer, example), encoded(tokenizer, "\x00a\x00")]
    holds(tokenizer, padded(tokenizer, wanted), wanted, max(map(len, wanted)), "right")


@spec.holds("TOK-2", kills=("fixed_length_ignored", "mask_inverted", "padded_with_zero"))
def padding_to_a_fixed_length(tokenizer: Subject, example: Example) -> None:
    """With a length beyond the longest text the batch has that length, and real tokens are unchanged."""
    wanted = sequences(tokenizer, example)
    size = max(map(len, wanted)) + 3
    holds(tokenizer, padded(tokenizer, wanted, length=size), wanted, size, "right")


@spec.holds("TOK-2", kills=("never_cut", "cut_too_short", "truncate_ignored", "truncate_by_side"))
def cutting_to_a_fixed_length(tokenizer: Subject, example: Example) -> None:
    """Longer texts are cut to the length, at the end that is named, whichever side is padded; shorter ones are padded."""
    whole = [*sequences(tokenizer, example), encoded(tokenizer, "abcdefghi")]
    size = max(1, max(map(len, whole)) // 2)
    for truncate, kept in (
        ("right", [ids[:size] for ids in whole]),
        ("left", [ids[max(0, len(ids) - size) :] for ids in whole]),
    ):
        holds(tokenizer, padded(tokenizer, whole, length=size, truncate=truncate), kept, size, "right")
        if tokenizer.declaration.claims("left_padding"):
            holds(tokenizer, padded(tokenizer, whole, length=size, truncate=truncate, side="left"), kept, size, "left")


@spec.holds("CONDUCT", kills=("pad_cuts_in_place", "pad_sorts_its_batch"))
def sequences_are_left_unchanged(tokenizer: Subject, example: Example) -> None:
    """Padding, cutting and decoding leave the lists that they are handed as they were."""
    whole = [*sequences(tokenizer, example), encoded(tokenizer, "abcdefghi"), encoded(tokenizer, "a")]
    size = max(map(len, whole))
    for length in (size + 2, max(1, size // 2), None):
        answer = tokenizer.ask("pad", {"0": whole} if length is None else {"0": whole, "length": length})
        assert fact(not answer.mutated, "pad changed the sequences that it was handed", check="sequences unchanged")
    answer = tokenizer.ask("decode", {"0": whole[-2]})
    assert fact(not answer.mutated, "decode changed the ids that it was handed", check="ids unchanged")


@spec.holds("CONDUCT", kills=("pad_reuses_its_batch",))
def batches_are_new_each_time(tokenizer: Subject, example: Example) -> None:
    """A batch is right, and right again after a longer and a shorter one."""
    short = sequences(tokenizer, example)
    size = max(map(len, short)) + 1
    longer = [encoded(tokenizer, "a" * (size + 3)) for _ in range(len(short) + 2)]
    for wanted in (short, longer, short):
        length = max(map(len, wanted)) + 1
        holds(tokenizer, padded(tokenizer, wanted, length=length), wanted, length, "right")


@spec.holds("TOK-2", kills=("length_zero_taken_for_none",))
def length_zero_is_a_length(tokenizer: Subject, example: Example) -> None:
    """A batch cut to length 0 is empty, not of the longest text's length; refusing it is right too."""
    whole = sequences(tokenizer, example)
    if not tokenizer.refused_by("pad", whole, length=0):
        holds(tokenizer, padded(tokenizer, whole, length=0), [[] for _ in whole], 0, "right")


@spec.holds("TOK-2", kills=("side_ignored",), needs=("left_padding",))
def padding_on_the_left(tokenizer: Subject, example: Example) -> None:
    """Padding goes to the left where that is asked."""
    wanted = [*sequences(tokenizer, example), encoded(tokenizer, "a")]
    size = max(map(len, wanted)) + 1
    holds(tokenizer, padded(tokenizer, wanted, length=size, side="left"), wanted, size, "left")
