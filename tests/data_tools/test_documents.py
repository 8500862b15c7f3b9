"""JSON documents: seals, refused documents, and limits."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pydantic import BaseModel

from data_tools.documents.json_text import (
    parse_json,
    read_json,
    read_json_lines,
    read_shaped,
    require_unharmed,
    sealed,
    unsealed,
    write_json,
)
from data_tools.documents.yaml12 import parse, parse_yaml
from data_tools.errors import DataError


def test_checksum_of_a_document_is_the_sha256_of_compact_sorted_json() -> None:
    checksum = hashlib.sha256(b'{"a":[1,2.5,null],"b":"\\u00e9"}').hexdigest()
    document = {"b": "é", "a": [1, 2.5, None]}
    assert sealed(document) == {**document, "checksum": checksum}
    assert list(sealed(document))[-1] == "checksum"
    assert unsealed({"checksum": checksum, **document}, "x") == document
    assert unsealed(document, "x") == document, "of an earlier release"
    assert unsealed([1], "x") == [1]


def test_json_document_survives_a_round_trip(tmp_path: Path) -> None:
    value = {"n": 0.1, "text": "日本\n", "deep": [{"x": (1, 2)}], "1": True}
    write_json(tmp_path / "a.json", value)
    assert read_json(tmp_path / "a.json", "") == json.loads(json.dumps(value))
    assert "日本" in (tmp_path / "a.json").read_text(encoding="utf-8"), "a person can read it"
    write_json(tmp_path / "list.json", ["b", "a"])
    assert read_json(tmp_path / "list.json", "") == ["b", "a"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b'{"a": 1, "a": 1}', "a.json: the key 'a' is given twice; keep one; do this"),
        (b'{"x": {"b": 1, "c": 2, "b": 3}}', "the key 'b' is given twice"),
        (b"[" * 100_000, "are nested too deeply"),
        (b'{"a":' * 100_000, "are nested too deeply"),
        (b"9" * 5000, "a number has 5000 digits, at most 400 are allowed"),
        (b"-" + b"9" * 401, "a number has 402 digits"),
        (b"NaN", "NaN is not a number in JSON"),
        (b"[-Infinity]", "-Infinity is not a number in JSON"),
        (b"[1e999]", "the number 1e999 is too large"),
        (b"-1e999", "the number -1e999 is too large"),
        (b"\xff", "not UTF-8 (at byte 0)"),
        ('{"a": "é"}'.encode("latin-1"), "not UTF-8 (at byte 7)"),
        ('{"a": 1}'.encode("utf-16"), "a.json: its encoding is UTF-16, not UTF-8; save it as UTF-8"),
        ('{"a": 1}'.encode("utf-16-le"), "UTF-16, not UTF-8"),
        ('{"a": 1}'.encode("utf-16-be"), "UTF-16, not UTF-8"),
        ('{"a": 1}'.encode("utf-32"), "UTF-32, not UTF-8"),
        ('{"a": 1}'.encode("utf-32-be"), "UTF-32, not UTF-8"),
        ('{"a": 1}'.encode("utf-8-sig"), "starts with a byte order mark; remove it"),
        (b'{"a": "\xed\xa0\x80"}', "not UTF-8 (at byte 7)"),
        (rb'{"a": "b", "dog \udfff": 1}', """half a surrogate pair after '{"a": "b", "dog '"""),
        (rb'["\ude00\ud83d"]', "half a surrogate pair after"),
        (b"", "not JSON"),
        (b"{} x", "not JSON"),
        (b'{"a": 1, "checksum": "0"}', "a.json is damaged: its checksum does not match its content; do this"),
    ],
)
def test_invalid_json_documents_are_refused(tmp_path: Path, text: bytes, words: str) -> None:
    (tmp_path / "a.json").write_bytes(text)
    with pytest.raises(DataError) as caught:
        read_json(tmp_path / "a.json", "do this")
    assert words in str(caught.value)
    assert str(caught.value).endswith("; do this")


def test_missing_json_file_is_reported_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none.json is missing; make it"):
        read_json(tmp_path / "none.json", "make it")
    with pytest.raises(DataError, match=r"none.json is missing; make it"):
        require_unharmed(tmp_path / "none.json", None, "make it")


def test_long_and_large_json_numbers_are_read() -> None:
    assert parse_json("9" * 400, "x") == int("9" * 400)
    assert parse_json("[NaN]", "x", finite=False) != [0]
    assert parse_json("[1e999, 1.5e308]", "x", finite=False) == [float("inf"), 1.5e308]
    assert parse_json("[-1.5e308, 1e-999]", "x") == [-1.5e308, 0.0]


class _Name(str):
    """A key that counts how often it is compared with another."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        _Name.compared += 1
        return str.__eq__(self, str(other))

    __hash__ = str.__hash__


def test_repeated_json_key_is_found_in_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    def loads(text: str, object_pairs_hook: Callable[[list[tuple[str, int]]], object], **_: object) -> object:
        return object_pairs_hook([(_Name(n), n) for n in (*range(2_000), 1_999, 0)])

    monkeypatch.setattr("data_tools.documents.json_text.json.loads", loads)
    with pytest.raises(DataError, match="the key '1999' is given twice"):
        parse_json("", "x")
    assert _Name.compared < 100


def test_invalid_json_lines_are_reported_and_unfinished_last_line_skipped(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"n": 1}\n{"n": 2}\n{"n')
    assert read_json_lines(path, "", unfinished=True) == [{"n": 1}, {"n": 2}]
    with pytest.raises(DataError, match=r"a.jsonl, line 3: not JSON .*; do this"):
        read_json_lines(path, "do this")
    path.write_bytes(b'{"n": 1}\n{"n": 2}')
    assert read_json_lines(path, "") == [{"n": 1}, {"n": 2}]
    path.write_bytes(b'{"n": 1}\n\n{"n": 2}\n')
    with pytest.raises(DataError, match="line 2: not JSON"):
        read_json_lines(path, "", unfinished=True)


class _Point(BaseModel):
    model_config = {"strict": True, "extra": "forbid"}
    x: int
    tags: list[str] = []


def test_error_for_a_json_document_of_the_wrong_shape_names_the_wrong_fields(tmp_path: Path) -> None:
    write_json(tmp_path / "p.json", {"x": 3, "tags": ["a"]})
    assert read_shaped(tmp_path / "p.json", _Point, "") == _Point(x=3, tags=["a"])
    for value, words in (
        ({"x": 3, "tags": ["a", 1]}, r"\(tags.1: must be text, not 1\); do this"),
        ({}, r"\(x: is missing\); do this"),
        ({"tags": [1]}, r"p.json is damaged \(x: is missing\)\n.*p.json is damaged \(tags.0: .*\); do this$"),
        ([1], r"\(as a whole: "),
    ):
        write_json(tmp_path / "p.json", value)
        with pytest.raises(DataError, match=words):
            read_shaped(tmp_path / "p.json", _Point, "do this")


def test_json_file_with_another_checksum_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"abc")
    require_unharmed(tmp_path / "f", hashlib.sha256(b"abc").hexdigest(), "")
    require_unharmed(tmp_path / "f", None, "")
    with pytest.raises(DataError, match=r"f is damaged: .*; write it again"):
        require_unharmed(tmp_path / "f", hashlib.sha256(b"abd").hexdigest(), "write it again")


def test_hashlib_file_digest_is_called_in_one_module_only(root: Path) -> None:
    rooms = [path for room in ("data_tools", "submission", "system") for path in (root / room).rglob("*.py")]
    assert [path.name for path in rooms if "file_digest" in path.read_text(encoding="utf-8")] == ["json_text.py"]


def test_lone_surrogates_and_byte_order_marks_are_refused() -> None:
    with pytest.raises(DataError, match=r"^x: contains half a surrogate pair"):
        parse_json('"dog \ud800"', "x")
    with pytest.raises(DataError, match=r"^x: starts with a byte order mark"):
        parse_json('\ufeff{"a": 1}', "x")
    assert parse_json('"\ufeff"', "x") == "\ufeff", "within a text it is a character"


@pytest.mark.parametrize("text", [r'name: "dog \ud800"', r'"dog \udfff": 1', r'names: ["\ud83d"]'])
def test_lone_surrogates_in_yaml_are_refused(text: str) -> None:
    with pytest.raises(DataError, match=r"not YAML \(line 1: found invalid Unicode character escape code"):
        parse_yaml(text.encode())
    assert parse("a: \ud800").problems == [
        ((), 1, "not YAML: the text contains half a surrogate pair; write the whole character")
    ]


@pytest.mark.parametrize("text", ["a: @x", "\ufeffa: @x", "é: 1\nb: @x"])
def test_yaml_error_names_a_character_that_cannot_begin_a_value(text: str) -> None:
    ((_, line, said),) = parse(text).problems
    assert (line, said) == (1 + text.count("\n"), "not YAML: found the character '@', which cannot begin a value")


def test_surrogate_pairs_are_decoded_and_lone_ones_kept_on_request() -> None:
    assert parse_json(rb'"\ud83d\ude00 \u00e9"', "x") == "😀 é"
    assert parse_json(rb'"a\ud800"', "x", lone_surrogates=True) == "a\ud800"
    assert parse_json(r'"\\ud800"', "x") == r"\ud800", "an escaped backslash"
