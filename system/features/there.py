"""Which clips have frames already, told without computing or writing anything."""

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from data_tools.errors import KitError
from data_tools.manifest import Clip
from system.experts.base import ExpertSettings
from system.features.bank import keys_in


def clips_there(clips: Iterable[Clip], expert: ExpertSettings, banks: Path) -> set[str]:
    """Ids of the clips whose frames the expert's bank holds, as far as it is remembered what their files contain.

    None where weights are missing: they decide which bank it is.
    """
    if not any(banks.glob(f"{expert.kind}-*/index.jsonl")):  # then the weights need not be read
        return set()
    try:
        stored = keys_in(banks / expert.key())
    except (KitError, OSError):
        return set()
    remembered = _remembered(banks / "contents.sqlite") if stored else {}
    return {clip.id for clip in clips if _content(clip.path, remembered) in stored}


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
