"""Answers of the simulated API.

Answers requests as the API does: searches with filters and pages over the invented sounds, and their audio.

Freesound API v2, https://freesound.org/docs/api/resources_apiv2.html; as of 2026.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlencode

import numpy as np

from data_tools.audio import encoded
from data_tools.freesound.sounds import PAGE_SIZE
from data_tools.sandbox.corpus import Catalogue, Numbers
from data_tools.sandbox.filters import FilterError, UnsupportedError, matching_sounds
from data_tools.scenes.compose import Event, render
from data_tools.scenes.synth import SAMPLE_RATE, Samples

DEFAULT_PAGE_SIZE = 15
PREVIEW_RATE = 44_100
_DEFAULT_FIELDS = "id,name,tags,username,license"
HINT = "(please check that your filter syntax and field names are correct)"
DOWN = (
    "Failed to connect to server at http://search:8983/solr/freesound, are you sure that URL is correct?",
    "Solr responded with an error (HTTP 503): [Reason: Service Unavailable]",
)
_QUALITY: dict[str, Any] = {"mp3": {"bitrate_mode": "CONSTANT", "compression_level": 0.6}}  # 160 kbit/s
_FORMATS = {"mp3": ("MP3", "MPEG_LAYER_III"), "ogg": ("OGG", "VORBIS"), "wav": ("WAV", "PCM_16")}


class Reply(NamedTuple):
    """An answer: its HTTP status, and its JSON content."""

    status: int
    content: dict[str, Any]


class PoisonError(Exception):
    """A page with a sound that the server cannot describe: an HTML page of status 500."""


class Change(NamedTuple):
    """Change of an invented sound: from the request with number `request` on, it is listed (`there`) or not."""

    request: int
    number: int
    there: bool


class Answers:
    """Answers to searches and audio requests, about invented sounds.

    Args:
        corpus: The invented sounds.
        nulls: Share of sounds that a search always returns as null.
        changes: Sounds that appear or disappear, sorted by the number of the request at which this happens.
        poison: Share of sounds that make every page with them fail.

    Attributes:
        seen: Share of sounds that a search can find: the earliest ones. Below 1, a rebuild of the search index is
            simulated.
        cdn: Address of the host of the previews; "" if it is the site.
        requests: Number of searches so far.
    """

    def __init__(
        self, corpus: Catalogue, nulls: float = 0.0, changes: tuple[Change, ...] = (), poison: float = 0.0
    ) -> None:
        """Store the sounds, and their faults and changes; the class describes them."""
        self.corpus, self._nulls, self._changes, self._poison = corpus, nulls, list(changes), poison
        self._hidden = {change.number for change in changes if change.there}
        self.cdn = ""
        self.seen = 1.0
        self.requests = 0

    def search(self, parameters: Mapping[str, str], site: str) -> Reply:
        """Answer a search with a page of the sounds that match the filter; the query text is ignored.

        Raises PoisonError if the page has a sound that makes the server fail.
        """
        self.requests += 1
        while self._changes and self._changes[0].request <= self.requests:
            change = self._changes.pop(0)
            (self._hidden.discard if change.there else self._hidden.add)(change.number)
        try:
            numbers = self._sorted(self._matching_sounds(parameters.get("filter")), parameters.get("sort", "score"))
        except (FilterError, RecursionError) as error:
            return Reply(400, {"detail": f"Search server error: {error} {HINT}"})
        except UnsupportedError as error:
            return Reply(501, {"detail": str(error)})
        page, size = (
            _whole_number(parameters.get("page"), 1),
            _whole_number(parameters.get("page_size"), DEFAULT_PAGE_SIZE),
        )
        size = min(size, PAGE_SIZE)
        if page < 1 or size < 1 or (len(numbers) and (page - 1) * size >= len(numbers)):
            return Reply(404, {"detail": "Invalid page."})
        shown = [int(number) for number in numbers[(page - 1) * size : page * size]]
        if any(map(self.is_poison, shown)):
            raise PoisonError
        fields = parameters.get("fields") or _DEFAULT_FIELDS
        content = {
            "count": len(numbers),
            "next": _page_link(parameters, site, page + 1) if page * size < len(numbers) else None,
            "previous": _page_link(parameters, site, page - 1) if page > 1 else None,
            "results": [None if self.is_null(number) else self.sound(number, fields, site) for number in shown],
        }
        return Reply(200, content)

    def sound(self, number: int, fields: str | None, site: str) -> dict[str, Any]:
        """Return the requested fields of a sound; all fields if none is requested, or if `*` is."""
        sound = dict(self.corpus.sound(number, site, self.cdn))
        names = (fields or "*").split(",")
        return sound if "*" in names else {name: sound[name] for name in names if name in sound}

    def audio(self, number: int, suffix: str) -> bytes:
        """Return a sound's audio file: mp3, ogg or wav, mono, 44.1 kHz.

        A broken sound has bytes that no decoder accepts.
        """
        if self.corpus.is_broken(number):
            return b"ID3\x04" + bytes(2000)
        return encoded(self._synthesise(number), PREVIEW_RATE, *_FORMATS[suffix], **_QUALITY.get(suffix, {}))

    def _synthesise(self, number: int) -> Samples:
        """Return the synthesised samples of the sound number `number`, at PREVIEW_RATE."""
        import soxr

        scene = self.corpus.scene(number)
        rng = np.random.default_rng((self.corpus.seed, number, 2))
        sound = render(rng, scene.kind, [Event(name, None) for name in scene.events])
        count = round(float(self.corpus.seconds(np.array([number]))[0]) * PREVIEW_RATE)
        return np.resize(soxr.resample(sound, SAMPLE_RATE, PREVIEW_RATE), count)  # repeated or cut to the length

    def is_null(self, number: int) -> bool:
        """Whether a search returns null for the sound with this number."""
        return self.corpus.one_uniform("null", number) < self._nulls

    def is_poison(self, number: int) -> bool:
        """Whether a search that finds the sound with this number fails."""
        return self.corpus.one_uniform("poison", number) < self._poison

    def _matching_sounds(self, text: str | None) -> Numbers:
        """Return the indices of the sounds in the search index that match the filter `text`; None: of all sounds."""
        numbers = matching_sounds(self.corpus, text)
        numbers = numbers[numbers < self.seen * self.corpus.size]
        return numbers[~np.isin(numbers, list(self._hidden))]

    def _sorted(self, numbers: Numbers, sort: str) -> Numbers:
        """Return the sounds' indices in the order `sort`: by upload time, or by a random score for other orders."""
        if sort == "created_asc":
            return numbers
        if sort == "created_desc":
            return numbers[::-1]
        return numbers[np.argsort(self.corpus.uniform("score", numbers))]  # for unknown sort orders too


def _page_link(parameters: Mapping[str, str], site: str, page: int) -> str:
    """Return the link to another page of the same search, with the whole query, as the API writes it."""
    kept = {name: parameters.get(name, "") for name in ("query", "filter", "weights")}
    sizes = {name: parameters[name] for name in ("page_size", "fields") if name in parameters}
    query = kept | {"sort": parameters.get("sort", "score"), "page": str(page)} | sizes
    stated = {name: value for name, value in query.items() if value or name == "query"}
    return f"{site}/apiv2/search/?{urlencode(stated)}"


def _whole_number(text: str | None, default: int) -> int:
    """Convert a parameter of a request to a whole number: `default` if it is missing, 1 if it is not a number."""
    try:
        return default if text is None else int(text)
    except ValueError:
        return 1
