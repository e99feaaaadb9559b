"""What must hold of `lm_loss(logits, ids, *, mask, prompt_lengths, label_smoothing, reduction)`: CE-1 … CE-5, SFT-1, LS-1."""
from __future__ import annotations

from typing import Any

import torch

from assay.cases import Cases, Configuration, Example, at_least, generator
from assay.contract.declaration import Declaration
from assay.ledger import identical
from assay.properties import Specification
from assay.spec.conduct import add_conduct
from assay.spec.cross_entropy import draw_logits
from assay.subject import Subject

BUDGET = 4096  # logits of one example


class LanguageModelCases(Cases):
    """B rows of T tokens over V ids, padded on the right; prompts of length 0, some, and as long as the row.

    Padding on the left is left out: whether the first real token counts there is for the caller's labels to say. So is the
    reduction "none": the loss is a scalar by contract, and rows come as (B, T−1), as (B·(T−1),) or the counted ones alone.
    """

    kind = "lm_loss"
    dims = {"B": (1, 2, 3, 5, 0), "T": (4, 3, 2, 1, 5, 8, 9, 17, 33), "V": (3, 2, 1, 4, 5, 7, 16, 17, 31, 33, 64, 65, 129)}
    # The mean twice: faults of what it divides by show under it alone.
    flags = {"reduction": ("mean", "sum", "mean"), "mask": ("none", "padding"),
             "prompt_lengths": ("none", "some", "zero", "equal", "whole"), "label_smoothing": (0.0, 0.1, 0.4, 0.3)}
    families = ("integers", "normal", "peaked", "very_peaked", "positive", "small", "cancelling", "heavy", "constant")

    def adapt(self, configuration: Configuration, claims: Declaration) -> Configuration | None:
        dims, flags = dict(configuration.dims), dict(configuration.flags)
        if not claims.claims("empty"):
            dims = {letter: max(1, size) for letter, size in dims.items()}
        while dims["B"] * dims["T"] * dims["V"] > BUDGET and claims.allows("V", dims["V"] // 2):
            dims["V"] //= 2
        if dims["V"] == 1:
            flags["label_smoothing"] = 0.0
        if not claims.claims("mask"):
            flags["mask"] = "none"
        if flags["reduction"] == "mean" and claims.conventions["all_ignored"] == "refused":
            dims |= {"B": max(1, dims["B"]), "T": max(2, dims["T"])}
            flags["prompt_lengths"] = "some" if flags["prompt_lengths"] == "whole" else flags["prompt_lengths"]
        return configuration.but(**dims, **flags)

    def build(self, configuration: Configuration, dtype: torch.dtype) -> Example:
        d, flags, seed = configuration.dims, configuration.flags, configuration.seed
        source = generator(seed, "ids")
        ids = torch.randint(0, d["V"], (d["B"], d["T"]), generator=source)
        real = torch.full((d["B"],), d["T"])
        if flags["mask"] != "none":
            real = torch.randint(0, d["T"] + 1, (d["B"],), generator=source)
            real[:1] = d["T"]
        prompts = draw_prompts(flags["prompt_lengths"], d["B"], d["T"], source)
        arguments: dict[str, Any] = {
            "logits": draw_logits(configuration.family, (d["B"], d["T"], d["V"]), generator(seed, "logits"), dtype), "ids": ids}
        if flags["mask"] != "none":
            arguments["mask"] = torch.arange(d["T"]) < real[:, None]
        if prompts is not None:
            arguments["prompt_lengths"] = prompts
        for name, default in (("reduction", "mean"), ("label_smoothing", 0.0)):
            if flags[name] != default:
                arguments[name] = flags[name]
        return Example(configuration, dtype, arguments, {"counted": counted_targets(d["T"], real, prompts)})


def draw_prompts(sort: str, rows: int, length: int, source: torch.Generator) -> torch.Tensor | None:
    """Lengths of the prompts: none given, 0, all alike, different (the first row keeps a response), or the whole row."""
    drawn = torch.randint(0, max(1, length), (rows,), generator=source)
    if sort == "some":
        return drawn
    same = {"zero": 0, "equal": int(drawn[:1].sum()), "whole": length}
    return torch.full((rows,), same[sort]) if sort in same else None


def counted_targets(length: int, real: torch.Tensor, prompts: torch.Tensor | None) -> torch.Tensor:
    """Which of the T−1 next tokens count (B, T−1)."""
    place = torch.arange(1, max(1, length))
    keep = place < real[:, None]
    return keep if prompts is None else keep & (place >= prompts[:, None])


spec = Specification("lm_loss", LanguageModelCases())
conduct = add_conduct(spec)
ROWS = {"B": at_least(1), "T": at_least(2), "V": at_least(2), "prompt_lengths": ("none", "some", "zero", "equal")}
PLAIN = {**ROWS, "label_smoothing": 0.0}
UNMASKED = {**PLAIN, "mask": "none", "prompt_lengths": "none"}


def target_log_p(example: Example) -> torch.Tensor:
    """log p of every counted next token, in float64."""
    every = torch.log_softmax(example.logits[:, :-1].double(), -1)
    return every.gather(-1, example.ids[:, 1:, None])[..., 0][example.counted]


@spec.holds("CE-1", "CE-4", "LS-1", "SFT-1", "E28", kills=(
    "shifted_twice", "not_shifted", "shifted_backward", "shifted_after_flattening", "wrapped_around", "last_target_left_out",
    "mask_ignored", "mask_not_shifted", "mask_inverted", "prompt_counts", "first_response_token_left_out",
    "last_prompt_token_counts", "response_left_out", "mean_over_all_positions",
    "mean_over_t", "sum_for_mean", "smoothing_ignored", "smoothing_over_all", "perplexity"), rests_on=(conduct["form"],))
def output_is_the_formula(loss: Subject, example: Example) -> None:
    """Logits at t are scored against the id at t+1, over real tokens, the response alone where a prompt is given."""
    assert loss(**example) == loss.exact(**example)


@spec.holds("CE-2", "LS-3", kills=("gradient_doubled", "gradient_of_last_column", "shifted_twice"),
            rests_on=(output_is_the_formula,), gradient=True, given=ROWS)
def gradient_is_the_formula(loss: Subject, example: Example) -> None:
    """The gradient is softmax − target distribution at positions that count, 0 elsewhere, over the same mean."""
    assert loss.gradients(**example)["logits"] == loss.exact_gradients(**example)["logits"]


def scored(example: Example) -> torch.Tensor:
    """Which positions (B,T) have their logits scored."""
    return torch.nn.functional.pad(example.counted, (0, 1), value=False)


def with_unscored_replaced(example: Example) -> Example:
    """Other finite logits, large ones too, wherever none is scored."""
    other = example.values("others", *example.logits.shape, family="normal").double() * 64 + 4096
    return example.but(logits=torch.where(scored(example)[..., None], example.logits, other.to(example.dtype)))


@spec.holds("CE-3", "CE-4", kills=("shifted_backward", "wrapped_around", "mask_ignored", "prompt_counts"),
            rests_on=(conduct["form"],), given=ROWS)
def unscored_positions_add_nothing(loss: Subject, example: Example) -> None:
    """Whatever finite logits the last position, padding and the prompt hold, the loss is the same bit for bit."""
    usual = loss.values(**example)
    moved = loss.values(**example.but(logits=example.logits.roll(1, -1)))
    assert identical(usual, loss.values(**with_unscored_replaced(example)), witness=(usual, moved))


@spec.holds("CE-3", "CE-4", kills=("gradient_of_last_column", "mask_ignored", "prompt_counts"), rests_on=(conduct["form"],),
            gradient=True, given=ROWS)
def unscored_positions_get_no_gradient(loss: Subject, example: Example) -> None:
    """The gradient is exactly 0 at the last position, at padding and within the prompt but for its last token."""
    found, hit = loss.gradients(**example)["logits"].value, scored(example)
    assert identical(found[~hit], 0.0, witness=bool((found[hit] != 0).any()))


@spec.holds("CE-1", "CE-4", kills=("not_shifted", "shifted_twice", "shifted_backward", "wrapped_around"),
            rests_on=(conduct["form"],), given={**UNMASKED, "V": at_least(3)})
def next_token_known_costs_nothing(loss: Subject, example: Example) -> None:
    """Logits that single out the next token by 64 cost next to nothing; those that single out another cost 64 each.

    Ids run 0, 1, 2, 0, 1 …: the token itself, the one after the next and the one before are all other ids.
    """
    d = example.dims
    ids = (torch.arange(d["T"]) % 3).expand(d["B"], d["T"]).clone()
    right = 64.0 * torch.nn.functional.one_hot((ids + 1) % 3, d["V"]).to(example.dtype)
    usual = example.but(ids=ids)
    assert loss(**usual.but(logits=right)) == 0.0
    assert loss(**usual.but(logits=-right)) >= 32.0


@spec.holds("CE-4", kills=("mean_of_row_means", "sum_for_mean", "mean_over_all_positions", "mean_over_t"),
            rests_on=(conduct["form"],), needs=("reduction", "reduction=sum"), given={**PLAIN, "reduction": "mean"})
def mean_is_sum_over_counted_tokens(loss: Subject, example: Example) -> None:
    """The mean times the number of counted tokens, T−1 a row without a mask, is the sum: every token weighs the same."""
    assert loss(**example) * float(example.counted.sum()) == loss(**example.but(reduction="sum"))


@spec.holds("CE-4", kills=("last_target_left_out", "wrapped_around", "not_shifted", "perplexity"), rests_on=(conduct["form"],),
            needs=("reduction",), given={**UNMASKED, "reduction": "sum", "T": (2, 3, 4, 5),
                                         "family": ("integers", "normal", "small")})
def sum_is_minus_the_log_of_the_chain(loss: Subject, example: Example) -> None:
    """e to minus the summed loss is the product of the conditionals of tokens 2 … T: T−1 factors a row."""
    assert (-loss(**example)).exp() == target_log_p(example).exp().prod()


@spec.holds("CE-5", kills=("perplexity", "mean_over_t", "mean_over_all_positions", "sum_for_mean"), rests_on=(conduct["form"],),
            given={**PLAIN, "reduction": "mean", "family": ("constant",)})
def uniform_logits_have_perplexity_v(loss: Subject, example: Example) -> None:
    """Equal logits over V ids give perplexity V, over the tokens that count."""
    assert loss(**example).exp() == float(example.dims["V"])


@spec.holds("CE-3", kills=("none_counted_gives_zero", "none_counted_gives_nan"), rests_on=(conduct["form"],),
            conventions={"all_ignored": ("nan", "zero")}, needs=("prompt_lengths",), given={**ROWS, "reduction": "mean"})
def no_counted_token_has_the_declared_outcome(loss: Subject, example: Example) -> None:
    """The mean where the prompt is the whole row is what was declared: NaN or 0."""
    d = example.dims
    whole = example.but(prompt_lengths=torch.full((d["B"],), d["T"]))
    usual = loss.values(**example)
    assert identical(loss.values(**whole), loss.exact(**whole).value, witness=bool((usual != 0) | usual.isnan()))


@spec.holds("CE-3", kills=("none_counted_not_refused",), rests_on=(conduct["form"],), conventions={"all_ignored": "refused"},
            needs=("prompt_lengths",), given={**ROWS, "reduction": "mean"})
def no_counted_token_is_refused(loss: Subject, example: Example) -> None:
    """The mean over no token is refused, as declared."""
    loss.refuses(**example.but(prompt_lengths=torch.full((example.dims["B"],), example.dims["T"])))


@spec.holds("SFT-1", kills=("first_response_token_left_out", "last_prompt_token_counts", "response_left_out", "prompt_counts",
                            "prompt_of_first_row"), rests_on=(conduct["form"],), needs=("prompt_lengths",),
            given={**PLAIN, "mask": "none", "reduction": "mean", "prompt_lengths": ("some", "equal"), "T": at_least(3)})
def response_alone_is_scored(loss: Subject, example: Example) -> None:
    """With prompts, the loss is the mean over the response, its first token (scored at the last prompt position) included."""
    assert loss(**example) == -target_log_p(example).mean()


@spec.holds("SFT-1", kills=("prompt_of_first_row", "shifted_after_flattening"), rests_on=(conduct["form"],), needs=("reduction",),
            given={**ROWS, "reduction": "sum", "B": at_least(2)})
def rows_add_up(loss: Subject, example: Example) -> None:
    """The summed loss of a batch is that of its rows given alone, added up."""
    total: Any = 0.0
    for row in range(example.dims["B"]):
        total = total + loss(**example.but(**{name: example[name][row:row + 1] for name in
                                              ("logits", "ids", "mask", "prompt_lengths") if name in example}))
    assert loss(**example) == total


@spec.holds("CE-3", kills=("mask_ignored", "mask_inverted", "mean_over_all_positions", "mask_not_shifted"),
            rests_on=(conduct["form"],),
            needs=("mask",), given={**PLAIN, "mask": "padding", "B": (1,), "reduction": "mean", "prompt_lengths": "none"})
def padding_is_the_same_as_a_shorter_row(loss: Subject, example: Example) -> None:
    """The loss of a padded row is that of the row cut to its length, within the bound."""
    length = example.integer("length", 2, example.dims["T"])
    padded = example.but(mask=torch.arange(example.dims["T"])[None] < length)
    cut = example.but(logits=example.logits[:, :length], ids=example.ids[:, :length]).without("mask")
    assert loss(**padded) == loss(**cut)


@spec.holds("LS-1", kills=("smoothing_ignored", "smoothing_over_all"), rests_on=(output_is_the_formula,),
            needs=("label_smoothing",),
            given={**ROWS, "reduction": "mean", "label_smoothing": (0.1, 0.3, 0.4), "prompt_lengths": "none"},
            dtypes=("float64", "float32", "float16"))
def smoothing_costs_the_gap_to_the_others(loss: Subject, example: Example) -> None:
    """Smoothed − plain loss is the moved mass times (log p of the next token − the others' mean log p)."""
    size = example.dims["V"]
    every = torch.log_softmax(example.logits[:, :-1].double(), -1)[example.counted]
    hit, epsilon = target_log_p(example), float(example.label_smoothing)
    mass = epsilon if loss.conventions["smoothing"] == "others" else epsilon * (size - 1) / size
    expected = mass * (hit - (every.sum(-1) - hit) / (size - 1)).mean()
    assert loss(**example) - loss(**example.but(label_smoothing=0.0)) == expected
