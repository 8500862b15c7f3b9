"""Folders of the machine that made a report stay out of its texts."""

import pytest

from submission.report.elements import without_folders
from submission.report.overview import _strip_folders


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ("/home/jo/a.wav", "…/a.wav"),
        ("/home/jo smith/my clips (old)/a b.wav", "…/a b.wav"),
        ("data.train.manifest=/home/jo smith/a b.jsonl", "data.train.manifest=…/a b.jsonl"),
        (
            "data.train={manifest: /tmp/rv/w/manifest.jsonl, split: development, audio: sub/x}",
            "data.train={manifest: …/manifest.jsonl, split: development, audio: sub/x}",
        ),
        ("a=[/home/jo/3]", "a=[…/3]"),
        ("a=[/home/jo/3,/home/jo/4, b/5]", "a=[…/3,…/4, b/5]"),
        ("a=/home/jo/3,b=/home/jo/4", "a=…/3,b=…/4"),
        ("a: '/home/jo, jr/3 (x)/4 5', b: \"/home/jo/6\"", "a: '…/4 5', b: \"…/6\""),
        ("file:///home/jo/7", "…/7"),
        ("from file:/home/jo/7?", "from …/7?"),
        ("truncated file /home/jo/x.wav: foo", "truncated file …/x.wav: foo"),
        ("/home/jo smith/x.wav: foo, see /home/jo/y.wav", "…/x.wav: foo, see …/y.wav"),
        ("in (/home/jo smith/x.wav), and /home/jo/", "in (…/x.wav), and …/jo"),
        ("/home/jo/a and /home/jo/b", "…/a and …/b"),
        ("C:\\Users\\jo", "…/jo"),
        ("see C:\\Users\\jo smith\\x.wav, D:/data/y.wav", "see …/x.wav, …/y.wav"),
        (r"on \\server\share\x.wav: foo", "on …/x.wav: foo"),
        ("jo@host:/home/jo/x", "jo@host:…/x"),
        ({"a": ["b: /home/jo/x"], "n": 3}, {"a": ["b: …/x"], "n": 3}),
    ],
)
def test_report_cuts_absolute_paths_to_their_last_part(text: object, output: object) -> None:
    found = without_folders(text)
    assert found == output
    assert without_folders(found) == output


@pytest.mark.parametrize(
    "text",
    [
        *("runs/A:best", "sub/x.wav", "./a/b", "../a/b/c", "~/a/b", "$HOME/a/b", "and/or", "1/2/3", "a / b / c"),
        *("https://zenodo.org/records/4783391", "see https://a.b/c/d, http://e/f", "--set a=b/c", "3 s: fine"),
        *("24/7", "", "x /" + "a " * 100_000),
    ],
)
def test_text_without_absolute_paths_is_unchanged(text: str) -> None:
    assert without_folders(text) == text


def test_folders_are_removed_from_reasons_of_broken_clips() -> None:
    why = "/data/my clips (old), new/a.wav: truncated; it was made of /data/b c/d.wav"
    assert "data" not in _strip_folders("/data/my clips (old)/a.wav: truncated; it was made of /data/b c/d.wav")
    assert _strip_folders("/data/my clips (old)/a.wav: cut") == "…/a.wav: cut"
    assert "/data" not in _strip_folders(why)
