"""The API key and the access token: read from the environment or a private file, shown nowhere."""

import json
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path

from data_tools.documents.json_text import parse_json
from data_tools.errors import DataError
from data_tools.files import replacing, require_file

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


class Token:
    """An access token of OAuth2, which lasts 24 hours. file: where it came from, if a new one can be asked for: JSON
    with access_token, refresh_token and client_id."""

    def __init__(self, access: Secret, file: Path | None = None, refresh: str = "", client: str = "") -> None:
        self.access, self.file, self.client = access, file, client
        self.refresh = Secret(refresh)

    def renew(self, answer: Mapping[str, object]) -> None:
        """Take the tokens of an answer to `grant_type=refresh_token`, and write them to the file: the old refresh token
        is worth nothing any more. Raises DataError for an answer without them."""
        access, refresh = answer.get("access_token"), answer.get("refresh_token")
        if not isinstance(access, str) or not isinstance(refresh, str):
            raise DataError(f"{self.file}: Freesound gave no new tokens; ask for an access token by hand again")
        self.access, self.refresh = Secret(access), Secret(refresh)
        assert self.file is not None
        content = parse_json(_private_text(self.file), str(self.file)) | {
            "access_token": access,
            "refresh_token": refresh,
        }
        with replacing(self.file) as temporary:
            temporary.touch(0o600)
            temporary.write_text(json.dumps(content))


def read_token(file: Path | None) -> Token | None:
    """The access token of a private file (its text alone, or JSON as Token has it) or of the environment.

    Raises DataError as read_secret does, and for JSON without the three values.
    """
    if file is None or not _private_text(file).lstrip().startswith("{"):
        access = read_secret(TOKEN, file)
        return Token(access) if access else None
    content = parse_json(_private_text(file), str(file))
    names = ("access_token", "refresh_token", "client_id")
    values = [content.get(name) if isinstance(content, dict) else None for name in names]
    for name, value in zip(names, values, strict=True):
        if not isinstance(value, str) or not re.fullmatch(r"[!-~]+", value):
            raise DataError(f"{file}: has no {name}; write the three of {', '.join(names)} as JSON, or the token alone")
    access_token, refresh, client = map(str, values)
    return Token(Secret(access_token), file, refresh, client)


def _private_text(file: Path) -> str:
    """Raises DataError for a file that is missing, or that others may read."""
    require_file(file, "write the key into it and `chmod 600` it")
    if stat.S_IMODE(file.stat().st_mode) & 0o077:
        raise DataError(f"{file}: others may read it; run `chmod 600 {file}`")
    return file.read_bytes().decode("utf-8", "replace")


def read_secret(variable: str, file: Path | None) -> Secret | None:
    """The secret of a private file, or else of an environment variable; None when neither is given.

    Raises DataError for a file that others may read, and for a value that cannot be a header's (it is not shown).
    """
    if file is not None:
        value, origin = _private_text(file), str(file)
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
