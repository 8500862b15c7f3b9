"""Rank entries may change after training without training again; blind sets are ranked after they arrive."""

import json
import re
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from outcomes import rewrite, stopped
from recorded_run import about

from data_tools.errors import KitError
from data_tools.tables import write_table
from submission.__main__ import main as submission
from submission.formats.score_matrix import ScoreMatrix, read_scores
from system.__main__ import main
from system.recipe.load import load_recipe
from system.runs.folder import Run
from system.runs.open import open_trained

QUERIES = ["A deep tone sounds.", "A shrill hum, twice", "a low note"]


@pytest.fixture
def desk(unbroken, recipe, tmp_path, monkeypatch):
    """A folder with runs/tiny_s3, a trained run, and mine.yaml, its recipe. Nothing can be trained."""
    shutil.copytree(unbroken, tmp_path / "runs/tiny_s3")
    shutil.copy(recipe, tmp_path / "mine.yaml")
    monkeypatch.chdir(tmp_path)

    monkeypatch.setattr("system.training.train.train_stage", lambda *_: pytest.fail("something is trained"))
    return tmp_path


def change(**entries: dict[str, Any] | None) -> None:
    """Entries of mine.yaml's `rank`, given or taken away."""
    content = yaml.safe_load(Path("mine.yaml").read_text())
    content["rank"] |= entries
    content["rank"] = {name: entry for name, entry in content["rank"].items() if entry}
    Path("mine.yaml").write_text(yaml.dump(content, Dumper=yaml.CSafeDumper, sort_keys=False))


def entry(**changes: Any) -> dict[str, Any]:
    settings: dict[str, Any] = yaml.safe_load(Path("mine.yaml").read_text())["rank"]["evaluation"]
    return settings | changes


def blind(**changes: Any) -> dict[str, Any]:
    settings = {key: value for key, value in entry().items() if key in ("stage", "checkpoint")}
    return {"kind": "blind", "audio": "set/test", "queries": "set/captions.csv", "edition": 2025} | settings | changes


def unpack(world: Path) -> None:
    """The blind set is published."""
    shutil.copytree(world.parent / "evaluation", "set/test")
    write_table(Path("set/captions.csv"), ["caption"], [[text] for text in QUERIES])


def rank(*options: str) -> None:
    assert main(["run", "mine.yaml", *options]) == 0


def scores(entry: str) -> ScoreMatrix:
    return read_scores(Path(f"runs/tiny_s3/scores/{entry}.npy"))


def result() -> dict[str, Any]:
    return json.loads(Path("runs/tiny_s3/result.json").read_text())


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file() and path.name != "log.txt"}


def test_rank_entry_added_with_a_new_edition_is_ranked_without_training(desk, capsys, caplog):
    before, stamp = result(), Path("runs/tiny_s3/scores/evaluation.npy").stat().st_mtime_ns
    change(later=entry(edition=2025), last=entry(checkpoint="last"), both=None)
    rank()
    assert [path.name for path in Path("runs").iterdir()] == ["tiny_s3"], "no second run"
    assert "entries" in caplog.text
    after = result()
    assert list(after["rank"]) == ["evaluation", "later", "last"]
    assert after["rank"]["evaluation"] == before["rank"]["evaluation"]
    assert Path("runs/tiny_s3/scores/evaluation.npy").stat().st_mtime_ns == stamp, "kept, not made again"
    assert after["rank"]["later"]["mAP@10"] == before["rank"]["evaluation"]["mAP@10"]
    assert after["rank"]["later"]["metric"] == "mAP@16"
    assert Path("runs/tiny_s3/recipe.yaml").read_bytes() == Path("mine.yaml").read_bytes()
    assert submission(["score", "runs/tiny_s3:later"]) == 0
    kept = contents(Path("runs/tiny_s3"))
    stamps = {path: path.stat().st_mtime_ns for path in Path("runs/tiny_s3").rglob("*")}
    caplog.clear()
    rank("--runs", "runs", "--name", "tiny_s3")
    assert "finished already" in caplog.text
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps, "nothing is written again"
    change(evaluation=entry(edition=2023), later=None, last=None)  # the same name, another file
    rank("--until", "training")
    assert contents(Path("runs/tiny_s3")) == kept, "its training is finished"
    rank()
    assert list(result()["rank"]) == ["evaluation"]
    assert Path("runs/tiny_s3/submission/evaluation.csv").read_text().startswith("caption,fname_1,")
    assert main(["rank", "runs/tiny_s3", "nowhere", "--out", "x.npy"]) == 1  # it opens: no damage is found
    assert "nowhere" in capsys.readouterr().err


def test_blind_set_is_ranked_after_it_arrives_and_after_it_changes(desk, world, capsys, caplog):
    change(blind=blind(), blind_last=blind(checkpoint="last"))
    rank()
    assert "blind: not ranked yet, without set/test and set/captions.csv" in capsys.readouterr().out
    assert "blind" not in result()["blind"]
    assert main(["check", "mine.yaml"]) == 0
    assert "skipped until set/test and set/captions.csv exist" in capsys.readouterr().out
    unpack(world)
    rank()
    assert "training" in caplog.text
    assert "24 clips" in caplog.text
    assert "blind: blind set, 3 queries, 24 clips, finetune epoch" in capsys.readouterr().out
    assert main(["rank", "runs/tiny_s3", "set/test", "set/captions.csv", "--out", "by_hand.npy"]) == 0
    first, by_hand = scores("blind"), read_scores(Path("by_hand.npy"))
    assert np.array_equal(first.values, by_hand.values)
    assert (first.query_texts, first.file_names) == (QUERIES, by_hand.file_names)
    csv = "runs/tiny_s3/submission/blind.csv"
    check = ["check", csv, "--queries", "set/captions.csv", "--audio", "set/test", "--edition", "2025"]
    assert submission(check) == 0
    assert submission(["score", "runs/tiny_s3:blind"]) == 1
    assert "metrics" in capsys.readouterr().err
    write_table(Path("set/captions.csv"), ["caption"], [[text] for text in (*QUERIES[:2], "a lower note")])
    rank()
    second = scores("blind")
    assert second.query_texts[2] == "a lower note"
    assert np.array_equal(second.values[:2], first.values[:2])
    one, other = sorted(Path("set/test").iterdir())[:2]
    shutil.copy(other, one)
    caplog.clear()
    rank()
    assert "blind_last" in caplog.text
    third = scores("blind")
    assert np.array_equal(third.values[:, 0], third.values[:, 1])
    assert np.array_equal(third.values[:, 1:], second.values[:, 1:])
    caplog.clear()
    rank()
    assert "ranking the new" not in caplog.text


@pytest.mark.usefixtures("desk")
def test_run_opens_with_the_checkpoint_of_its_first_rank_entry_that_is_no_mean_of_models():
    best, last = entry(), entry(checkpoint="last")
    first = blind(stage="pretrain", checkpoint="m1")
    second = blind(stage="pretrain", checkpoint="last")
    mean = {"kind": "mean", "edition": 2022, "csv": False, "of": ["b", "c"]}
    for entries, opened in (
        ({"a": first}, r"pretrain epoch \d, best m1 .*"),
        ({"a": first, "b": second, "c": second, "mean": mean | {"edition": 2025}}, r"pretrain epoch \d, best m1 .*"),
        ({"a": first, "b": last, "c": best, "mean": mean}, "finetune last"),
    ):
        before = yaml.safe_load(Path("mine.yaml").read_text())["rank"]
        change(**dict.fromkeys(before) | entries)
        rank()
        assert re.fullmatch(opened, open_trained(Path("runs/tiny_s3")).facts.checkpoint)


def test_package_contains_the_blind_set_results_of_the_checkpoints_of_its_rank_entry(desk, world, capsys):
    unpack(world)
    mean = {"kind": "mean", "edition": 2025, "csv": False}
    change(
        evaluation=entry(edition=2025, csv=False),
        last=entry(checkpoint="last", edition=2025, csv=False),
        mean=mean | {"of": ["evaluation", "last"]},
        blind=blind(),
        blind_last=blind(checkpoint="last"),
        blind_mean=mean | {"of": ["blind", "blind_last"]},
    )
    rank()
    one, other, both = (scores(f"blind{name}") for name in ("", "_last", "_mean"))
    assert np.allclose(both.values, (one.values + other.values) / 2, atol=1e-6)
    for run, ranked in (
        ("runs/tiny_s3", "blind"),
        ("runs/tiny_s3:mean", "blind_mean"),
        ("runs/tiny_s3:last", "blind_last"),
    ):
        Path("about.yaml").write_text(json.dumps(about(1, sources={"tones": {"url": None}})))
        capsys.readouterr()
        assert submission(["pack", run, "--about", "about.yaml", "--out", "p.zip"]) == 0, capsys.readouterr().err
        assert f"runs/tiny_s3/scores/{ranked}.npy" in capsys.readouterr().out
        with zipfile.ZipFile("p.zip") as made:
            (name,) = (name for name in made.namelist() if name.endswith(".output.csv"))
            assert made.read(name) == Path(f"runs/tiny_s3/submission/{ranked}.csv").read_bytes()


def test_ranking_of_a_deleted_blind_set_is_kept(desk, world, capsys):
    unpack(world)
    change(blind=blind(), blind_last=blind(checkpoint="last"))
    rank()
    noted = result()["blind"]
    kept = {path: path.read_bytes() for path in Path("runs/tiny_s3").glob("s*/blind*")}
    assert len(kept) == 6
    shutil.rmtree("set")
    rank()
    assert result()["blind"] == noted, "it is only gone"
    change(later=entry(edition=2025))
    rank()
    assert list(result()["rank"]) == ["evaluation", "later"]
    assert result()["blind"] == noted
    assert "not ranked yet" not in capsys.readouterr().out
    assert {path: path.read_bytes() for path in kept} == kept
    change(blind=blind(checkpoint="last"), blind_last=None)
    rank()
    assert not result()["blind"], "the old scores are of another checkpoint"
    assert not list(Path("runs/tiny_s3").rglob("blind*"))


@pytest.mark.parametrize("there_first", [False, True])
def test_run_uses_the_blind_sets_that_exist_when_it_starts(there_first, desk, world, monkeypatch):
    if there_first:
        unpack(world)
    change(blind=blind(), later=entry(edition=2025))

    def trains(*_: object) -> None:
        shutil.rmtree("set") if there_first else unpack(world)

    monkeypatch.setattr("system.experiments.run.train", trains)
    rank()
    assert list(result()["blind"]) == (["blind"] if there_first else [])


def test_ranking_another_split_after_training_is_not_refused_as_changed_data(desk):
    before = result()["rank"]["evaluation"]
    content = yaml.safe_load(Path("mine.yaml").read_text())
    content["data"]["evaluation"]["split"] = "validation"
    Path("mine.yaml").write_text(yaml.dump(content, Dumper=yaml.CSafeDumper, sort_keys=False))
    rank()
    assert [path.name for path in Path("runs").iterdir()] == ["tiny_s3"]
    assert result()["rank"]["evaluation"]["clips"] != before["clips"]
    kept = contents(Path("runs/tiny_s3"))
    rank()
    assert contents(Path("runs/tiny_s3")) == kept


def test_reordered_stages_or_experts_are_another_run(recipe, tmp_path):
    content = yaml.safe_load(recipe.read_text())
    experts = content["model"]["audio"]["experts"]
    experts["second"] = dict(next(iter(experts.values())), bands=16)
    run = Run(tmp_path / "run")

    def begin() -> None:
        (tmp_path / "mine.yaml").write_text(yaml.dump(content, Dumper=yaml.CSafeDumper, sort_keys=False))
        run.require_place(load_recipe(tmp_path / "mine.yaml"))
        run.adopt(load_recipe(tmp_path / "mine.yaml"))

    begin()
    content["data"] = dict(reversed(content["data"].items()))
    begin()
    content["model"]["audio"]["experts"] = dict(reversed(experts.items()))
    with pytest.raises(KitError, match=r"is a run with other settings \(the order of stages or experts\)"):
        begin()


def test_files_of_removed_rank_entries_are_deleted(desk, caplog):
    change(later=entry(edition=2025))
    rank()
    names = {path.name for path in Path("runs/tiny_s3").glob("s*/*") if path.is_file()}
    assert {"later.npy", "later.csv", "later.clips.csv", "evaluation.csv"} <= names
    change(later=None, evaluation=entry(csv=False))
    caplog.clear()
    assert main(["-q", "run", "mine.yaml"]) == 0
    loud = [record.message for record in caplog.records if record.levelname == "WARNING"]
    (message,) = loud
    assert "later" in message
    names = {path.name for path in Path("runs/tiny_s3").glob("s*/*") if path.is_file()}
    assert not names & {"later.npy", "later.csv", "later.clips.csv", "evaluation.csv"}
    assert "evaluation.npy" in names


@pytest.mark.parametrize("place", ["ranking.RunRanking._rank_entry", "run.describe_run"])
def test_interrupted_ranking_leaves_no_old_result(place, desk, monkeypatch):
    change(evaluation=entry(checkpoint="last"))
    with monkeypatch.context() as patched:
        patched.setattr(f"system.experiments.{place}", stopped)
        assert main(["run", "mine.yaml"]) == 130
    assert not Path("runs/tiny_s3/result.json").exists()
    rank()
    assert result()["rank"]["evaluation"]["checkpoint"] == "finetune last"
    assert [path.name for path in Path("runs").iterdir()] == ["tiny_s3"]


def test_broken_blind_set_leaves_the_run_unchanged(desk, world, monkeypatch, capsys):
    unpack(world)
    broken = sorted(Path("set/test").iterdir())[3]
    broken.write_bytes(b"no audio")
    before = contents(Path("runs"))
    change(blind=blind())
    assert main(["run", "mine.yaml"]) == 1
    said = capsys.readouterr().err
    assert "cannot" in said
    assert f"{broken.name}: cannot be decoded" in said
    assert contents(Path("runs")) == before
    broken.unlink()
    for column, texts, word in (("text", ["a low note"], "column"), ("caption", ["a low note"] * 2, "a low note")):
        write_table(Path("set/captions.csv"), [column], [[text] for text in texts])
        assert main(["run", "mine.yaml"]) == 1
        assert word in capsys.readouterr().err
    assert contents(Path("runs")) == before
    trained = []
    monkeypatch.setattr("system.experiments.run.train", lambda *_: trained.append(1))
    assert main(["run", "mine.yaml", "--name", "new"]) == 1
    assert "a low note" in capsys.readouterr().err
    assert not trained, "it is found before the training"


def test_invalid_rank_entries_of_blind_sets_and_means_are_refused(desk, capsys):
    mean = {"kind": "mean", "edition": 2022, "csv": False}
    hubs = {"kind": "hub_corrected", "bank": ["train"], "validation": "validation", "edition": 2022, "csv": False}
    change(blind=blind(), corrected=hubs | {"of": "evaluation"}, of_blind=hubs | {"of": "blind"})
    change(mean=mean | {"of": ["evaluation", "corrected"]})
    assert main(["check", "mine.yaml"]) == 0
    for entries, word in (
        ({"mean": mean | {"of": ["corrected", "of_blind"]}}, "different"),
        ({"mean": mean | {"of": ["evaluation", "blind"]}}, "rank.mean.of"),
        ({"mean": None, "blind": blind(stage="odd")}, "rank.blind.stage"),
    ):
        change(**entries)
        assert main(["check", "mine.yaml"]) == 1
        assert word in capsys.readouterr().err


def test_mean_takes_the_scores_of_other_runs_and_models(desk, capsys):
    mean = {"kind": "mean", "edition": 2025, "csv": False}
    change(last=entry(checkpoint="last", csv=False))
    rank()
    assert main(["export", "runs/tiny_s3:last", "--out", "models/one"]) == 0
    change(mean=mean | {"of": ["evaluation", "models/one"]})
    rank()
    best, last, both = (scores(one) for one in ("evaluation", "last", "mean"))
    assert np.allclose(both.values, (best.values + last.values) / 2, atol=1e-6)
    assert both.facts["of"].keys() == {"evaluation", "models/one"}
    shutil.rmtree("models")
    rank()  # finished
    change(other=mean | {"of": ["evaluation", "./nowhere"]})
    assert main(["check", "mine.yaml"]) == 1
    assert "nowhere" in capsys.readouterr().out
    assert main(["run", "mine.yaml"]) == 1
    assert "nowhere" in capsys.readouterr().err
    assert result()["rank"].keys() >= {"evaluation", "mean"}
    change(other=None)
    shutil.copytree("runs/tiny_s3", "models/one")
    Path("models/one/finetune/done.json").write_text(Path("models/one/finetune/done.json").read_text() + " ")
    rank()
    again = scores("mean")
    assert again.values == pytest.approx(best.values, abs=1e-6), "another model stands there"
    rewrite(Path("models/one/resolved.json"), rank={"evaluation": entry(checkpoint="m1")})
    rank()
    assert not np.allclose(scores("mean").values, best.values, atol=1e-3), "its first entry names epoch 1 of 3"


def test_lost_files_of_a_rank_entry_are_written_again(desk):
    files = [Path("runs/tiny_s3", name) for name in ("scores/evaluation.npy", "submission/evaluation.csv")]
    before = [file.read_bytes() for file in files]
    for lost in (files, files[:1], [Path("runs/tiny_s3/results/evaluation.json")]):
        for file in lost:
            file.unlink()
        rank()
        assert [file.read_bytes() for file in files] == before
