"""What must hold of `sampler(logits, *, seed, num_samples)`: GEN-5, GEN-8.

Counts of independent draws are binomial, so every test here is exact: the tail of the binomial at the probability, within the
bar that the implementation's own arithmetic may give it, that suits the count best. One decision covers many tests, each at its
share of the false-alarm rate. With 20,000 draws a probability that is 4 points off is found with near certainty.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from assay import registry
from assay.cases import Cases, Configuration, Example, draw_values, generator
from assay.contract.declaration import Declaration
from assay.errors import ExampleOverError
from assay.ledger import fact, statistic
from assay.numbers.bound import Bounded
from assay.properties import Specification
from assay.spec.chance import binomial, stats
from assay.spec.conduct import add_conduct
from assay.spec.margins import evaluated
from assay.subject import Subject

ALPHA = 1e-9
DRAWS = 20_000
FEWER = 4_000  # draws of each of ten seeds
PIECES = 16  # of a large vocabulary


class SamplerCases(Cases):
    """One row of V logits: even, uneven, far apart, with entries at −∞, and so large that their exponentials overflow."""

    kind = "sampler"
    dims = {"V": (5, 2, 3, 1, 4, 7, 16, 17)}
    flags = {"masked": (False, True, False), "shift": (0.0, 100.0, -100.0)}
    families = ("normal", "integers", "constant", "positive", "small")

    def adapt(self, configuration: Configuration, claims: Declaration) -> Configuration | None:
        return configuration

    def build(self, configuration: Configuration, dtype: torch.dtype) -> Example:
        size, seed = configuration.dims["V"], configuration.seed
        logits = draw_values(configuration.family, (size,), generator(seed, "logits"), torch.float64)
        logits = (logits + configuration.flags["shift"]).to(dtype)
        if configuration.flags["masked"] and size > 1:
            hidden = torch.rand(size, generator=generator(seed, "masked")) < 0.4
            hidden[seed % size] = False
            logits = logits.masked_fill(hidden, -math.inf)
        return Example(configuration, dtype, {"logits": logits, "seed": 1 + 7919 * seed, "num_samples": DRAWS})


def drawn(sampler: Subject, example: Example) -> torch.Tensor:
    """One call's ids, found to be 64-bit integers within the vocabulary; ends the example where they are not."""
    ids = sampler(**example)
    size = example.logits.shape[0]
    if not fact(ids.dtype == torch.int64, f"ids are {ids.dtype}", expected="int64", check="type of ids", decided=False):
        raise ExampleOverError("no ids")
    if not fact(
        bool(((ids >= 0) & (ids < size)).all()),
        "an id lies outside the vocabulary",
        got=str(int(ids.max())),
        expected=f"0 to {size - 1}",
        check="range of ids",
        decided=False,
    ):
        raise ExampleOverError("no ids")
    return ids


def probabilities(sampler: Subject, example: Example) -> Bounded:
    """The softmax with the bar of what the implementation's arithmetic may make of it."""
    found: Bounded = evaluated(sampler, registry.reference("sampler").PROBABILITIES, logits=example.logits)[0]
    return found


def frequencies_fit(sampler: Subject, example: Example, ids: torch.Tensor) -> None:
    """Every token's count is one that its probability explains."""
    likely, counts = probabilities(sampler, example), torch.bincount(ids, minlength=example.logits.shape[0]).tolist()
    low, high = (likely.value - likely.bar).tolist(), (likely.value + likely.bar).tolist()
    found = [binomial(count, len(ids), low[i], high[i]) for i, count in enumerate(counts)]
    worst = min(range(len(found)), key=found.__getitem__)
    assert statistic(
        min(1.0, found[worst] * len(found)),
        ALPHA,
        text=f"token {worst} is not drawn as often as its probability says",
        got=f"{counts[worst]} of {len(ids)}",
        expected=f"a share of {float(likely.value[worst]):.4g}",
    )


def agreement_fits(sampler: Subject, example: Example, first: torch.Tensor, second: torch.Tensor, what: str) -> None:
    """Two sets of independent draws agree as often as the probabilities say: Σ p²."""
    likely = probabilities(sampler, example)
    low = float((likely.value - likely.bar).clamp(0, 1).square().sum())
    high = float((likely.value + likely.bar).clamp(0, 1).square().sum())
    equal = int((first == second).sum())
    p_value = binomial(equal, len(first), low, high)
    fact(True, "", decided=high < 0.9, check="more than one token is likely")
    assert statistic(
        p_value,
        ALPHA,
        text=f"{what} are not independent",
        got=f"{equal} of {len(first)} agree",
        expected=f"a share of {low:.4g} to {high:.4g}",
    )


def impossible(example: Example, ids: torch.Tensor) -> bool:
    """Whether a token whose logit is −∞ was drawn."""
    return bool((example.logits[ids] == -math.inf).any())


def agree(sampler: Subject, example: Example) -> None:
    """No impossible token, and frequencies as the probabilities say."""
    ids = drawn(sampler, example)
    assert fact(not impossible(example, ids), "a token of probability 0 is drawn", check="support", decided=False)
    frequencies_fit(sampler, example, ids)


spec = Specification("sampler", SamplerCases())
conduct = add_conduct(spec, agree=agree, shown_by="tokens_come_with_their_frequencies")
SEVERAL: dict[str, Any] = {"V": lambda size: size > 1}


@spec.holds(
    "GEN-5",
    kills=(
        "last_token_ignored",
        "first_token_favoured",
        "temperature_slightly_off",
        "uniform",
        "greedy",
        "linear_in_logits",
        "index_one_too_high",
        "one_draw_repeated",
        "without_replacement",
        "falls_back_to_first",
    ),
    rests_on=(conduct["form"],),
    statistical=ALPHA,
    given=SEVERAL,
)
def tokens_come_with_their_frequencies(sampler: Subject, example: Example) -> None:
    """Each token is drawn as often as its softmax probability says."""
    frequencies_fit(sampler, example, drawn(sampler, example))


@spec.holds(
    "GEN-5",
    kills=("coarse_uniform_numbers", "last_token_ignored", "greedy"),
    rests_on=(conduct["form"],),
    statistical=ALPHA,
    dtypes=("float64", "float32"),
    given={"V": (16, 17), "masked": False, "shift": 0.0},
)
def rare_tokens_are_drawn(sampler: Subject, example: Example) -> None:
    """Tokens of probability 1/128 and less are drawn as often as they should be."""
    logits = torch.zeros_like(example.logits)
    logits[:-1] = -math.log(8.0)
    logits[-1] = math.log(8.0)
    rare = example.but(logits=logits[example.permutation("places", logits.shape[0])])
    frequencies_fit(sampler, rare, drawn(sampler, rare))


@spec.holds(
    "GEN-5",
    kills=("draws_in_pairs", "draws_sorted", "one_draw_repeated"),
    rests_on=(tokens_come_with_their_frequencies,),
    statistical=2 * ALPHA,
    given=SEVERAL,
)
def draws_do_not_depend_on_each_other(sampler: Subject, example: Example) -> None:
    """Neighbouring draws agree as often as independent ones do."""
    ids = drawn(sampler, example)
    for start in (0, 1):
        pairs = ids[start : start + 2 * ((len(ids) - start) // 2)].reshape(-1, 2)
        agreement_fits(sampler, example, pairs[:, 0], pairs[:, 1], "neighbouring draws")


@spec.holds(
    "GEN-5",
    kills=("seed_constant", "eight_bits_of_the_seed", "a_seed_for_each_draw"),
    rests_on=(tokens_come_with_their_frequencies,),
    statistical=6 * ALPHA,
    given=SEVERAL,
)
def another_seed_gives_other_draws(sampler: Subject, example: Example) -> None:
    """Two seeds, close or far, give draws that agree as often as independent ones do, also with their neighbours."""
    first, following = (drawn(sampler, example.but(seed=example.seed + step)) for step in (0, 1))
    pairs = [(first, following), (first[1:], following[:-1]), (first[:-1], following[1:])]
    pairs += [(first, drawn(sampler, example.but(seed=example.seed + far))) for far in (2, 256, 65536)]
    for one, other in pairs:
        agreement_fits(sampler, example, one, other, "draws of two seeds")


@spec.holds(
    "GEN-5",
    kills=("counts_without_chance",),
    rests_on=(another_seed_gives_other_draws,),
    statistical=ALPHA,
    given={"V": (5, 2, 3), "family": ("normal", "integers"), "masked": False},
    examples=3,
)
def counts_vary_from_seed_to_seed(sampler: Subject, example: Example) -> None:
    """A token's count varies from seed to seed as that of independent draws does: it is not always the expected one.

    That the counts of ten seeds all lie within 2 of each other has at most the probability (5 · the likeliest count's)⁹.
    """
    likely = probabilities(sampler, example)
    token = int((likely.value - 0.5).abs().argmin())
    low, high = (float((likely.value + sign * likely.bar)[token].clamp(0, 1)) for sign in (-1, 1))
    steadiest = max(_likeliest(FEWER, low), _likeliest(FEWER, high))
    seeds = range(example.seed, example.seed + 10)
    few = [drawn(sampler, example.but(seed=seed, num_samples=FEWER)) for seed in seeds]
    counts = [int((ids == token).sum()) for ids in few]
    level = max(counts) - min(counts) <= 2
    bound = min(1.0, (5 * steadiest) ** 9)
    fact(True, "", decided=bound < ALPHA, check="the token is drawn often, and not always")
    assert statistic(bound if level else 1.0, ALPHA, text="counts of ten seeds are all but the same",
                     got=f"{min(counts)} to {max(counts)} of {FEWER}", expected="counts that vary")


def _likeliest(trials: int, p: float) -> float:
    """The probability of the likeliest count."""
    return float(stats().binom.pmf(math.floor((trials + 1) * p), trials, p))


@spec.holds(
    "GEN-5",
    kills=("best_hundred_alone", "beyond_256_never_drawn"),
    rests_on=(tokens_come_with_their_frequencies,),
    statistical=2 * PIECES * ALPHA,
    dtypes=("float64", "float32"),
    given={"V": (300, 257, 1100), "family": ("normal", "constant"), "masked": False, "layout": "contiguous"},
    examples=2,
)
def many_tokens_come_with_their_frequencies(sampler: Subject, example: Example) -> None:
    """In vocabularies of hundreds of tokens each stretch of ids, and the likely and the rare ones, come as often as they should."""
    ids, likely = drawn(sampler, example), probabilities(sampler, example)
    counts = torch.bincount(ids, minlength=len(likely.value))
    low, high = likely.value - likely.bar, likely.value + likely.bar
    for order, what in ((torch.arange(len(counts)), "ids"), (likely.value.argsort(descending=True), "tokens by probability")):
        for place, piece in enumerate(order.tensor_split(PIECES)):
            count = int(counts[piece].sum())
            assert statistic(
                binomial(count, len(ids), float(low[piece].sum()), float(high[piece].sum())), ALPHA,
                text=f"part {place + 1} of {PIECES} of the {what} is not drawn as often as its probability says",
                got=f"{count} of {len(ids)}", expected=f"a share of {float(likely.value[piece].sum()):.4g}")


@spec.holds(
    "GEN-8",
    kills=("impossible_token_drawn", "index_one_too_high"),
    rests_on=(conduct["form"],),
    given={"masked": True, "V": (5, 7, 16, 17)},
)
def impossible_tokens_are_never_drawn(sampler: Subject, example: Example) -> None:
    """A token whose logit is −∞ is never drawn."""
    ids = drawn(sampler, example)
    assert fact(
        not impossible(example, ids),
        "a token of probability 0 is drawn",
        check="support",
        decided=bool((example.logits == -math.inf).any()),
    )


@spec.holds("GEN-8", kills=("seed_ignored",), rests_on=(conduct["form"],), given=SEVERAL)
def same_seed_gives_the_same_draws(sampler: Subject, example: Example) -> None:
    """The same logits and seed give the same draws, also after draws with another seed."""
    first = drawn(sampler, example)
    drawn(sampler, example.but(seed=example.seed + 1))
    assert fact(
        torch.equal(drawn(sampler, example), first),
        "two calls with one seed differ",
        check="draws",
        decided=bool((first != first[0]).any()),
    )


@spec.holds("GEN-5", kills=("narrow_ids", "one_sample_fewer"), given={"V": lambda size: size > 1})
def as_many_ids_as_asked(sampler: Subject, example: Example) -> None:
    """num_samples ids come back, as 64-bit integers."""
    for wanted in (1, 2, 7):
        ids = sampler(**example.but(num_samples=wanted))
        assert fact(ids.dtype == torch.int64, f"ids are {ids.dtype}", expected="int64", check="type of ids")


@spec.holds("CONDUCT", kills=("seed_of_zero_draws_anew",), conventions={"repeatability": "bitwise"}, rests_on=(conduct["form"],),
            examples=2, given={"V": (16, 17), "masked": False, "family": ("constant", "small")})
def seed_of_zero_is_a_seed(sampler: Subject, example: Example) -> None:
    """With seed 0, too, the same call draws the same tokens."""
    first, again = (drawn(sampler, example.but(seed=0)) for _ in range(2))
    assert fact(torch.equal(first, again), "the same call with seed 0 draws other tokens", check="drawn tokens",
                decided=len(first.unique()) > 1)
