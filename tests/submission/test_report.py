"""The report of real runs: complete ones, and runs with missing parts, in one self-contained file."""

import base64
import io
import itertools
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from reported import HARM, Read, change, make_run, report, rescore

from submission.__main__ import main
from submission.formats.score_matrix import ScoreMatrix, read_scores
from submission.metrics.scoring import ranks_in_matrix
from submission.metrics.summary import summarise
from submission.report import figures
from submission.report.results import loss_margins
from submission.runs.clips import read_clips
from submission.runs.finished import open_finished


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("reported"))


@pytest.fixture
def run(made: Path, tmp_path: Path) -> Path:
    """A copy to change, without the checkpoints."""
    return Path(shutil.copytree(made, tmp_path / "run", ignore=shutil.ignore_patterns("pretrain", "finetune")))


@pytest.fixture(scope="module")
def whole(made: Path) -> Read:
    """The report of the complete run, in its default place."""
    assert main(["report", f"{made}:best", "--beside", f"{made}:mean"]) == 0
    return Read(made / "report.html")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw the figures, but write empty files, since nobody looks at them."""
    monkeypatch.setattr(figures, "save", lambda figure, path: path.write_text("<svg/>"))


SECTIONS = ["result", "settings", "run", "learning", "ranks", "scores", "experts", "lengths", "listening", "caveats"]


def test_report_has_every_section_with_a_link(whole: Read) -> None:
    assert [attrs["id"] for attrs in whole.all("section")] == SECTIONS
    assert [attrs["href"] for attrs in whole.all("a")] == [f"#{name}" for name in SECTIONS]
    assert whole.all("html") == [{"lang": "en"}]
    levels = [int(tag[1]) for tag, _ in whole.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels)), "a heading leaves a level out"


def test_report_is_self_contained(whole: Read) -> None:
    for tag, attrs in whole.tags:
        for name in ("src", "href", "srcset", "action", "poster", "data", "style"):
            assert re.match("#|data:", attrs.get(name, "#")), (tag, name, attrs[name][:80])
    (policy,) = (attrs["content"] for attrs in whole.all("meta") if "http-equiv" in attrs)
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    assert "@import" not in whole.html
    assert "url(" not in whole.html
    assert len(whole.html) < 8e6


def test_every_figure_has_alternative_text_and_a_table(made: Path, whole: Read) -> None:
    shown = whole.all("img")
    drawn = {path.name for path in (made / "figures").iterdir()}
    own = {f"best.{name}.svg" for name in ("result", "ranks", "scores", "margins", "experts", "words")}
    assert own <= drawn
    assert "best.seconds.svg" not in drawn, "all clips are of one length: a single bar"
    assert "R@10 by length of the clip is left out: all queries are in the bin of 0–5 seconds." in whole.text
    trained = {"loss.svg", "accuracy.svg", "similarity.svg", "violations.svg", "relevance.svg"}
    assert trained <= drawn
    contents = {base64.b64encode((made / "figures" / name).read_bytes()).decode() for name in own | trained}
    assert contents <= {attrs["src"].removeprefix("data:image/svg+xml;base64,") for attrs in shown}
    assert all(len(attrs["alt"]) > 40 for attrs in shown)
    assert len({attrs["alt"] for attrs in shown}) == len(shown)
    assert whole.html.count("<summary>Numbers of this figure</summary>") == len(shown)


def test_report_shows_the_figures_of_the_run(made: Path, whole: Read) -> None:
    result = json.loads((made / "result.json").read_text())
    best = result["rank"]["best"]
    for metric in ("mAP@10", "R@1", "R@5", "R@10", "chance", "untrained"):
        assert f"{best[metric]:.4f}" in whole.text, metric
    for low, high in (best["interval"], best["bootstrap"]):
        assert f"{low:.4f} to {high:.4f}" in whole.text.replace("\xa0", " ")
    assert f"mAP@10 {best['mAP@10']:.4f}" in whole.text
    for words in ("tiny, seed 3", result["hardware"], best["checkpoint"], "120 queries", "24 clips", "not known (24)"):
        assert words in whole.text, words
    assert "trains pretrain; trains finetune" in whole.text
    assert "No ranked clip is also training data" in whole.text
    assert "factor on the margin: 1 at percentile 60, 0.7 at percentile 80, 0.4 at percentile 95" in whole.html
    lines = [json.loads(line) for line in (made / "metrics.jsonl").read_text().splitlines()]
    assert f"training from {lines[0]['loss']:.3g} to {lines[1]['loss']:.3g}" in whole.html


@pytest.mark.usefixtures("quick")
def test_report_in_edition_2025_shows_map_at_16_and_omits_the_ceiling_of_map_at_10(run: Path) -> None:
    for entry in ("best", "last"):
        change(run / "result.json", lambda content, entry=entry: content["rank"][entry].update(ceiling=0.7654))
    own = report(run, entry="last")
    assert "mAP@16 " in own.text
    assert "those of edition 2025" in own.text
    assert "untrained" in own.text
    assert "ceiling" not in own.text, "that is of mAP@10"
    changed = report(run, "--edition", "2025")
    assert "mAP@16 " in changed.text
    assert "mAP@16 of the untrained model is not known" in changed.text
    assert "; ceiling 0.7654" in report(run).text


def only(matrix: ScoreMatrix, n: int) -> ScoreMatrix:
    """Return the first queries of a matrix."""
    return replace(
        matrix,
        values=matrix.values[:n],
        query_ids=matrix.query_ids[:n],
        query_texts=matrix.query_texts[:n],
        relevant=matrix.relevant[:n],
    )


@pytest.mark.usefixtures("quick")
def test_report_compares_other_runs_or_says_why_it_cannot(run: Path, made: Path) -> None:
    rescore(run, lambda matrix: replace(matrix, values=-matrix.values), "mean")
    rescore(run, lambda matrix: only(matrix, 80), "last")
    found = report(run, "--beside", f"{run}:mean", f"{made}:best", f"{run}:best", f"{run}:last")
    own, other = (
        summarise(ranks_in_matrix(read_scores(run / f"scores/{entry}.npy"))).values["mAP@10"]
        for entry in ("best", "mean")
    )
    assert own != other
    assert f"run:mean{own - other:+.4f}" in found.text
    assert f"{made.parent.name}/run:best+0.0000" in found.text, "two runs have one name"
    assert str(made.parent) not in found.html
    assert f"{run.parent.name}/run:best+0.0000" in found.text
    assert "1.00000 / 120 / 0" in found.text, "p, and queries better, equal, worse"
    assert "run:lastnot comparable: the systems have different queries (120 and 80)" in found.text
    assert "p is the result of a paired randomisation test" in found.text
    assert "paired randomisation" not in report(run).text


@pytest.mark.usefixtures("quick")
def test_report_lists_differing_settings_with_both_values(run: Path, made: Path) -> None:
    recipe = json.loads((run / "resolved.json").read_text())
    recipe["stages"]["finetune"]["losses"][0]["margin"] = 0.35
    recipe["stages"]["finetune"]["batch_size"] = 6
    recipe["banks"] = "/somebody/else"
    del recipe["stages"]["finetune"]["losses"][1]
    (run / "resolved.json").write_text(json.dumps(recipe))
    found = report(run, "--beside", f"{made}:best", f"{run}:mean")
    (cells,) = re.findall(r'<section id="settings".*?</section>', found.html, re.DOTALL)
    rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", cells)]
    other = "run:best"
    assert rows[0] == ["setting", "this run", other]
    values = {key: (this, that) for key, this, that in rows[1:]}
    assert values["stages.finetune.batch_size"] == ("6", "8")
    assert values["stages.finetune.losses.0.margin"] == ("0.35", "0.2")
    assert values["stages.finetune.losses.1.kind"] == ("–", "&#34;matching&#34;")
    assert values["banks"] == ("&#34;…/else&#34;", "&#34;…/banks&#34;")
    assert set(values) - {"banks"} == {
        *("stages.finetune.batch_size", "stages.finetune.losses.0.margin"),
        *(key for key in values if key.startswith("stages.finetune.losses.1.")),
    }
    assert "run:mean has the same settings as this run." in found.text
    assert "somebody" not in found.html


@pytest.mark.usefixtures("quick")
def test_report_describes_a_single_epoch_instead_of_drawing_it(run: Path) -> None:
    path = run / "metrics.jsonl"
    path.write_text(path.read_text().splitlines()[0] + "\n")
    found = report(run)
    titles = re.findall(r"<figcaption>(.*?)</figcaption>", found.html)
    assert "Loss" not in titles
    assert "Similarity of captions, and the relaxed margin" in titles
    loss = json.loads(path.read_text())["loss"]
    assert f"Loss by epoch: training {loss:.3g} (epoch 1)" in found.text


def test_report_explains_the_training_accuracies_m1_and_m2(whole: Read, run: Path) -> None:
    meaning = (
        "the share of clips whose own caption has the highest score (m1), and the share of captions whose own clip "
    )
    meaning += "has the highest score (m2)"
    assert whole.text.count(meaning) == 1, "at the curves"
    change(run / "result.json", lambda content: content["rank"]["best"].update(checkpoint="only epoch 1, best m1 0.5"))
    assert report(run).text.count(meaning) == 2, "and at the checkpoint"


def test_report_embeds_the_audio_of_a_repeated_clip_once(made: Path, whole: Read) -> None:
    players = [int(attrs["data-clip"]) for attrs in whole.all("audio")]
    assert sorted(set(players)) == list(range(len(whole.audio)))
    assert len(whole.names) == len(players)
    by_name = dict(zip(whole.names, players, strict=True))
    assert len(by_name) == len(whole.audio) < len(players)
    name, number = next(iter(by_name.items()))
    wave, rate = soundfile.read(io.BytesIO(base64.b64decode(whole.audio[number].partition(",")[2])))
    assert rate == 24_000
    clip = made.parent / "world/evaluation" / name
    assert len(wave) / rate == pytest.approx(soundfile.info(clip).duration, abs=0.1)
    spectrum = np.abs(np.fft.rfft(wave))
    original, own_rate = soundfile.read(clip)
    loudest = np.abs(np.fft.rfft(original)).argmax() * own_rate / len(original)
    assert spectrum.argmax() * rate / len(wave) == pytest.approx(loudest, abs=5)
    assert whole.text.count("✓ relevant") + whole.text.count("✗ not relevant") == len(players)


@pytest.mark.usefixtures("quick")
def test_listening_section_shows_ranks_scores_and_clips_of_a_query(run: Path) -> None:
    """Nine queries over five clips; the second one has two relevant clips, at the ranks 2 and 5."""
    values = [[0.9 - 0.1 * row, 0.3, 0.2, 0.1, 0.0] for row in range(9)]
    values[1] = [0.5, 0.4, 0.3, 0.2, 0.1]

    def edit(matrix: ScoreMatrix) -> ScoreMatrix:
        ids, names = matrix.clip_ids[:5], matrix.file_names[:5]
        relevant: list[list[str] | None] = [[ids[0]] for _ in values]
        relevant[1] = [ids[4], ids[1]]
        return replace(
            matrix, values=np.array(values, np.float32), query_ids=matrix.query_ids[:9],
            query_texts=[f"query {row}" for row in range(9)], clip_ids=ids, file_names=names, relevant=relevant,
        )  # fmt: skip

    rescore(run, edit)
    change(run / "resolved.json", lambda recipe: recipe["stages"]["finetune"]["losses"][0].update(margin=0.15))
    found = report(run)
    # Rank 1: 0, 2, 3, 4, 5, 6 (tied, first by name), margins falling; rank 2: 1, 7 (tied); rank 3: 8 (tied).
    assert re.findall(r"query \d", found.text) == [f"query {row}" for row in (0, 2, 3, 4, 5, 6, 8, 7, 1)]
    last = found.text[found.text.index("query 1") :]
    assert "first relevant clip at rank 2, margin -0.1000" in last
    assert re.findall(r"rank (\d)\s+score (-?[\d.]+)", last) == [
        ("1", "0.5000"), ("2", "0.4000"), ("3", "0.3000"), ("5", "0.1000"),
    ]  # fmt: skip
    assert re.findall("[✓✗]", last) == ["✗", "✓", "✗", "✓"]
    output = " ".join(found.text.split())
    assert "For 55.6 % of 9 queries the best relevant clip scores higher than every clip that is not" in output
    assert (
        "For 44.4 % of 9 queries the best relevant clip scores higher than the hardest negative by at least the "
        "margin 0.15 of the ranking loss" in output
    )
    assert "For 3 of 9 queries, a clip that is not relevant has exactly the score" in found.text


@pytest.mark.usefixtures("quick")
def test_report_counts_relevant_clips_that_it_does_not_show(run: Path) -> None:
    rescore(run, lambda matrix: replace(matrix, relevant=[list(matrix.clip_ids[:12])] * len(matrix)))
    found = report(run)
    shown = [re.findall("[✓✗]", part) for part in found.text.split("first relevant clip at rank")[1:]]
    for marks, part in zip(shown, found.text.split("first relevant clip at rank")[1:], strict=True):
        (further,) = re.findall(r"and (\d+) more relevant further down", part)
        assert len(marks) == 6
        assert marks.count("✓") + int(further) == 12


def test_report_escapes_html_in_names_and_captions(run: Path) -> None:
    def harm(matrix: ScoreMatrix) -> ScoreMatrix:
        return replace(matrix, file_names=[HARM + str(n) for n in range(24)], query_texts=[HARM] * 120)

    rescore(run, harm)
    found = report(run)
    assert len(found.all("script")) == 2
    assert found.names
    assert all(name.startswith(HARM) for name in found.names), "not verbatim"
    assert found.text.count(HARM) >= 15 + len(found.names)


def test_report_of_a_mean_of_models_explains_its_missing_embedding_norms(run: Path) -> None:
    found = report(run, entry="mean")
    assert "left out: mean is a mean of last, best; write the report of one of these entries instead" in found.text
    assert [attrs["id"] for attrs in found.all("section")] == [name for name in SECTIONS if name != "settings"]


@pytest.mark.usefixtures("quick")
def test_report_of_one_expert_has_no_experts_section(run: Path) -> None:
    change(run / "result.json", lambda content: content["experts"].pop("coarse"))
    assert "experts" not in [attrs["id"] for attrs in report(run).all("section")]


@pytest.mark.usefixtures("quick")
def test_report_of_a_run_without_stored_embedding_norms_explains_their_lack(run: Path) -> None:
    path = run / "scores/best.clips.csv"
    rows = [",".join(line.split(",")[:3]) for line in path.read_text().splitlines()]
    path.write_text("\n".join(rows) + "\n")
    assert (
        "The shares of the experts are left out: the run has not stored the norms of its experts' embeddings"
        in report(run).text
    )


def test_report_works_without_training_curves_provenance_and_audio(run: Path, whole: Read) -> None:
    for name in ("loss", "relevance"):
        (run / f"figures/{name}.svg").unlink()
    (run / "provenance.json").unlink()
    path = run / "scores/best.clips.csv"
    path.write_text(path.read_text().replace("/world/", "/elsewhere/"))
    found = report(run)
    assert "Command" not in found.text
    assert len(found.all("img")) == len(whole.all("img")) - 2
    assert found.audio == []
    assert found.all("audio") == []
    assert "no longer exists" in found.text


def test_report_works_for_one_query(run: Path) -> None:
    rescore(run, lambda matrix: only(matrix, 1))
    found = report(run)
    assert "1 query, 24 clips" in found.text
    assert "95 % – by jackknife" in found.text
    assert "The middle" not in found.text
    shown = {attrs["alt"].split(" by ")[0] for attrs in found.all("img")}
    assert not shown & {"R@10", "At 100.0"}, "a single bar"
    assert "R@10 by length of the caption is left out: all queries are in the bin of 5–7 words." in found.text
    assert not any("median" in attrs["alt"] for attrs in found.all("img")), "histograms of one number"


def test_report_of_a_matrix_with_only_relevant_clips_notes_missing_negatives(run: Path) -> None:
    rescore(run, lambda matrix: replace(matrix, relevant=[list(matrix.clip_ids)] * len(matrix)))
    found = report(run)
    assert "there is no negative" in found.text
    assert "margin –" in found.text


@pytest.mark.usefixtures("quick")
def test_report_describes_the_ranking_loss_margins_used_to_train_the_ranked_checkpoints(made: Path, run: Path) -> None:
    finished = open_finished(f"{made}:best")
    output = {0.2: "the margin 0.2 of the ranking loss, which training relaxes by CIDEr-D"}
    assert loss_margins(finished) == output
    assert loss_margins(open_finished(f"{made}:mean")) == output
    recipe = json.loads((run / "resolved.json").read_text())
    recipe["stages"]["pretrain"]["losses"][0]["margin"] = 0.5
    recipe["rank"]["last"]["stage"] = "pretrain"
    recipe["stages"]["finetune"]["losses"][0]["relax"] = "none"
    (run / "resolved.json").write_text(json.dumps(recipe))
    two = open_finished(f"{run}:mean")
    assert list(loss_margins(two)) == [0.2, 0.5]
    assert loss_margins(two)[0.2] == "the margin 0.2 of the ranking loss"
    recipe["stages"]["finetune"]["losses"] = [{"kind": "nt_xent", "weight": 1.0, "temperature": 0.07}]
    (run / "resolved.json").write_text(json.dumps(recipe))
    assert loss_margins(open_finished(f"{run}:best")) == {}
    assert "margin of" not in report(run).text


@pytest.mark.usefixtures("quick")
def test_report_caveats_list_reasons_why_figures_may_be_optimistic(run: Path) -> None:
    def flatter(content: Any) -> None:
        content["rank"]["best"]["also_trained_on"] = 7
        content["broken"] = {"world/evaluation/x.wav": "truncated <b>"}
        content["commits"] = ["abc", "def+"]

    change(run / "result.json", flatter)
    change(
        run / "resolved.json",
        lambda recipe: recipe["stages"]["finetune"]["monitor"].update(test_split="acknowledged"),
    )
    text = report(run).text
    for words in (
        "Warning: 7 ranked clips are also training data",
        "1 clip with broken audio was left out",
        "world/evaluation/x.wav: truncated <b>",
        "A test split was monitored during training (stages: finetune)",
        "The code had uncommitted changes",
        "resumed with other code; its commits are abc, def+",
    ):
        assert words in text, words


@pytest.mark.usefixtures("quick")
def test_report_assigns_queries_of_a_clip_to_the_expert_with_the_largest_embedding_norm(run: Path) -> None:
    """One expert dominates two clips, the other the rest; the mAP@10 of their queries is computed here by hand."""
    path = run / "scores/best.clips.csv"
    lines = path.read_text().splitlines()
    rows = [line.split(",")[:3] + (["3", "1"] if n < 2 else ["1", "4"]) for n, line in enumerate(lines[1:])]
    path.write_text("\n".join([lines[0], *map(",".join, rows)]) + "\n")
    matrix = read_scores(run / "scores/best.npy")
    assert read_clips(path, matrix.clip_ids).norms["coarse"].tolist() == [1.0] * 2 + [4.0] * 22
    text = report(run).text
    share = (2 * 3 / 4 + 22 * 1 / 5) / 24
    assert (
        f"logmel has on average {100 * share:.1f} % of the sum of the experts' norms, and the largest norm in 2 of 24"
        in text.replace("\xa0", " ")
    )
    precision = []
    for row in range(10):  # five captions each of the first two clips
        own = matrix.values[row, matrix.clip_ids.index((matrix.relevant[row] or [""])[0])]
        rank = 1 + np.count_nonzero(matrix.values[row] > own)
        precision.append(1 / rank if rank <= 10 else 0)
    assert f"logmel10{np.mean(precision):.4f}" in text


def test_damaged_run_files_are_reported_with_one_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def refused(*arguments: str) -> str:
        assert main(["report", *arguments]) == 1
        output = capsys.readouterr().err
        assert output.startswith("error: ")
        assert output.count("\n") == 1
        return output

    (run / "report.html").unlink(missing_ok=True)
    assert "page" in refused(str(run), "--out", "x.pdf")
    assert "ranked" in refused(f"{run}:none")
    path = run / "scores/best.clips.csv"
    kept = path.read_text()
    for changed, words in (
        (kept.replace("0.600", "long", 1), "line 2: the column seconds has 'long', not a number"),
        (kept.replace("clip,", "klip,", 1), "no column clip"),
        ("\n".join(kept.splitlines()[:-1]) + "\n", "has no line for 1 clip of the score matrix (first"),
        (kept + "x,y\n", "2 cells for 5 columns"),
        ("", "the file is empty"),
        ("\n" + kept, "line 1: the line is blank"),
    ):
        path.write_text(changed)
        assert words in refused(f"{run}:best")
    path.write_text(kept)
    (run / "metrics.jsonl").write_text("{\n")
    assert "metrics.jsonl, line 1: not JSON" in refused(f"{run}:best")
    (run / "provenance.json").write_text("[]")
    assert "mapping" in refused(f"{run}:best")
    (run / "result.json").unlink()
    assert "finished" in refused(str(run))
    assert not (run / "report.html").exists()


def test_report_help_imports_no_heavy_packages(root: Path) -> None:
    code = (
        "import sys\nfrom submission.__main__ import main\n"
        "try:\n    main(['report', '--help'])\nexcept SystemExit:\n    pass\n"
        "assert not {'matplotlib', 'jinja2', 'torch'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root)
    assert done.returncode == 0, done.stderr
