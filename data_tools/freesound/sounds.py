"""Sounds and search pages as the API describes them.

Freesound API v2, https://freesound.org/docs/api/resources_apiv2.html (2026: `/apiv2/search/`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from data_tools.documents.json_text import parse_json
from data_tools.errors import DataError

PAGE_SIZE = 150  # the API silently reduces larger ones
FIELDS = (
    "id,name,tags,description,username,license,gen_ai_preference,duration,type,channels,samplerate,filesize,md5,created,"
    "previews,category,subcategory,pack,is_explicit"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_YEAR_10000 = 253_402_300_800_000  # in milliseconds; later times cannot be formatted
PREVIEWS = ("preview-hq-mp3", "preview-lq-mp3", "preview-hq-ogg", "preview-lq-ogg")


def _milliseconds(value: object) -> object:
    """Convert a time given as text to milliseconds since 1970; return any other value unchanged."""
    return parse_time(value) if isinstance(value, str) else value


def _well_formed(value: object) -> object:
    """Replace each lone surrogate in a text by U+FFFD; return any other value unchanged.

    JSON escapes can contain lone surrogates; UTF-8 cannot.
    """
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace") if isinstance(value, str) else value


def _as_json(value: object) -> object:
    """Convert a value to JSON text; return text and None unchanged."""
    return value if value is None or isinstance(value, str) else json.dumps(value)


Text = Annotated[str, BeforeValidator(_well_formed)]
OptionalText = Annotated[Text, BeforeValidator(lambda value: "" if value is None else value)]
Whole = Annotated[int, Field(ge=0, lt=2**53)]


class Sound(BaseModel):
    """A sound from a search.

    Attributes:
        created: Milliseconds since 1970, UTC.
        duration: Seconds, -1 if Freesound does not know it.
        license: Address of the licence.
        previews: Dict from the name of a preview, such as preview-hq-mp3, to its address.
        pack: Address of the pack.
        category, subcategory: As JSON if they are not text.

    Fields that the answer omits are None; null texts are "".
    """

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    id: Annotated[int, Field(gt=0, lt=2**53)]
    created: Annotated[int, Field(lt=_YEAR_10000), BeforeValidator(_milliseconds)]
    name: OptionalText = ""
    description: OptionalText = ""
    tags: Annotated[list[OptionalText], BeforeValidator(lambda value: [] if value is None else value)] = []
    username: OptionalText = ""
    license: OptionalText = ""
    gen_ai_preference: Text | None = None
    duration: Annotated[float, Field(ge=-1, allow_inf_nan=False)]
    type: Text | None = None
    channels: Whole | None = None
    samplerate: float | None = None
    filesize: Whole | None = None
    md5: Text | None = None
    previews: Annotated[dict[str, OptionalText], BeforeValidator(lambda value: {} if value is None else value)] = {}
    category: Annotated[Text | None, BeforeValidator(_as_json)] = None
    subcategory: Annotated[Text | None, BeforeValidator(_as_json)] = None
    pack: Text | None = None
    is_explicit: bool | None = None


@dataclass(frozen=True)
class Page:
    """A page of a search.

    count: Number of sounds of the whole search, over all pages.
    sounds: Sounds of this page; None for each item that is null or invalid. An invalid item lacks an id, an upload time
    or a duration, or has a value whose type differs from the documented one.
    """

    count: int
    sounds: list[Sound | None]


def parse_page(body: bytes) -> Page:
    """Parse a page of search results. Raises DataError for bytes cut short, not JSON, or without count or results."""
    content = parse_json(body, "the answer", lone_surrogates=True)
    if not isinstance(content, Mapping):
        raise DataError("the API's answer is not a JSON object")
    count, results = content.get("count"), content.get("results")
    if type(count) is not int or not 0 <= count < 2**53 or not isinstance(results, list):
        raise DataError("the API's answer has no valid count, or no list of results")
    return Page(count, [_parse_sound(item) for item in results])


def _parse_sound(item: object) -> Sound | None:
    """Convert an item of a search to a sound; None for an item that is not valid."""
    try:
        return Sound.model_validate(item)
    except (ValidationError, RecursionError):
        return None


def parse_time(text: str) -> int:
    """Convert an ISO 8601 date or time (UTC if it names no zone) to ms since 1970. Raises ValueError for other text."""
    time = datetime.fromisoformat(text)
    return (time.replace(tzinfo=time.tzinfo or UTC) - _EPOCH) // timedelta(milliseconds=1)


def format_time(milliseconds: int) -> str:
    """Format a time in ms since 1970 for the search's filters: 2026-01-31T23:59:59.999Z."""
    time = _EPOCH + timedelta(milliseconds=milliseconds)
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
