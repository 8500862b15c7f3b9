"""Audio models that `download` fetches from the hub: experts and encoders, in one file or in shards."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import tiny
from hub_models import hub_folder
from outcomes import refused

from system.__main__ import main
from system.audio.hub import ClapAudio

COMMIT = "0" * 40
EXPERT: dict[str, Any] = {"kind": "clap", "weights": "owner/clap"}
EXPERT |= {"segment_seconds": 1.0, "output": "clip"}


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub that has one model, whose downloads are noted, and an empty cache."""
    import huggingface_hub
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    asked: list[str] = []

    def fetched(owned: str, **_: object) -> str:
        asked.append(owned)
        if owned != "owner/clap":
            raise ValueError(f"404 for {owned}")
        folder = tmp_path / "hub/models--owner--clap"
        (folder / "refs").mkdir(parents=True)
        (folder / "refs/main").write_text(COMMIT)
        shutil.copytree(hub_folder("clap"), folder / "snapshots" / COMMIT)
        return str(folder / "snapshots" / COMMIT)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetched)
    return asked


def with_model(world: Path, tmp_path: Path, use: str, **changes: Any) -> Path:
    recipe = tiny.recipe(world, tmp_path)
    network = EXPERT | changes
    recipe["model"]["audio"] |= {"experts": {"heard": network}}
    if use == "encoder":
        recipe["model"]["audio"] = {"kind": "segments", "network": network, "trainable": False, "max_seconds": 30}
    return tiny.write_recipe(tmp_path / "r.yaml", recipe)


@pytest.mark.parametrize("use", ["expert", "encoder"])
def test_download_fetches_the_hub_model_of_an_expert_or_encoder(use, hub, world, tmp_path, capsys):
    path = str(with_model(world, tmp_path, use))
    assert main(["download", path, "--show"]) == 0
    assert "missing  owner/clap  audio model" in capsys.readouterr().out
    assert hub == []
    for state in ("fetched", "here"):
        assert main(["download", path]) == 0
        output = capsys.readouterr().out
        assert output.startswith(f"{state:8} owner/clap  audio model in {tmp_path}/hub/")
    assert hub == ["owner/clap"]
    said = refused(capsys, "download", with_model(world, tmp_path, use, weights="owner/other"))
    assert "404 for owner/other" in said
    (tmp_path / "empty").mkdir()
    said = refused(capsys, "download", with_model(world, tmp_path, use, weights=str(tmp_path / "empty")))
    assert f"{tmp_path}/empty" in said


def test_sharded_hub_model_of_an_expert_is_loaded_and_identified(tmp_path):
    import transformers

    shutil.copytree(hub_folder("clap"), tmp_path / "sharded")
    (tmp_path / "sharded/model.safetensors").unlink()
    model = transformers.ClapModel.from_pretrained(hub_folder("clap"), trust_remote_code=False)
    model.save_pretrained(tmp_path / "sharded", max_shard_size="20KB")
    index = tmp_path / "sharded/model.safetensors.index.json"
    expert = ClapAudio.model_validate(EXPERT | {"weights": str(tmp_path / "sharded")})
    shards = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    assert len(shards) > 1
    settings = ["config.json", "preprocessor_config.json"]
    assert list(expert.checksums()) == [*settings, index.name, *shards]
    before = expert.bank_name()
    assert expert.dim == 12
    last = tmp_path / "sharded" / shards[-1]
    last.write_bytes(last.read_bytes()[:-4] + b"abcd")
    assert expert.bank_name() != before
