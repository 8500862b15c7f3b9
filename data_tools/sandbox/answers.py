"""What the API would say: searches with filters and pages over the invented sounds, and their audio.

Freesound API v2, https://freesound.org/docs/api/resources_apiv2.html; as of 2026.
"""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from data_tools.audio.read import encoded
from data_tools.freesound.sounds import PAGE_SIZE, parse_time
from data_tools.sandbox.corpus import Catalogue, Numbers
from data_tools.scenes.compose import Event, render
from data_tools.scenes.synth import SAMPLE_RATE, Samples

DEFAULT_PAGE_SIZE = 15
PREVIEW_RATE = 44_100
_DEFAULT_FIELDS = "id,name,tags,username,license"
_CLAUSE = re.compile(r'(\w+):(\[[^\]]*\]|"[^"]*"|\([^)]*\)|\S+)')
_QUALITY: dict[str, Any] = {"mp3": {"bitrate_mode": "CONSTANT", "compression_level": 0.6}}  # 160 kbit/s
_FORMATS = {"mp3": ("MP3", "MPEG_LAYER_III"), "ogg": ("OGG", "VORBIS"), "wav": ("WAV", "PCM_16")}


class Reply(NamedTuple):
    """status, and content as JSON has it."""

    status: int
    content: dict[str, Any]


class _FilterError(ValueError):
    """A filter the search does not understand."""


class Change(NamedTuple):
    """From this request on a sound is there, or is not."""

    request: int
    number: int
    there: bool


class Answers:
    """nulls: the share of sounds that a search gives as null, for good. changes: sounds that come and go, in order."""

    def __init__(self, corpus: Catalogue, nulls: float = 0.0, changes: tuple[Change, ...] = ()) -> None:
        self.corpus, self._nulls, self._changes = corpus, nulls, list(changes)
        self._hidden = {change.number for change in changes if change.there}
        self.requests = 0

    def search(self, parameters: Mapping[str, str], site: str) -> Reply:
        """A page of a search. The query is not looked at: every text is found."""
        self.requests += 1
        while self._changes and self._changes[0].request <= self.requests:
            change = self._changes.pop(0)
            (self._hidden.discard if change.there else self._hidden.add)(change.number)
        try:
            numbers = self._sorted(self._filtered(parameters.get("filter")), parameters.get("sort", "score"))
        except _FilterError as error:
            detail = f"Search server error: {error}. Please check that your filter syntax and field names are correct"
            return Reply(400, {"detail": detail})
        page, size = _whole(parameters.get("page"), 1), _whole(parameters.get("page_size"), DEFAULT_PAGE_SIZE)
        size = min(size, PAGE_SIZE)
        if page < 1 or size < 1 or (len(numbers) and (page - 1) * size >= len(numbers)):
            return Reply(404, {"detail": "Not found"})
        fields = (parameters.get("fields") or _DEFAULT_FIELDS).split(",")
        results = [self._item(int(number), fields, site) for number in numbers[(page - 1) * size : page * size]]
        more = page * size < len(numbers)
        content = {
            "count": len(numbers),
            "next": f"{site}/apiv2/search/?page={page + 1}" if more else None,
            "previous": f"{site}/apiv2/search/?page={page - 1}" if page > 1 else None,
            "results": results,
        }
        return Reply(200, content)

    def audio(self, number: int, suffix: str) -> bytes:
        """A file of it: mp3, ogg or wav, mono, 44.1 kHz. A broken sound has bytes that no decoder takes."""
        if self.corpus.is_broken(number):
            return b"ID3\x04" + bytes(2000)
        return encoded(self._samples(number), PREVIEW_RATE, *_FORMATS[suffix], **_QUALITY.get(suffix, {}))

    def is_null(self, number: int) -> bool:
        return self.corpus.one_uniform("null", number) < self._nulls

    def _samples(self, number: int) -> Samples:
        import soxr

        scene = self.corpus.scene(number)
        rng = np.random.default_rng((self.corpus.seed, number, 2))
        sound = render(rng, scene.kind, [Event(name, None) for name in scene.events])
        count = round(float(self.corpus.seconds(np.array([number]))[0]) * PREVIEW_RATE)
        resampled: Samples = soxr.resample(sound, SAMPLE_RATE, PREVIEW_RATE)
        return np.resize(resampled, count)  # repeated, or cut

    def _item(self, number: int, fields: list[str], site: str) -> dict[str, Any] | None:
        if self.is_null(number):
            return None
        sound = self.corpus.sound(number, site)
        return {field: sound[field] for field in fields if field in sound}

    def _filtered(self, text: str | None) -> Numbers:
        clauses = {} if text is None else _clauses(text)
        first, last = _span(clauses.pop("created", "[* TO *]"), _time)
        # The index knows whole seconds: a sound is found by the second in which it was uploaded.
        from_second, past_second = np.ceil(first / 1000) * 1000, np.floor(last / 1000) * 1000 + 1000
        numbers = np.arange(self.corpus.from_time(from_second), self.corpus.from_time(past_second))
        keep = ~np.isin(numbers, list(self._hidden)) if self._hidden else np.ones(len(numbers), bool)
        for field, value in clauses.items():
            keep &= self._matches(field, value, numbers)
        return numbers[keep]

    def _matches(self, field: str, value: str, numbers: Numbers) -> np.ndarray:
        if field == "duration":
            low, high = _span(value, float)
            seconds = self.corpus.seconds(numbers)
            return (low <= seconds) & (seconds <= high)
        if field == "license":
            return np.isin(self.corpus.licences(numbers), _options(value))
        if field == "gen_ai_preference":
            return np.isin(self.corpus.preferences(numbers), _options(value))
        if field == "type":
            return np.full(len(numbers), "wav" in _options(value))
        raise _FilterError(f"undefined field {field}")

    def _sorted(self, numbers: Numbers, sort: str) -> Numbers:
        if sort == "created_asc":
            return numbers
        if sort == "created_desc":
            return numbers[::-1]
        return numbers[np.argsort(self.corpus.uniform("score", numbers))]  # also of sorts there are not


def _clauses(text: str) -> dict[str, str]:
    found = dict(_CLAUSE.findall(text))
    if not found or _CLAUSE.sub("", text).strip():
        raise _FilterError(f"cannot parse {text[:60]!r}")
    return found


def _span(value: str, convert: Any) -> tuple[float, float]:
    """Bounds of `[a TO b]`, both included; `*` is none."""
    match = re.fullmatch(r"\[(\S+) TO (\S+)\]", value)
    if not match:
        raise _FilterError(f"expected [a TO b], not {value[:60]!r}")
    try:
        low, high = (None if bound == "*" else convert(bound) for bound in match.groups())
    except ValueError:
        raise _FilterError(f"invalid bound in {value[:60]!r}") from None
    return (-np.inf if low is None else low), (np.inf if high is None else high)


def _time(text: str) -> float:
    return np.inf if text == "NOW" else parse_time(text)


def _options(value: str) -> list[str]:
    return [option.strip(' "') for option in value.strip("()").split(" OR ")]


def _whole(text: str | None, default: int) -> int:
    try:
        return default if text is None else int(text)
    except ValueError:
        return 1
