"""Why scores are scaled: ATT-3, ATT-4, ATT-6, as statistical tests on the implementation's own weights.

Scores are not seen; the log-ratio of two weights is. For given queries and keys of iid standard normal components,
log(A₀/A₁) = q·(k₀−k₁)·scale is exactly normal with variance 2·|q|²·scale², so that the sum of squares, standardised by |q|, is
exactly chi-squared. Sample sizes give each test a power above 1 − 10⁻⁹ against a variance that is off by 20 %.
"""
from __future__ import annotations

import math

import torch

from assay.cases import Example
from assay.ledger import fact, statistic
from assay.spec import chance
from assay.spec.attention import PLAIN, conduct, spec
from assay.subject import Subject

FALSE_ALARM = 1e-10  # of one decision
SAMPLES = 8192
ONE = {**PLAIN, "softcap": None, "H": (1,), "G": (1,), "B": (1,), "Tq": (1,), "Tk": (2,), "family": ("normal",)}


def log_ratios(attention: Subject, example: Example, width: int, scale: float | None) -> tuple[torch.Tensor, torch.Tensor]:
    """log(A₀/A₁) for SAMPLES queries of two keys each, one a batch entry, and the norms of the queries."""
    source = example.generator(f"scores {width}")
    q = torch.randn(SAMPLES, 1, 1, width, generator=source, dtype=torch.float64).to(example.dtype)
    k = torch.randn(SAMPLES, 1, 2, width, generator=source, dtype=torch.float64).to(example.dtype)
    v = torch.eye(2, width, dtype=example.dtype).expand(SAMPLES, 1, 2, width).clone()  # as wide as keys: some kernels need it
    options = {} if scale is None else {"scale": scale}
    weights = attention.values(q=q, k=k, v=v, **options)[:, 0, 0]
    return torch.log(weights[:, 0] / weights[:, 1]), q.double().norm(dim=-1).flatten()


def variance_is(attention: Subject, example: Example, width: int, scale: float | None, expected: float) -> None:
    """Test that the log-ratios have `expected` times the variance of q·(k₀−k₁) for the queries at hand."""
    ratios, norms = log_ratios(attention, example, width, scale)
    fact(bool(ratios.isfinite().all()), "a weight is 0, negative or NaN where none may be", check="log-ratios are finite",
         decided=False)
    squares = float(((ratios / (norms * math.sqrt(2.0) * expected)) ** 2).sum())
    statistic(chance.chi_square(squares, SAMPLES), FALSE_ALARM, text=f"variance of the scores at D={width}",
              got=f"{squares / SAMPLES:.4g} times", expected="1 times what the scale gives")


@spec.holds("ATT-3", "E4", "E31", kills=("scale_one_over_d", "no_scale"), rests_on=(conduct["form"],),
            given={**ONE, "scale": None, "D": (2, 4, 16, 64)}, dtypes=("float32", "float64"), statistical=FALSE_ALARM, examples=3)
def scaled_scores_have_variance_one(attention: Subject, example: Example) -> None:
    """With independent queries and keys of mean 0 and variance 1, scaled scores have variance 1: log(A₀/A₁) has variance 2."""
    width = example.dims["D"]
    variance_is(attention, example, width, None, 1 / math.sqrt(width))


@spec.holds("ATT-4", kills=("scale_argument_ignored", "cosine_scores"), rests_on=(conduct["form"],), needs=("scale",),
            given={**ONE, "scale": None, "D": (2, 4, 16)}, dtypes=("float32", "float64"), statistical=FALSE_ALARM, examples=3)
def unscaled_scores_have_variance_in_proportion_to_width(attention: Subject, example: Example) -> None:
    """With scale 1 the variance of a score is D: proportional to the key width, log–log slope 1."""
    for width in (example.dims["D"], 2 * example.dims["D"]):
        if attention.declaration.allows("D", width):
            variance_is(attention, example, width, 1.0, 1.0)


@spec.holds("ATT-6", "E29", kills=("no_scale", "scale_argument_ignored"), rests_on=(scaled_scores_have_variance_one,),
            needs=("scale",), given={**ONE, "scale": None, "D": (64,)}, dtypes=("float32",), statistical=FALSE_ALARM, examples=3)
def without_the_scale_the_softmax_saturates(attention: Subject, example: Example) -> None:
    """As D grows, unscaled weights collapse to one key (median of 1 − Σ A²); scaled ones stay as spread as at small D.

    Mann–Whitney tests between samples at two widths: scaled, the two do not differ; unscaled, the wide one is far smaller.
    """
    wide = example.dims["D"]
    spread = {(width, scale): _spread(attention, example, width, scale) for width in (16, wide) for scale in (None, 1.0)}
    level = chance.mann_whitney(spread[16, None], spread[wide, None])
    statistic(level, FALSE_ALARM, text="spread of scaled weights at small and large D")
    falls = chance.mann_whitney(spread[16, 1.0], spread[wide, 1.0], alternative="greater")
    fact(falls < FALSE_ALARM, f"unscaled weights do not saturate as D grows (p = {falls:.3g})",
         check="unscaled weights saturate")


def _spread(attention: Subject, example: Example, width: int, scale: float | None) -> torch.Tensor:
    """1 − Σ A² for 512 queries of two keys."""
    ratios = log_ratios(attention, example, width, scale)[0][:512]
    share = torch.sigmoid(ratios)
    return 1 - share**2 - (1 - share) ** 2
