"""Contents of data sources.

Clips of each data source, from its manifest. If the manifest is missing, a plan uses the sizes that the recipe expects.
"""

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from data_tools.manifest import Clip
from data_tools.moments import Moment
from system.recipe import schema

ASSUMED_SECONDS = 20.0  # length of a clip, if it is not known


@dataclass(frozen=True)
class Content:
    """Clips of a data source's manifest, or only the sizes that the recipe expects if the manifest is missing.

    moments: Moments of these clips; None if the source has no moments file, or the file is missing. fault: Reason why
    the source's split or moments do not fit its manifest; "" if they fit.
    """

    clips: Sequence[Clip]
    expected: schema.Expected | None = None
    moments: Sequence[Moment] | None = None
    fault: str = ""

    @cached_property
    def _lengths_and_captions(self) -> tuple["array[float]", "array[int]"]:
        """Two arrays with a value per clip: its length in seconds, and its number of captions.

        A length is NaN if it is not known.
        """
        facts = [(math.nan if clip.seconds is None else clip.seconds, len(clip.captions)) for clip in self.clips]
        return array("d", (seconds for seconds, _ in facts)), array("l", (captions for _, captions in facts))

    @cached_property
    def _lengths(self) -> np.ndarray:
        """Known lengths of clips in seconds, ascending, without lengths of 0 s."""
        seconds = np.array(self._lengths_and_captions[0])
        return np.sort(seconds[seconds > 0])

    @property
    def without_length(self) -> int:
        """Number of clips whose length is not known, for example because their audio file is missing."""
        return sum(map(math.isnan, self._lengths_and_captions[0]))

    @property
    def captions(self) -> int:
        """Number of captions of the data source; 0 if its manifest is missing."""
        return sum(self._lengths_and_captions[1])

    @property
    def hours(self) -> float:
        """Hours of audio of the data source; if its manifest is missing, the hours that the recipe expects."""
        if not self.clips:
            return self.expected.hours if self.expected else 0.0
        return math.fsum(self._lengths) / 3600

    @property
    def count(self) -> int:
        """Number of clips with captions; if the manifest is missing, the number of clips that the recipe expects."""
        return self.items("clip") if self.clips or not self.expected else self.expected.clips

    @property
    def mean_seconds(self) -> float:
        """Mean length of a clip in seconds: from the manifest, else from the recipe, else an assumed length."""
        known = self._lengths
        return math.fsum(known) / len(known) if len(known) else 3600 * self.hours / self.count or ASSUMED_SECONDS

    @property
    def longest_seconds(self) -> float:
        """Length of a long clip in seconds: the 99th percentile, or twice the mean if no length is known."""
        known = self._lengths
        return float(known[int(0.99 * (len(known) - 1))]) if len(known) else 2 * self.mean_seconds

    @property
    def captions_per_clip(self) -> float:
        """Mean number of captions of a clip; if the manifest is missing, the mean that the recipe expects."""
        captions = self.expected.captions if self.expected and not self.clips else self.captions
        return captions / self.count

    def expected_item_count(self, unit: str) -> int:
        """Return the number of the data source's training items, by its manifest or, without it, by the recipe.

        The result is 0 if the manifest is missing and the recipe states no number.
        unit: Kind of training item: pair, clip or moment.
        """
        if self.clips or not self.expected or unit == "moment":
            return self.items(unit)
        return self.expected.captions if unit == "pair" else self.expected.clips

    def items(self, unit: str) -> int:
        """Return the number of training items (pairs, clips or moments) of the data source; 0 without its manifest."""
        if unit == "moment":
            return len(self.moments or ())
        return self.captions if unit == "pair" else sum(map(bool, self._lengths_and_captions[1]))
