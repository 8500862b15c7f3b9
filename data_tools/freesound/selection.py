"""Choose the sounds to fetch.

Selection of the sounds to fetch from a store, with a reason for each refused one.
"""

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from data_tools.errors import DataError
from data_tools.files import require_file
from data_tools.freesound.store import Store
from data_tools.leakage.exclusion import Exclusions
from data_tools.names import is_freesound_id, plain_id
from data_tools.tables import read_table

# Licences by the address of their deed; Freesound's four, of any version.
LICENCES = {
    "cc0": "/publicdomain/zero/",
    "by": "/licenses/by/",
    "by-nc": "/licenses/by-nc/",
    "sampling+": "/licenses/sampling+/",
}
NON_COMMERCIAL = ("by-nc", "sampling+")  # the two that forbid commercial use
# Uploaders' choices about generative training; the last one covers every use of that kind.
PREFERENCES = (*("no-additional-preferences", "open-source-models", "noncommercial-open-source-models"), "no-gen-ai")


@dataclass(frozen=True)
class Criteria:
    """Rules for the sounds to fetch.

    Attributes:
        seconds: Shortest and longest duration, both included.
        threshold: Scores must be above this value.
        licences, preferences: Allowed values. A preference is the uploader's choice whether a sound may be
            used to train generative AI. A sound without a licence or a preference is not fetched.
        explicit: Whether sounds that are marked as explicit, or have no mark, may be fetched.
    """

    threshold: float
    seconds: tuple[float, float] = (3.0, 120.0)
    licences: tuple[str, ...] = tuple(LICENCES)
    preferences: tuple[str, ...] = PREFERENCES[:-1]
    explicit: bool = True


class Scored(NamedTuple):
    """A row of scores.csv; rows sort by falling score.

    Attributes:
        falling_score: The negative score, so that the best row sorts first.
        caption: The cleaned description.
        line: Line number in the file.
    """

    falling_score: float
    id: int
    caption: str
    line: int


class Chosen(NamedTuple):
    """A sound to fetch. caption: The cleaned description."""

    id: int
    caption: str
    title: str
    uploader: str
    licence: str
    seconds: float
    bytes: int | None
    preview: str


class Selection(NamedTuple):
    """Result of the selection.

    Attributes:
        chosen: Sounds to fetch, by falling score.
        refused: Dict from each reason to the number of sounds that were refused for it.
        excluded: Dict from the id of each sound on an exclusion list to the names of these lists.
    """

    chosen: list[Chosen]
    refused: Counter[str]
    excluded: dict[str, tuple[str, ...]]


def select(store: Store, scores: Path, criteria: Criteria, exclusions: Exclusions) -> Selection:
    """Return the sounds of a store that the rules allow, best scores first, and the numbers of refused sounds.

    Raises DataError for an invalid table of scores, and for a sound to fetch that has no text.
    """
    selection = Selection([], Counter(), {})
    for row in sorted(_read_scores(scores)):
        sound = _judge(store, row, criteria)
        if isinstance(sound, str):
            selection.refused[sound] += 1
        elif lists := exclusions.lists(str(row.id)):
            selection.refused["on an exclusion list"] += 1
            selection.excluded[str(row.id)] = lists
        elif not row.caption.strip():
            raise DataError(
                f"{scores}, line {row.line}: the text of id {row.id}, its caption, is empty; run classify again"
            )
        else:
            selection.chosen.append(sound)
    return selection


def _read_scores(path: Path) -> list[Scored]:
    """Read the rows of scores.csv. Raises DataError for bad ids or scores."""
    require_file(path, "make this file with lbar data classify")
    rows, ids = [], set[str]()
    for line, row in read_table(path, ["freesound_id", "score", "text"]):
        name = row["freesound_id"]
        try:
            score = float(row["score"])
        except ValueError:
            score = math.nan
        faults = {
            "is not a Freesound id": not is_freesound_id(name),
            "comes twice": plain_id(name) in ids,
            "has no score from 0 to 1": not 0 <= score <= 1,
        }
        for fault in (fault for fault, holds in faults.items() if holds):
            raise DataError(f"{path}, line {line}: the id {name[:40]!r} {fault}; run classify again")
        ids.add(plain_id(name))
        rows.append(Scored(-score, int(name), row["text"], line))
    return rows


def _judge(store: Store, row: Scored, criteria: Criteria) -> Chosen | str:
    """Return the sound of a row of scores if the rules allow it, otherwise the reason for refusing it."""
    if not -row.falling_score > criteria.threshold:
        return f"score of {criteria.threshold} or less" if row.caption else "no words are left after cleaning"
    columns = "name, username, license, duration, filesize, preview_hq_mp3, gen_ai_preference, is_explicit"
    query = f"SELECT {columns} FROM sounds WHERE id = ? AND NOT gone"
    found = store.database.execute(query, (row.id,)).fetchone()
    if found is None:
        return "not in the store, or gone from Freesound"
    *described, preference, explicit = found
    sound, (low, high) = Chosen(row.id, row.caption, *described), criteria.seconds
    reasons = {
        f"shorter than {low:g} s or longer than {high:g} s": not low <= sound.seconds <= high,
        f"licence other than {', '.join(criteria.licences)}": not any(
            LICENCES[name] in sound.licence for name in criteria.licences
        ),
        "the uploader's AI preference": preference not in criteria.preferences,
        "explicit": explicit != 0 and not criteria.explicit,
        "no preview": not sound.preview,
    }
    return next((reason for reason, holds in reasons.items() if holds), sound)
