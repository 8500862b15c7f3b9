"""Contents of data sources.

The clips of a data source's manifest for a plan, or the sizes that the recipe expects.
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
    """The clips of a source's manifest, or, if it is missing, the recipe's expectations.

    moments: The moments of these clips; None if the source has no file of moments, or the file is missing. fault: Why
    its files cannot be used together; "" if they can.
    """

    clips: Sequence[Clip]
    expected: schema.Expected | None = None
    moments: Sequence[Moment] | None = None
    fault: str = ""

    @cached_property
    def _facts(self) -> tuple["array[float]", "array[int]"]:
        """Length in seconds, and number of captions, of every clip.

        Seconds are NaN if they are not known.
        """
        facts = [(math.nan if clip.seconds is None else clip.seconds, len(clip.captions)) for clip in self.clips]
        return array("d", (seconds for seconds, _ in facts)), array("l", (captions for _, captions in facts))

    @cached_property
    def _lengths(self) -> np.ndarray:
        """Known lengths of clips in seconds, ascending, without lengths of 0 s."""
        seconds = np.array(self._facts[0])
        return np.sort(seconds[seconds > 0])

    @property
    def silent(self) -> int:
        """Number of clips that have no audio file."""
        return sum(map(math.isnan, self._facts[0]))

    @property
    def captions(self) -> int:
        """Number of captions of the data source."""
        return sum(self._facts[1])

    @property
    def hours(self) -> float:
        """Hours of audio, found or expected."""
        if not self.clips:
            return self.expected.hours if self.expected else 0.0
        return math.fsum(self._lengths) / 3600

    @property
    def count(self) -> int:
        """Number of clips with captions, found or expected."""
        return self.items("clip") if self.clips or not self.expected else self.expected.clips

    @property
    def mean_seconds(self) -> float:
        """Mean length of a clip in seconds: known, expected, or assumed."""
        known = self._lengths
        return math.fsum(known) / len(known) if len(known) else 3600 * self.hours / self.count or ASSUMED_SECONDS

    @property
    def longest_seconds(self) -> float:
        """Length of a long clip: the 99th percentile, or twice the expected mean, in seconds."""
        known = self._lengths
        return float(known[int(0.99 * (len(known) - 1))]) if len(known) else 2 * self.mean_seconds

    @property
    def captions_per_clip(self) -> float:
        """Mean number of captions of a clip."""
        captions = self.expected.captions if self.expected and not self.clips else self.captions
        return captions / self.count

    def expected_items(self, unit: str) -> int:
        """Return the number of training items of the source, found or expected.

        Returns 0 if neither number is known.
        """
        if self.clips or not self.expected or unit == "moment":
            return self.items(unit)
        return self.expected.captions if unit == "pair" else self.expected.clips

    def items(self, unit: str) -> int:
        """Return the number of training items of the source; 0 if its manifest is missing."""
        if unit == "moment":
            return len(self.moments or ())
        return self.captions if unit == "pair" else sum(map(bool, self._facts[1]))
