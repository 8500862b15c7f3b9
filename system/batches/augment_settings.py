"""Settings of random changes.

Nothing here imports torch.
"""

from typing import Annotated

from pydantic import Field, model_validator

from data_tools.settings import Strict, mistakes

Probability = Annotated[float, Field(gt=0, le=1)]


class Captions(Strict):
    """Replacement of captions: `probability` is the chance that a caption is replaced by one of its alternatives.

    All alternatives have the same probability. A line of the file identifies a caption by its clip (id or file name)
    and its index among the clip's captions, from 0; a caption may have any number of lines. Alternatives may be GPT's
    variations, back-translations or paraphrases; the kit calls no language model. Margin factors (`relax: cider`) use
    the new captions. Teachers (trained models whose scores a loss imitates) identify a caption by its index and use its
    original text. Source: SALSA (2024), with five GPT variations per caption.
    """

    file: str  # file of alternatives (.csv or .jsonl): clip, caption, alternative
    probability: Probability  # that a caption is replaced


class Edits(Strict):
    """Random edits of words: `probability` is the chance that a caption is edited, in one of four ways.

    The four ways have equal chances. n words become synonyms, n words are deleted, or n pairs of words are swapped. In
    the fourth way, n synonyms of the caption's words are inserted at random positions. n is drawn from Binomial(words,
    rate). The edited caption has lower-case words without punctuation, even if n is 0. At least one word stays. Words
    without a synonym are not replaced, and nothing is inserted for them. Teachers (trained models whose scores a loss
    imitates) use the original caption. A frozen text encoder embeds every edited caption and stores the embedding in
    its bank. Source: SALSA (2024), after "EDA: Easy Data Augmentation" (2019).
    Deviations: one rate for all four ways (SALSA's scripts: 0.3 for synonyms, 0.2 for deletions); synonyms from a file
    instead of WordNet; apostrophes and hyphens inside a word stay.
    """

    probability: Probability  # that a caption is edited
    rate: Annotated[float, Field(gt=0, le=1)]  # share of the words that one edit changes
    synonyms: str | None  # file (.csv or .jsonl): word, synonym; null: only deletions and swaps, of equal chance


class Mix(Strict):
    """Mixing of clips: `probability` is the chance that another training clip is added to an item's clip.

    All other clips have the same probability. The drawn clip is scaled so that the item's clip has r dB more power. r
    is a random number, uniform between low_db and high_db. The factor is g = sqrt(E / (10^(r/10) E_other)), with E the
    mean square of a clip's samples. It is 1 if one of the clips is silent. The shorter clip starts at a random position
    in the longer clip. A clip longer than the audio encoder's `max_seconds` is first cut to a random part, for which E
    is computed. Thus a mixture is never longer than `max_seconds`, and no part of the item's clip is lost when the
    clips are added. A sum beyond full scale is scaled down as a whole.

    Captions: each caption of the item is joined with a caption of the other clip. With `merged`, the mixture has the
    caption of a line of the file that names both clips, in any order; clips without such a line are not mixed. Losses
    treat the mixture as a third clip: its captions match neither of the two clips, and all mixtures of the same two
    clips count as one clip. Mixing is not possible in a stage with teachers, nor with experts whose frames are stored.

    Source: the public captioner of Wu et al. (2023; r from -5 to 5 dB, merged captions), PairMix and MixGen (joined
    captions). Deviations: Wu et al. always scale the shorter clip by g, so that half of their mixtures are not at r
    dB. They compute E from overlapping frames, so that both ends of a clip weigh less. PairMix weights the waves.
    """

    probability: Probability  # that an item is mixed
    low_db: float = Field(ge=-60, le=60)  # smallest r: level of the item's clip above the other clip
    high_db: float = Field(ge=-60, le=60)  # largest r
    joined_by: str | None = None  # text between both captions, such as "and"; it may be empty
    merged: str | None = None  # file of captions of two clips (.csv or .jsonl): clip, other, caption; mixes these pairs

    @model_validator(mode="after")
    def _require_consistent_settings(self) -> "Mix":
        """Raise an error if the settings for mixing clips do not fit each other."""
        found = []
        if self.low_db > self.high_db:
            found.append((("low_db",), f"low_db is greater than high_db, {self.high_db:g}; exchange the two values"))
        if (self.joined_by is None) == (self.merged is None):
            found.append((("joined_by",), "set either joined_by or merged, so that mixtures have captions"))
        if error := mistakes(found):
            raise error
        return self


class Augment(Strict):
    """Random changes of training data, in this order: captions, mix, edits. Validation and ranking use unchanged data.

    Random numbers depend on seed, stage and step. Every kind of change has separate random numbers. If a recipe adds
    one kind, the other kinds and the choice of clips and captions stay the same.
    """

    captions: Captions | None = None  # replace captions by alternatives
    edits: Edits | None = None  # edit words of captions
    mix: Mix | None = None  # mix two clips

    def files(self) -> list[str]:
        """Return the paths of the files that the augmentation reads."""
        found = (
            self.captions and self.captions.file,
            self.edits and self.edits.synonyms,
            self.mix and self.mix.merged,
        )
        return [name for name in found if name]

    def describe(self) -> str:
        """Return a description of the random changes in one line, for the plan of `check`."""
        said = []
        if self.captions:
            said.append(f"{self.captions.probability:.0%} of captions replaced by texts from {self.captions.file}")
        if self.edits:
            with_synonyms = f"with synonyms of {self.edits.synonyms}" if self.edits.synonyms else "without synonyms"
            said.append(
                f"{self.edits.probability:.0%} of captions edited, {100 * self.edits.rate:g}% of their words, "
                f"{with_synonyms}"
            )
        if self.mix:
            from_file = f"with captions of {self.mix.merged}"
            with_captions = from_file if self.mix.merged else f"with captions joined by {self.mix.joined_by!r}"
            said.append(
                f"{self.mix.probability:.0%} of items mixed with another clip at {self.mix.low_db:g} to "
                f"{self.mix.high_db:g} dB, {with_captions}"
            )
        return "; ".join(said) or "nothing"
