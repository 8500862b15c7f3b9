"""What a stage may change of its training data at random. Nothing here imports torch."""

from typing import Annotated

from pydantic import Field, model_validator

from data_tools.documents.strict import Strict, mistakes

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


class Mix(Strict):
    """An item becomes two clips, with this probability: another training clip, drawn evenly, is added to it.

    The other clip is scaled so that the item's own has r dB more power, r drawn evenly from low_db to high_db: by g =
    sqrt(E / (10^(r/10) E_other)), E the mean square of a clip's samples, and 1 where one of both is silent. The shorter
    lies at a random place in the longer. Of a clip longer than the audio encoder's `max_seconds` a random part is taken
    first, and E is the part's, so that a mixture is never longer and all of the item's own part is in it. Where the sum
    is beyond full scale all of it is made softer. Each caption is joined with one of the other clip's, or, with
    `merged`, the caption is that of a line of the file which names both clips, either way round; clips that no line
    names are not mixed. Losses know the mixture as a third clip: its captions match neither of both clips, and mixtures
    of the same two clips are one. Not for a stage that learns from teachers, nor with experts whose frames are stored.
    Source: the public captioner of Wu et al. (2023; r from -5 to 5 dB, merged captions), PairMix and MixGen (joined
    captions). Deviations: the original scales the shorter clip by g, whichever it is, so that half of its mixtures are
    not at r dB; its E is of overlapping frames, in which the ends weigh less; PairMix weighs the waves.
    """

    probability: Probability  # that an item is mixed
    low_db: float = Field(ge=-60, le=60)  # the least r: by how much the item's own clip is stronger
    high_db: float = Field(ge=-60, le=60)  # the largest r
    joined_by: str | None = None  # what stands between both captions, such as and; it may be empty
    merged: str | None = None  # file of captions of two clips (.csv or .jsonl): clip, other, caption; mixes these pairs

    @model_validator(mode="after")
    def _fits(self) -> "Mix":
        found = []
        if self.low_db > self.high_db:
            found.append((("low_db",), f"is above high_db, {self.high_db:g}; exchange them"))
        if (self.joined_by is None) == (self.merged is None):
            found.append((("joined_by",), "say joined_by or merged, one of both: where captions come from"))
        if error := mistakes(found):
            raise error
        return self


class Augment(Strict):
    """Draws are a function of seed, stage and step, each kind's by itself: one kind alters no draw of another, nor of
    clips and captions. Validation and ranking are of the data as they are. In this order: captions, mix, edits."""

    captions: Captions | None = None  # replaced by alternatives
    edits: Edits | None = None  # of words
    mix: Mix | None = None  # of two clips

    def files(self) -> list[str]:
        """All that it reads."""
        found = (
            self.captions and self.captions.file,
            self.edits and self.edits.synonyms,
            self.mix and self.mix.merged,
        )
        return [name for name in found if name]

    def in_words(self) -> str:
        """For a plan, one line."""
        said = []
        if self.captions:
            said.append(f"{self.captions.probability:.0%} of captions replaced by those of {self.captions.file}")
        if self.edits:
            words = f"synonyms of {self.edits.synonyms}" if self.edits.synonyms else "no synonyms"
            said.append(f"{self.edits.probability:.0%} of captions edited at a rate of {self.edits.rate:g}, {words}")
        if self.mix:
            how = f"captions of {self.mix.merged}" if self.mix.merged else f"captions joined by {self.mix.joined_by!r}"
            levels = f"{self.mix.low_db:g} to {self.mix.high_db:g} dB"
            said.append(f"{self.mix.probability:.0%} of items mixed with another clip at {levels}, {how}")
        return "; ".join(said) or "nothing"
