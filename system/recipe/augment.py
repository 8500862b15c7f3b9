"""What a stage may change of its training data: its captions. Nothing here imports torch."""

from typing import Annotated

from pydantic import Field

from data_tools.strict import Strict

Probability = Annotated[float, Field(gt=0, le=1)]


class Captions(Strict):
    """Every caption of an item is replaced, with this probability, by one of its alternatives, drawn evenly.

    The file knows a caption by its clip (id, or file name) and its index among the clip's captions, from 0; a caption
    has any number of lines. It serves GPT's variations, back-translations and paraphrases alike; the kit calls no
    language model. Relax factors (`cider`) are of the replaced captions. Teachers know a caption by its index: they
    judge an alternative as the original caption. Source: SALSA (2024), with five of GPT's variations a caption.
    """

    file: str  # of alternatives (.csv or .jsonl): clip, caption, alternative
    probability: Probability  # that a caption is replaced


class Augment(Strict):
    """Draws are a function of seed, stage and step, and alter none of clips and captions. Validation and ranking are of
    the data as they are."""

    captions: Captions | None = None  # replaced by alternatives

    def files(self) -> list[str]:
        """All that it reads."""
        return [self.captions.file] if self.captions else []

    def in_words(self) -> str:
        """For a plan, one line."""
        said = []
        if self.captions:
            said.append(f"{self.captions.probability:.0%} of captions replaced by those of {self.captions.file}")
        return "; ".join(said) or "nothing"
