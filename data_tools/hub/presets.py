"""Columns of public data sets.

Sources of names and columns: the cards of the data sets, and mteb 2.26 (tasks/retrieval/eng/clotho.py).
"""

from typing import NamedTuple

CAPTION_COLUMNS = ("captions", "caption", "text", "txt", "raw_text")  # names that public data sets give to captions
ID_COLUMNS = ("id", "file_name", "fname", "index")  # columns whose value names a clip


class Columns(NamedTuple):
    """Columns of a data set. If a field is empty, the column is found by its usual names.

    Attributes:
        audio: Column with the audio.
        captions: Columns with a caption or a list of captions.
        id: Columns whose values, joined by _, name a clip. Rows with the same name become one clip.
        separator: Text between several captions in one value; None: a value is one caption.
        name: Source of the clips, for their ids.
    """

    audio: str | None = None
    captions: tuple[str, ...] = ()
    id: tuple[str, ...] = ()
    separator: str | None = None
    name: str | None = None


PRESETS = {
    "mteb/Clotho": Columns("audio", ("text",), ("index",), ".", "clotho"),
    "CLAPv2/Clotho": Columns("audio", ("text",), ("index",), ".", "clotho"),
    "CLAPv2/AudioCaps": Columns("audio", ("text",), ("index",), None, "audiocaps"),
    "OpenSound/AudioCaps": Columns("audio", ("caption",), ("youtube_id", "start_time"), None, "audiocaps"),
}
