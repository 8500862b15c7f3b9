"""Read descriptions and captions.

Reads the inputs of the classifier: descriptions from a crawl's store or a CSV file, captions from CSV or manifests.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from data_tools.errors import DataError
from data_tools.freesound.store import open_store
from data_tools.manifest import TEST_SPLITS, iter_manifest, read_caption_table
from data_tools.tables import read_table


class Description(NamedTuple):
    """A description to classify. uploader: None if unknown."""

    id: str
    text: str
    uploader: str | None


class Caption(NamedTuple):
    """A caption to learn from. clip: The same for all captions of a clip."""

    clip: str
    text: str


def read_description_table(path: Path, text_column: str, id_column: str | None) -> Iterator[Description]:
    """Read descriptions from a whole CSV file; the uploader is in its optional column `username`.

    id_column: Column with the ids; None: the column `id`, or the numbers of the rows, from 1, if it is missing.
    Raises DataError for a missing column, and an id that is empty or repeated.
    """
    rows = read_table(path, [text_column, *([id_column] if id_column else [])])
    id_column = id_column or ("id" if "id" in rows[0][1] else None)
    line_of: dict[str, int] = {}
    for number, (line, row) in enumerate(rows, 1):
        name = row[id_column].strip() if id_column else str(number)
        if not name:
            raise DataError(f"{path}, line {line}: the column {id_column} is empty; fill it in or remove the row")
        if name in line_of:
            raise DataError(
                f"{path}, line {line}: the {id_column} {name!r} is already on line {line_of[name]}; keep one of "
                "the rows"
            )
        line_of[name] = line
        yield Description(name, row[text_column], row.get("username") or None)


def open_descriptions(path: Path, text_column: str, id_column: str | None) -> Iterator[Description]:
    """Return the descriptions in a file: the rows of a .csv table, or otherwise the sounds of a crawl's store.

    The verb `crawl` collects Freesound's sounds in a database file, the store. For a store, yields every sound that is
    still on Freesound, by rising id; a missing description becomes "".

    Raises DataError for a file that is neither a table nor a store, for a missing column, and for an id that is empty
    or repeated.
    """
    if path.suffix.lower() == ".csv":
        yield from read_description_table(path, text_column, id_column)
        return
    with open_store(path, read_only=True) as store:
        query = "SELECT id, description, username FROM sounds WHERE NOT gone ORDER BY id"
        for id, text, uploader in store.database.execute(query):
            yield Description(str(id), text or "", uploader or None)


def read_captions(paths: Sequence[Path]) -> tuple[list[Caption], int]:
    """Return the captions of Clotho-like CSV files and manifests (.jsonl), and the number of omitted test captions.

    A classifier that chooses training data must not have learnt from test captions. Test captions are therefore omitted
    from manifests. A CSV file does not state its split, so that all of its captions are returned. Raises DataError for
    a bad file or caption, and if no caption is left.
    """
    captions: list[Caption] = []
    left_out = 0
    for path in paths:
        if path.suffix == ".jsonl":
            for _, clip in iter_manifest(path):
                if clip.split in TEST_SPLITS:
                    left_out += len(clip.captions)
                else:
                    captions += [Caption(clip.id, text) for text in clip.captions]
        else:
            captions += [
                Caption(f"{path}/{name}", text) for _, name, texts in read_caption_table(path) for text in texts
            ]
    if not captions:
        raise DataError(
            f"{', '.join(map(str, paths))}: all captions are of test splits; give captions of another split"
        )
    return captions, left_out
