"""The API key and the access token: read from the environment or a private file, shown nowhere."""

import os
import re
import stat
from pathlib import Path

from data_tools.errors import DataError
from data_tools.files import require_file

KEY = "FREESOUND_API_KEY"
TOKEN = "FREESOUND_ACCESS_TOKEN"
KEY_ADDRESS = "freesound.org/apiv2/apply"


class Secret:
    """A text that prints as dots."""

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "Secret(...)"


def read_secret(variable: str, file: Path | None) -> Secret | None:
    """The secret of a private file, or else of an environment variable; None when neither is given.

    Raises DataError for a file that others may read, and for a value that cannot be a header's (it is not shown).
    """
    if file is not None:
        require_file(file, "write the key into it and `chmod 600` it")
        if stat.S_IMODE(file.stat().st_mode) & 0o077:
            raise DataError(f"{file}: others may read it; run `chmod 600 {file}`")
        value, origin = file.read_bytes().decode("utf-8", "replace"), str(file)
    elif variable in os.environ:
        value, origin = os.environ[variable], f"the environment variable {variable}"
    else:
        return None
    value = value.strip()
    if not re.fullmatch(r"[!-~]+", value):
        raise DataError(f"{origin}: holds no key, which is one word of letters, digits and signs")
    return Secret(value)


def read_key(file: Path | None) -> Secret:
    """The API key. Raises DataError as read_secret does, and when there is none."""
    key = read_secret(KEY, file)
    if key is None:
        raise DataError(
            f"no API key: set {KEY}, or name a file of mode 600 by --key-file (keys are given at {KEY_ADDRESS})"
        )
    return key
