"""Corrections of scores for hubs: formulas, degenerate banks, choice on validation, ranks of runs."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import tiny
from outcomes import refused
from threads import one_thread  # noqa: F401  a fixture

from data_tools.manifest import caption_queries, read_manifest, write_manifest
from data_tools.settings import parse_yaml
from data_tools.tables import write_table
from submission.__main__ import main as submission
from submission.editions import get_edition
from submission.formats.score_matrix import read_scores
from submission.metrics.summary import summarise_matrix
from submission.runs.entry import open_entry
from system.__main__ import main
from system.ranking.hubs import Correction, Kind, candidates_of, correct_for_hubs, precision_by_correction
from system.retriever import load_model

pytestmark = pytest.mark.usefixtures("one_thread")

DRAW = np.random.default_rng(0)
SCORES = DRAW.uniform(-1, 1, (9, 7)).astype(np.float32)
BANK = DRAW.uniform(-1, 1, (20, 7)).astype(np.float32)


def inverted_softmax(scores: np.ndarray, bank: np.ndarray, beta: float) -> np.ndarray:
    """The published formula: probabilities over the queries of the bank."""
    found = np.zeros_like(scores, np.float64)
    for q in range(len(scores)):
        for c in range(scores.shape[1]):
            found[q, c] = np.exp(beta * scores[q, c]) / sum(np.exp(beta * bank[b, c]) for b in range(len(bank)))
    return found


def qb_norm(scores: np.ndarray, bank: np.ndarray, beta: float) -> np.ndarray:
    """The dynamic inverted softmax of the public code: queries whose best clip is best of none keep their scores."""
    normalised, activated = inverted_softmax(scores, bank, beta), set(bank.argmax(1).tolist())
    found = scores.astype(np.float64)
    for q in range(len(scores)):
        if int(scores[q].argmax()) in activated:
            found[q] = np.log(normalised[q]) / beta
    return found


def csls(scores: np.ndarray, bank: np.ndarray, count: int) -> np.ndarray:
    """The published formula."""
    found = np.zeros_like(scores, np.float64)
    for q in range(len(scores)):
        for c in range(scores.shape[1]):
            of_query = np.sort(scores[q])[::-1][:count].astype(np.float64).mean()
            of_clip = np.sort(bank[:, c])[::-1][:count].astype(np.float64).mean()
            found[q, c] = 2 * scores[q, c] - of_query - of_clip
    return found


@pytest.mark.parametrize("strength", [2.0, 10.0])
def test_hubness_corrections_match_the_published_formulas(strength):
    scores, bank = SCORES.astype(np.float64), BANK.astype(np.float64)
    expected = np.log(inverted_softmax(scores, bank, strength)) / strength
    assert correct_for_hubs(SCORES, BANK, Correction("inverted_softmax", strength)) == pytest.approx(expected, abs=1e-6)
    found = correct_for_hubs(SCORES, BANK, Correction("qb_norm", strength))
    assert found == pytest.approx(qb_norm(scores, bank, strength), abs=1e-6)
    assert (found == SCORES).all(1).any() or strength == 10.0, "a query that is not normalised"
    count = int(strength)
    assert correct_for_hubs(SCORES, BANK, Correction("csls", strength)) == pytest.approx(
        csls(scores, bank, count), abs=1e-6
    )
    assert correct_for_hubs(SCORES, BANK, Correction()) is SCORES


@pytest.mark.parametrize("kind", get_args(Kind)[1:])
def test_hubness_correction_with_a_degenerate_query_bank_is_finite(kind):
    correction = Correction(kind, 10.0)
    one = correct_for_hubs(SCORES, BANK[:1], correction)
    assert np.isfinite(one).all()
    repeated = correct_for_hubs(SCORES, np.repeat(BANK[:1], 30, axis=0), correction)
    same_order = one if kind != "qb_norm" else repeated
    assert (np.argsort(repeated) == np.argsort(same_order)).all(), "duplicates count as one"
    flat = correct_for_hubs(SCORES, np.zeros_like(BANK), correction)
    assert (np.argsort(flat) == np.argsort(SCORES)).all(), "a bank without hubs changes no order"
    large = correct_for_hubs(100 * SCORES, 100 * BANK, correction)
    assert np.isfinite(large).all()


def hub_recipe(manifest: Path, folder: Path, **changes: Any) -> Path:
    """A recipe that ranks evaluation with and without a correction."""
    content = tiny.recipe(manifest, folder, only=tiny.stage(epochs=2, steps_per_epoch=3))
    content["rank"] = {
        "evaluation": {"kind": "checkpoint", "data": "evaluation", "stage": "only", "checkpoint": "last"},
        "corrected": {"kind": "hub_corrected", "of": "evaluation", "bank": ["train"], "validation": "validation"},
    }
    for entry in content["rank"].values():
        entry |= {"edition": 2022, "csv": True}
    content["rank"]["corrected"] |= changes
    return tiny.write_recipe(folder / "recipe.yaml", content)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run with a corrected entry."""
    folder = tmp_path_factory.mktemp("hubs")
    manifest = tiny.make_world(folder / "world", {"development": 12, "validation": 10, "evaluation": 10})
    assert main(["run", str(hub_recipe(manifest, folder)), "--out", str(folder / "run")]) == 0
    return folder / "run"


def test_run_chooses_the_hubness_correction_on_validation_and_applies_the_chosen_one(run):
    plain, found = (read_scores(run / f"scores/{name}.npy") for name in ("evaluation", "corrected"))
    noted = found.facts["hub correction"]
    table = noted["validation mAP@10"]
    assert set(table) == {str(one) for one in candidates_of(get_args(Kind))}
    assert noted["correction"] == max(table, key=table.__getitem__)
    assert table[noted["correction"]] >= table["none"]
    assert noted["bank queries"] > 10
    result = json.loads((run / "result.json").read_text())["rank"]
    assert result["corrected"]["checkpoint"].endswith(f"hub correction {noted['correction']}")
    assert (run / "submission/corrected.csv").exists()
    if noted["correction"] == "none":
        assert np.array_equal(plain.values, found.values)
    else:
        assert not np.array_equal(plain.values, found.values)


def test_validation_map_of_hubness_corrections_matches_a_loop_over_ranks(run, tmp_path):
    """mAP@10 on validation with each correction, from scores of the verb rank; each query has one relevant clip."""
    table = read_scores(run / "scores/corrected.npy").facts["hub correction"]["validation mAP@10"]
    model = load_model(run, cache=tmp_path)
    clips = read_manifest(run.parent / "world/manifest.jsonl")
    pool = model.open([clip for clip in clips if clip.split == "validation"])
    queries = caption_queries(pool.clips)
    texts = dict.fromkeys(text for clip in clips if clip.split == "development" for text in clip.captions)
    scores, of_bank = (model.scores(asked, pool) for asked in ([query.text for query in queries], list(texts)))
    column = {clip.id: number for number, clip in enumerate(pool.clips)}
    for correction in candidates_of(get_args(Kind)):
        total = 0.0
        for row, query in zip(correct_for_hubs(scores, of_bank, correction), queries, strict=True):
            rank = 1 + int((row > row[column[(query.relevant or [])[0]]]).sum())
            total += 1 / rank if rank <= 10 else 0.0
        assert table[str(correction)] == pytest.approx(total / len(queries), abs=1e-6)
    assert len(set(table.values())) > 5


def test_hubness_correction_skips_unreadable_training_clips_and_verb_rank_warns_that_it_lacks_it(
    run, tmp_path, monkeypatch, caplog
):
    shutil.copytree(run.parent / "world", tmp_path / "world")
    manifest = tmp_path / "world/manifest.jsonl"
    clips = [replace(clip, path=clip.path.replace(str(run.parent), str(tmp_path))) for clip in read_manifest(manifest)]
    write_manifest(manifest, clips)
    for clip in [clip for clip in clips if clip.split == "development"][:3]:
        Path(clip.path).write_bytes(b"not audio")
    monkeypatch.chdir(tmp_path)
    path = hub_recipe(Path("world/manifest.jsonl"), tmp_path, kinds=["csls"])
    assert main(["run", str(path), "--out", "run"]) == 0
    noted, whole = (read_scores(folder / "scores/corrected.npy").facts for folder in (Path("run"), run))
    assert 0 < noted["hub correction"]["bank queries"] < whole["hub correction"]["bank queries"]
    caplog.clear()
    assert main(["rank", "run", str(manifest), "--split", "evaluation", "--out", "again.npy"]) == 0
    assert "without the hub correction of corrected" in caplog.text
    found, plain = (read_scores(Path(one)) for one in ("again.npy", "run/scores/evaluation.npy"))
    assert found.values == pytest.approx(plain.values, abs=1e-6)


def test_hubness_correction_is_chosen_again_for_another_checkpoint_or_validation_source(run, tmp_path, monkeypatch):
    chosen: list[object] = []

    def counted(*arguments: Any) -> dict[str, float]:
        chosen.append(arguments)
        return precision_by_correction(*arguments)

    monkeypatch.setattr("system.ranking.entries.precision_by_correction", counted)
    manifest = run.parent / "world/manifest.jsonl"
    content = parse_yaml(hub_recipe(manifest, tmp_path).read_bytes())
    content["data"]["other"] = {"manifest": str(manifest), "split": "validation"}
    content["rank"]["corrected"]["validation"] = "other"
    path, out = tmp_path / "recipe.yaml", ["--out", str(tmp_path / "run")]
    for change in ((), ("rank", "evaluation", "checkpoint", "mAP@10"), ("data", "other", "split", "development")):
        if change:
            content[change[0]][change[1]][change[2]] = change[3]
        assert main(["run", str(tiny.write_recipe(path, content)), *out]) == 0
    assert len(chosen) == 3
    assert main(["run", str(path), *out]) == 0
    assert len(chosen) == 3


def test_hubness_corrected_rank_entry_works_in_the_verbs_and_an_export_warns_that_it_lacks_it(
    run, tmp_path, capsys, caplog
):
    assert submission(["compare", f"{run}:corrected", f"{run}:evaluation"]) == 0
    values = [summarise_matrix(read_scores(run / f"scores/{name}.npy"), get_edition(2022)) for name in ENTRIES]
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith(f"{values[0].values['mAP@10']:.4f}")
    assert said[1].startswith(f"{values[1].values['mAP@10']:.4f}")
    assert submission(["report", f"{run}:corrected", "--out", str(tmp_path / "page.html")]) == 0
    assert "hub correction" in (tmp_path / "page.html").read_text()
    (member,) = open_entry(f"{run}:corrected").members
    assert (member["stage"], member["checkpoint"]) == ("only", "last")
    assert main(["runs", str(run.parent)]) == 0
    assert "damaged" not in capsys.readouterr().out
    assert main(["export", str(run), "--out", str(tmp_path / "exported")]) == 0
    load_model(tmp_path / "exported")
    assert "correction" in caplog.text


ENTRIES = ("corrected", "evaluation")


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"bank": ["evaluation"]}, "evaluation"),
        ({"validation": "evaluation"}, "evaluation"),
        ({"of": "absent"}, "corrected.of"),
        ({"bank": ["absent"]}, "absent"),
        ({"kinds": []}, "kinds"),
        ({"bank": ["validation"]}, "validation"),
        ({"bank": ["validation"], "validation": "train"}, "validation"),
    ],
)
def test_hubness_corrections_that_use_the_tested_captions_are_refused(changes, expected, run, tmp_path, capsys):
    path = hub_recipe(run.parent / "world/manifest.jsonl", tmp_path, **changes)
    assert expected in refused(capsys, "run", path, "--out", tmp_path / "run")


def test_correction_set_in_the_recipe_matches_the_formula_with_and_without_known_answers(run, tmp_path):
    manifest, bank = run.parent / "world/manifest.jsonl", tmp_path / "bank.csv"
    clips = read_manifest(manifest)
    known = [clip for clip in clips if clip.split == "evaluation"]
    write_manifest(tmp_path / "blind.jsonl", [replace(clip, captions=[]) for clip in known])
    write_table(tmp_path / "queries.csv", ["caption"], [[text] for clip in known for text in clip.captions])
    path = hub_recipe(manifest, tmp_path, kinds=["inverted_softmax"])
    content = parse_yaml(path.read_bytes())
    content["rank"]["blind"] = {"kind": "blind", "stage": "only", "checkpoint": "last", "edition": 2022}
    content["rank"]["blind"] |= {"audio": str(tmp_path / "blind.jsonl"), "queries": str(tmp_path / "queries.csv")}
    content["rank"]["blind_corrected"] = content["rank"]["corrected"] | {"of": "blind"}
    assert main(["run", str(tiny.write_recipe(path, content)), "--out", str(tmp_path / "run")]) == 0
    names = ("evaluation", "corrected", "blind_corrected")
    plain, found, blind = (read_scores(tmp_path / f"run/scores/{name}.npy") for name in names)
    texts = dict.fromkeys(text for clip in clips if clip.split == "development" for text in clip.captions)
    write_table(bank, ["caption"], [[text] for text in texts])
    ranked = [str(manifest), "--split", "evaluation", "--cache", str(tmp_path / "cache"), str(bank)]
    assert main(["rank", str(tmp_path / "run"), *ranked, "--out", str(tmp_path / "bank.npy")]) == 0
    kind, strength = found.facts["hub correction"]["correction"].split()
    assert kind == "inverted_softmax"
    of_bank = read_scores(tmp_path / "bank.npy").values
    expected = correct_for_hubs(plain.values, of_bank, Correction(kind, float(strength)))
    assert found.values == pytest.approx(expected, abs=1e-5)
    assert blind.values == pytest.approx(found.values, abs=1e-6)
    assert (tmp_path / "run/submission/blind_corrected.csv").exists()
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert set(result["blind"]) == {"blind", "blind_corrected"}
    for name, of_blind in (("corrected", "blind_corrected"), ("evaluation", "blind")):
        submitted = open_entry(f"{tmp_path / 'run'}:{name}").blind
        assert submitted
        assert submitted.name == of_blind, "the scores that a package submits"
