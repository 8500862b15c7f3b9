"""Content keys of audio files.

Content keys of audio files, stored in the folder of the banks.
"""

import os
from pathlib import Path

from data_tools.audio.read import AudioError, content_key
from system.features.file_facts import FileFacts, Time


class ContentKeys:
    """sha256 of audio files, stored by path, size and modification time, so that a file is read once.

    A changed file (another size or time) is read again and has a new key. `read_key` reads files whose frames are about
    to be computed, since a file may be replaced without a change of its size and time.
    """

    def __init__(self, folder: Path, time: Time = "st_mtime_ns") -> None:
        """time: See FileFacts."""
        self._read_now: dict[str, str] = {}  # by path, contents that this process has read itself
        self._facts = FileFacts(folder / "contents.sqlite", "files", ["sha256 text"], time)

    def __call__(self, path: str) -> str:
        """Return the content key of a file.

        Raises: AudioError for a missing file; OSError for one that exists and cannot be read (a failing disk, too many
        open files, no permission). Such a clip is never left out as if it were missing.
        """
        try:
            status = os.stat(path)  # noqa: PTH116  a third of the time of Path(path).stat()
        except FileNotFoundError as error:
            raise AudioError(f"{path}: no such audio file") from error
        stored = self._facts.get(path, status)
        return str(stored[0]) if stored else self.read_key(path)

    def read_key(self, path: str) -> str:
        """Read a file and return its content key, even if a key of the file is stored.

        Raises the errors of `__call__`.
        """
        if path in self._read_now:
            return self._read_now[path]
        try:
            status, key = Path(path).stat(), content_key(path)
        except FileNotFoundError as error:
            raise AudioError(f"{path}: no such audio file") from error
        self._facts.put(path, status, [key])
        self._read_now[path] = key
        return key

    def delete_all(self) -> None:
        """Delete all stored content keys, so that every file is read again."""
        self._facts.delete_all()

    def close(self) -> None:
        """Write new content keys to disk, and close their store."""
        self._facts.close()
