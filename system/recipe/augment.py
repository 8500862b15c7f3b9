"""What a stage may change of its training data at random. Nothing here imports torch."""

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


class Edits(Strict):
    """Every caption is edited, with this probability, in one of four ways of equal chance: n of its words become
    synonyms, n are deleted, n pairs of words are swapped, or n synonyms of its words are inserted anywhere.

    n is drawn from Binomial(words, rate). The edited caption has lower-case words without punctuation, even if n is 0;
    at least one word stays. Words without a synonym are not replaced, and nothing is inserted for them. Teachers judge
    it as the original caption. A frozen text encoder embeds every edited caption, and keeps that in its bank. Source:
    SALSA (2024), after EDA. Deviations: one rate for all four ways (its scripts: 0.3 for synonyms, 0.2 for deletions);
    synonyms of a file instead of WordNet's; apostrophes and hyphens inside a word stay.
    """

    probability: Probability  # that a caption is edited
    rate: Annotated[float, Field(gt=0, le=1)]  # of the words that one edit changes
    synonyms: str | None  # file (.csv or .jsonl): word, synonym; null: deletions and swaps alone, of equal chance


class Augment(Strict):
    """Draws are a function of seed, stage and step, each kind's by itself: one kind alters no draw of another, nor of
    clips and captions. Validation and ranking are of the data as they are. In this order: captions, edits."""

    captions: Captions | None = None  # replaced by alternatives
    edits: Edits | None = None  # of words

    def files(self) -> list[str]:
        """All that it reads."""
        found = (self.captions and self.captions.file, self.edits and self.edits.synonyms)
        return [name for name in found if name]

    def in_words(self) -> str:
        """For a plan, one line."""
        said = []
        if self.captions:
            said.append(f"{self.captions.probability:.0%} of captions replaced by those of {self.captions.file}")
        if self.edits:
            words = f"synonyms of {self.edits.synonyms}" if self.edits.synonyms else "no synonyms"
            said.append(f"{self.edits.probability:.0%} of captions edited at a rate of {self.edits.rate:g}, {words}")
        return "; ".join(said) or "nothing"
