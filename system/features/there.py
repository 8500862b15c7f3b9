"""Which clips have frames already, told without computing or writing anything."""

import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from data_tools.errors import KitError
from data_tools.manifest import Clip
from system.experts.base import ExpertSettings
from system.features.bank import keys_in


def clips_there(clips: Iterable[Clip], experts: Mapping[str, ExpertSettings], banks: Path) -> dict[str, set[str]]:
    """By expert, the ids of the clips whose frames its bank holds, as far as it is remembered what their files contain.

    None where an expert's weights are missing: they decide which bank it is.
    """
    stored = {name: _stored(expert, banks) for name, expert in experts.items()}
    remembered = _remembered(banks / "contents.sqlite") if any(stored.values()) else {}
    keys = {clip.id: _content(clip.path, remembered) for clip in clips}
    return {name: {clip_id for clip_id, key in keys.items() if key in there} for name, there in stored.items()}


def _stored(expert: ExpertSettings, banks: Path) -> set[str]:
    """The content keys that an expert's bank holds."""
    if not any(banks.glob(f"{expert.kind}-*/index.jsonl")):  # then the weights need not be read
        return set()
    try:
        return keys_in(banks / expert.key())
    except (KitError, OSError):
        return set()


def _remembered(path: Path) -> dict[str, tuple[int, int, str]]:
    """Size, time of change and content key of files, as ContentKeys of a folder of banks keeps them."""
    try:
        with closing(sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True, timeout=1)) as store:
            rows = store.execute("select path, size, changed, sha256 from files").fetchall()
            return {name: (size, changed, key) for name, size, changed, key in rows}
    except (sqlite3.Error, UnicodeDecodeError):  # not there, in use, or damaged: `run` says so
        return {}


def _content(path: str, remembered: dict[str, tuple[int, int, str]]) -> str | None:
    if path not in remembered:
        return None
    size, changed, key = remembered[path]
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return key if (status.st_size, status.st_mtime_ns) == (size, changed) else None
