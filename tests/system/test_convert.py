"""Converting the public yamnet.tflite."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from data_tools.errors import KitError
from system.__main__ import main
from system.audio.tflite import read_layers

TFLITE = "data/yamnet/yamnet.tflite"


@pytest.mark.slow
def test_converted_yamnet_matches_dequantised_layers(shared: Path, tmp_path: Path) -> None:
    assert main(["convert", str(shared / TFLITE), "--out", str(tmp_path / "made/layers.npz")]) == 0
    assert main(["convert", str(shared / TFLITE), "--out", str(tmp_path / "again.npz")]) == 0
    assert (tmp_path / "again.npz").read_bytes() == (tmp_path / "made/layers.npz").read_bytes()
    expected = np.load(shared / "data/yamnet/yamnet_layers_float32_dequantised.npz")
    with np.load(tmp_path / "made/layers.npz") as found:
        assert found.files == expected.files
        for name in expected.files:
            assert found[name].dtype == np.float32
            assert np.array_equal(found[name], expected[name]), name
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["layers.npz"]


def test_yamnet_layers_have_documented_order_and_shapes(shared: Path) -> None:
    layers = read_layers(shared / TFLITE)
    described = json.loads((shared / "data/yamnet/yamnet_layers.json").read_text())
    assert [one["idx"] for one in described] == list(range(31))
    for one in described:
        assert list(layers[f"{one['idx']:02d}_w"].shape) == one["w_shape"]
        assert (f"{one['idx']:02d}_b" in layers) == one["has_bias"]


def test_damaged_and_foreign_tflite_files_are_refused(
    shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = (shared / TFLITE).read_bytes()
    bad = tmp_path / "bad.tflite"
    with pytest.raises(KitError, match="such"):
        read_layers(bad)
    for content in (b"", b"<html>Not found</html>", data[: len(data) // 3]):
        bad.write_bytes(content)
        with pytest.raises(KitError, match="public"):
            read_layers(bad)
    assert main(["convert", str(bad), "--out", str(tmp_path / "out.npz")]) == 1
    assert "Traceback" not in capsys.readouterr().err
    assert not (tmp_path / "out.npz").exists()


def test_convert_without_tflite_package_names_the_install_command(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tflite", None)
    with pytest.raises(KitError, match="pip install"):
        read_layers(shared / TFLITE)
