"""Which sounds of a store are worth fetching, and why the others are not."""

import csv
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from data_tools.errors import DataError
from data_tools.files import require_file
from data_tools.freesound.store import Store
from data_tools.leakage.exclusion import Exclusions
from data_tools.names import is_freesound_id, plain_id

if TYPE_CHECKING:
    import pandas

# How a deed's address tells its licence; Freesound's four, of any version.
LICENCES = {
    "cc0": "/publicdomain/zero/",
    "by": "/licenses/by/",
    "by-nc": "/licenses/by-nc/",
    "sampling+": "/licenses/sampling+/",
}
NON_COMMERCIAL = ("by-nc", "sampling+")  # the two that do not allow every use
# What an uploader may say about generative training; the last one is about every use of that kind.
PREFERENCES = (*("no-additional-preferences", "open-source-models", "noncommercial-open-source-models"), "no-gen-ai")
WEIGHTINGS = ("natural", "balanced")


@dataclass(frozen=True)
class Criteria:
    """The rules. seconds: shortest and longest, both included. threshold: a score must be above it.

    licences, preferences, languages: those that may be; a sound that tells none of the first two is not fetched.
    explicit: whether sounds that are marked as explicit, or do not say, may be fetched.
    """

    threshold: float
    weighting: str = "natural"
    languages: tuple[str, ...] = ("en",)
    seconds: tuple[float, float] = (3.0, 120.0)
    licences: tuple[str, ...] = tuple(LICENCES)
    preferences: tuple[str, ...] = PREFERENCES[:-1]
    explicit: bool = True


@dataclass(frozen=True)
class Chosen:
    """A sound to fetch. caption: the cleaned description."""

    id: int
    caption: str
    title: str
    uploader: str
    licence: str
    seconds: float
    bytes: int | None
    preview: str


@dataclass
class Selection:
    """chosen: by falling score. refused: how many by reason. excluded: the lists that forbid an id, by id."""

    chosen: list[Chosen] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    excluded: dict[str, tuple[str, ...]] = field(default_factory=dict)


def select(store: Store, scores: Path, wanted: Criteria, exclusions: Exclusions) -> Selection:
    """Raises DataError for a table of scores that is not one, and for a sound to fetch that has no text."""
    selection = Selection()
    for row, sound_id, score, language, text in _scored(scores, wanted).itertuples(name=None):
        reason, sound = _judge(store, sound_id, score, language, text, wanted)
        if sound is None:
            selection.refused[reason] += 1
        elif lists := exclusions.lists(str(sound_id)):
            selection.refused["on an exclusion list"] += 1
            selection.excluded[str(sound_id)] = lists
        elif not text.strip():
            raise DataError(
                f"{scores}, row {row + 1}: the id {sound_id} has no text to be its caption; run classify again"
            )
        else:
            selection.chosen.append(sound)
    return selection


def _scored(path: Path, wanted: Criteria) -> "pandas.DataFrame":
    """The table's rows as (id, score, language, text), by falling score; their index is their place in the file."""
    import pandas

    column = f"score_{wanted.weighting}"
    columns = ["freesound_id", column, "language", "text"]
    require_file(path, "make it with python -m data_tools classify")
    try:
        table = pandas.DataFrame(_rows(path, columns), columns=columns, dtype=str)
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: not a table of scores ({error})") from None
    ids, scores = table["freesound_id"], pandas.to_numeric(table[column], errors="coerce")
    for wrong, problem in (
        (~ids.map(is_freesound_id).astype(bool), "is not a Freesound id"),
        (ids.map(plain_id).duplicated(), "comes twice"),
        (~scores.between(0, 1), f"has no {column} from 0 to 1"),
    ):
        if wrong.any():
            raise DataError(f"{path}, row {int(wrong.argmax()) + 1}: the id {ids[wrong.argmax()][:40]!r} {problem}")
    table["freesound_id"], table[column] = ids.astype("int64"), scores
    return table.sort_values([column, "freesound_id"], ascending=[False, True])


def _rows(path: Path, columns: list[str]) -> Iterator[list[str]]:
    """These columns of a table; unlike pandas' own reader it refuses rows that are cut short."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        header = next(reader, [])
        if missing := [name for name in columns if name not in header]:
            raise DataError(f"{path}: not a table of scores (no column {', '.join(missing)})")
        indices = [header.index(name) for name in columns]
        for number, values in enumerate(reader, 1):
            if len(values) != len(header):
                problem = f"row {number}: {len(values)} values for {len(header)} columns; run classify again"
                raise DataError(f"{path}, {problem}")
            yield [values[column] for column in indices]


def _judge(
    store: Store, sound_id: int, score: float, language: str, text: str, wanted: Criteria
) -> tuple[str, Chosen | None]:
    """A sound that the rules allow, or why they do not."""
    if not score > wanted.threshold:
        return f"score of {wanted.threshold} or less" if text else "no words left by cleaning", None
    if language not in wanted.languages:
        return f"language other than {', '.join(wanted.languages)}", None
    columns = "name, username, license, gen_ai_preference, duration, filesize, preview_hq_mp3, is_explicit, gone"
    row = store.database.execute(f"SELECT {columns} FROM sounds WHERE id = ?", (sound_id,)).fetchone()
    if row is None or row[8]:
        return "not in the store, or gone from Freesound", None
    title, uploader, licence, preference, seconds, size, preview, explicit, _ = row
    low, high = wanted.seconds
    if not low <= seconds <= high:
        return f"shorter than {low:g} s or longer than {high:g} s", None
    if not any(LICENCES[name] in licence for name in wanted.licences):
        return f"licence other than {', '.join(wanted.licences)}", None
    if preference not in wanted.preferences:
        return "the uploader's AI preference", None
    if explicit != 0 and not wanted.explicit:
        return "explicit", None
    if not preview:
        return "no preview", None
    return "", Chosen(sound_id, text, title, uploader, licence, seconds, size, preview)
