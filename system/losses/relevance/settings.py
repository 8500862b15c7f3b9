"""What a recipe says of the relevance between captions. Never imports torch."""

from typing import Annotated, Literal

from pydantic import Field

from data_tools.strict import Strict


class RelaxPoint(Strict):
    """r(c) at a percentile of the corpus's scores."""

    percentile: float = Field(ge=0, le=100)
    factor: float = Field(ge=0, le=1)


class Cider(Strict):
    """CIDEr-D between captions, and the relax function that `relax: cider` of a ranking loss takes from it.

    Document frequencies and percentiles come from one corpus for all stages. Source: "Take it easy" (2022), section 4.
    """

    kind: Literal["cider"]
    corpus: Annotated[list[str], Field(min_length=1)]  # data sources whose captions are counted
    documents: Literal["caption", "clip"]  # what an n-gram's document frequency counts: captions, or clips
    tokenizer: Literal["regex", "ptb"]  # ptb needs Java
    pairs: Literal["all", "other_clips"]  # the ordered pairs the percentiles are of: all, or without those of one clip
    of_clips: Literal["mean", "max", "symmetric"]  # c_ij of clips with several captions
    relax: Annotated[list[RelaxPoint], Field(min_length=1)]  # percentiles rising, factors not
