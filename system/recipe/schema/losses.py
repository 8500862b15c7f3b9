"""The closed list of loss terms, and the choices of negatives."""

from typing import Annotated, Literal

from pydantic import Field

from data_tools.strict import Strict

Negatives = Literal[
    "all",
    "hardest",
    "random",
    "random_apart",
    "semi_hard",
    "text_hard",
    "text_easy",
    "audio_hard",
    "audio_easy",
]


class Ranking(Strict):
    """Contrastive ranking loss; `relax: cider` lowers the margin between clips whose captions resemble each other, as
    the recipe's `relevance` says.

    negatives: all of the batch, or one caption and one clip an item: the `hardest` (highest score), `random` ones,
    `random_apart` (never the caption and the clip of one item), the `semi_hard` (score closest to the matching pair's),
    or caption and clip of the one item whose captions (`text_`) or clip (`audio_`) resemble the item's most (`_hard`)
    or least (`_easy`).
    reduce: of all negatives, the sum or the mean of the hinges, or the hinge of the mean score.
    """

    kind: Literal["ranking"]
    weight: float = Field(gt=0)
    margin: float = Field(ge=0, le=2)
    relax: Literal["none", "cider"]
    negatives: Negatives = "all"
    reduce: Literal["sum", "mean", "hinge_of_mean"] = "sum"


class WeightedTriplet(Strict):
    """Maximum polynomial loss: polynomials of the matching pair's score and of the hardest negative's.

    positive, negative: coefficients, that of the constant first. clamp: `sum`, the paper's, [positive + negative]_+
    with the hardest negative of all; `each`, the public code's, [positive]_+ + [negative]_+ with the hardest of the
    negatives that violate the margin, and nothing where none does.
    """

    kind: Literal["weighted_triplet"]
    weight: float = Field(gt=0)
    margin: float = Field(ge=0, le=2)  # read by clamp `each`
    positive: Annotated[list[float], Field(min_length=1)]
    negative: Annotated[list[float], Field(min_length=1)]
    clamp: Literal["sum", "each"]


class Matching(Strict):
    """Matching similarity: minus the mean score of the matching pairs."""

    kind: Literal["matching"]
    weight: float = Field(gt=0)


class NtXent(Strict):
    """Normalised temperature-scaled cross entropy: each clip's caption among all of the batch, and the other way.

    same_clip: other items of the batch that show the same audio are left out, or are negatives as in public code.
    directions: the mean of both, as in public code, or their sum, as the paper writes it.
    """

    kind: Literal["nt_xent"]
    weight: float = Field(gt=0)
    temperature: float = Field(gt=0, le=1)
    same_clip: Literal["masked", "negatives"] = "masked"
    directions: Literal["mean", "sum"] = "mean"


Loss = Annotated[Ranking | WeightedTriplet | Matching | NtXent, Field(discriminator="kind")]
