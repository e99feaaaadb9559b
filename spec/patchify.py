"""What must hold of `patchify(image, *, patch_size)`: VIT-1."""
from __future__ import annotations

import torch

from assay.cases import Cases, Configuration, Example, draw_values, generator
from assay.contract.declaration import Declaration
from assay.ledger import identical
from assay.properties import Specification
from assay.spec.conduct import add_conduct
from assay.subject import Subject


class PatchifyCases(Cases):
    """Images wide, high and square, grids whose number of patches is a square though they are not, patches of one pixel.

    No batch of 0: einops raises where a pattern splits an axis of it, and torch's pixel_unshuffle gives the image back as it is
    (reports/findings/pixel_unshuffle_empty.md), so that its outcome is nobody's to rely on.
    """

    kind = "patchify"
    dims = {"B": (1, 2, 3), "Ci": (2, 1, 3, 4), "rows": (2, 1, 3, 4, 5), "columns": (3, 1, 2, 4, 9), "P": (2, 1, 3, 4)}
    families = ("integers", "normal", "positive", "heavy", "small")

    def adapt(self, configuration: Configuration, claims: Declaration) -> Configuration | None:
        d = configuration.dims
        if not (claims.allows("Hi", d["rows"] * d["P"]) and claims.allows("Wi", d["columns"] * d["P"])
                and claims.allows("patch_size", d["P"])):
            return None
        return configuration

    def build(self, configuration: Configuration, dtype: torch.dtype) -> Example:
        d = configuration.dims
        shape = (d["B"], d["Ci"], d["rows"] * d["P"], d["columns"] * d["P"])
        image = draw_values(configuration.family, shape, generator(configuration.seed, "image"), dtype)
        return Example(configuration, dtype, {"image": image, "patch_size": d["P"]})


spec = Specification("patchify", PatchifyCases())
conduct = add_conduct(spec, shown_by="patches_are_the_formula")


@spec.holds("VIT-1", kills=(
    "grid_laid_out_by_columns", "height_and_width_swapped", "grid_assumed_square", "channels_first", "pixels_transposed",
    "plain_reshape", "patches_reversed", "rows_upside_down", "batch_mixed", "normalised", "through_half"),
    rests_on=(conduct["form"],))
def patches_are_the_formula(patchify: Subject, example: Example) -> None:
    """Patches are numbered row by row, each flattened as (row, column, channel), pixels unchanged."""
    assert patchify(**example) == patchify.exact(**example)


@spec.holds("VIT-1", kills=("normalised", "through_half"), rests_on=(conduct["form"],))
def every_pixel_comes_once(patchify: Subject, example: Example) -> None:
    """Each image's patches hold its pixels, every one once and none besides, bit for bit."""
    out = patchify(**example).value.flatten(1)
    pixels = example.image.double().flatten(1)
    assert identical(out.sort(-1).values, pixels.sort(-1).values, witness=bool((pixels != 0).any()))


@spec.holds("VIT-1", kills=("grid_laid_out_by_columns", "channels_first", "pixels_transposed", "plain_reshape",
                            "height_and_width_swapped", "grid_assumed_square"),
            rests_on=(conduct["form"],), given={"P": (2, 3, 4)})
def a_pixel_tells_its_place(patchify: Subject, example: Example) -> None:
    """Images that hold each pixel's row, column and channel show where it went: patch i·(Wi/P) + j, entry (r·P + c)·Ci + k."""
    batch, channels, height, width = example.image.shape
    size = example.patch_size
    n = torch.arange((height // size) * (width // size))[:, None]
    e = torch.arange(size * size * channels)[None]
    down = n // (width // size) * size + e // channels // size
    right = n % (width // size) * size + e // channels % size
    for axis, want in ((1, (e % channels).expand(down.shape)), (2, down), (3, right)):
        places = torch.arange(example.image.shape[axis]).to(example.dtype)
        shape = [-1 if one == axis else 1 for one in range(4)]
        image = places.reshape(shape).expand(batch, channels, height, width).contiguous()
        out = patchify(**example.but(image=image)).value
        assert identical(out, want.double().expand(out.shape), witness=bool((out != 0).any()))


@spec.holds("VIT-1", kills=("channels_first", "pixels_transposed", "patches_reversed", "rows_upside_down", "batch_mixed"),
            rests_on=(conduct["form"],))
def with_a_linear_map_it_is_a_convolution(patchify: Subject, example: Example) -> None:
    """Patches times a matrix are the convolution of stride P with its rows as kernels."""
    channels, size = example.dims["Ci"], example.patch_size
    kernels = example.values("kernels", 3, size, size, channels, family="integers").double()
    convolved = torch.nn.functional.conv2d(example.image.double(), kernels.permute(0, 3, 1, 2), stride=size)
    assert patchify(**example) @ kernels.flatten(1).T == convolved.flatten(2).transpose(1, 2)


@spec.holds("VIT-1", kills=("rest_cropped", "rest_padded"), rests_on=(conduct["form"],), given={"P": (2, 3, 4)})
def sizes_that_do_not_divide_are_refused(patchify: Subject, example: Example) -> None:
    """An image whose height or width is no multiple of the patch is refused."""
    assert patchify.refuses(**example.but(image=example.image[..., :-1].contiguous()))
    assert patchify.refuses(**example.but(image=example.image[..., :-1, :].contiguous()))


@spec.holds("VIT-1", kills=("no_gradient", "gradient_left_in_patches"), rests_on=(patches_are_the_formula,), gradient=True)
def gradient_goes_back_to_the_pixel(patchify: Subject, example: Example) -> None:
    """Every pixel gets the upstream gradient of the entry that it went to."""
    assert patchify.gradients(**example)["image"] == patchify.exact_gradients(**example)["image"]
