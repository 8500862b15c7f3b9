"""What participants get wrong: each command ends with its status, one word of the message, and no new file."""

import dataclasses
import shutil

import pytest
from ranked import small_matrix, table, write_truth
from recorded_run import about, write_found, write_json, write_moments_run, write_run, write_true

from submission.__main__ import main
from submission.editions import EDITIONS
from submission.formats.csv_files import write_csv
from submission.formats.score_matrix import write_scores


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("desk")
    write_run(folder / "run")
    write_moments_run(folder / "moments")
    write_truth(folder)
    write_scores(folder / "a.npy", small_matrix(1, facts={"edition": "2022"}))
    write_scores(folder / "unknown.npy", small_matrix(2, facts={}))
    write_scores(folder / "other.npy", small_matrix(2, query_texts=[f"{n}" for n in range(24)]))
    alike = small_matrix(facts={"edition": "2022"})
    write_scores(
        folder / "alike.npy", dataclasses.replace(alike, file_names=[*alike.file_names[:-1], alike.file_names[0]])
    )
    ids = [f"v{n}" for n in range(12)]
    facts = {"edition": "2022"}
    write_scores(
        folder / "val.npy", small_matrix(3, clip_ids=ids, relevant=[[ids[n // 2]] for n in range(24)], facts=facts)
    )
    shutil.copy(folder / "a.npy", folder / "alone.npy")
    for year in ("2022", "2025"):
        write_csv(small_matrix(), folder / f"{year}.csv", EDITIONS[year])
    (folder / "bad.csv").write_bytes((folder / "2022.csv").read_bytes()[:-40])
    (folder / "blind.csv").write_bytes(table([["caption"], ["Rain"]]))
    write_true(folder / "true.jsonl")
    write_true(folder / "list.jsonl", blind=True)
    write_found(folder / "dev.jsonl")
    (folder / "half.jsonl").write_text((folder / "dev.jsonl").read_text().splitlines()[0] + "\n")
    (folder / "pairs.jsonl").write_text("{}\n")
    (folder / "none.jsonl").write_text("")
    (folder / "nan.jsonl").write_text(
        '{"query": "a", "text": "a", "clip": "b", "path": "b", "score": 1, "rank": 1, "judge": NaN}\n'
    )
    write_json(folder / "about.yaml", about())
    (folder / "no.zip").write_text("no archive")
    return folder


ROWS: list[tuple[str, int, str]] = [
    ("", 2, "usage"),
    ("judge", 2, "command"),
    ("check", 2, "argument"),
    ("score a.npy --direction up", 2, "direction"),
    ("check nowhere.csv", 1, "nowhere.csv"),
    ("check bad.csv", 1, "problems"),
    ("check 2022.csv --edition 2021", 1, "2021"),
    ("check 2022.csv --edition 2025", 1, "problems"),
    ("check captions.csv", 1, "edition"),
    ("check 2022.csv --truth other.npy", 1, "problems"),
    ("check 2022.csv --queries blind.csv", 1, "audio"),
    ("check 2022.csv --queries blind.csv --audio run", 1, "problems"),
    ("check 2022.csv --audio run", 1, "queries"),
    ("check 2022.csv --truth captions.csv --queries blind.csv", 1, "one"),
    ("check 2022.csv --truth blind.csv", 1, "file_name"),
    ("check 2022.csv --edition 2022 --truth true.jsonl", 1, "kind"),
    ("check dev.jsonl --edition 2026 --truth captions.csv", 1, "kind"),
    ("check half.jsonl --truth true.jsonl", 1, "problems"),
    ("check no.zip --edition 2022", 1, "problems"),
    ("check no.zip", 1, "edition"),
    ("score 2022.csv", 1, "truth"),
    ("score bad.csv --truth captions.csv", 1, "check"),
    ("score 2022.csv --truth captions.csv --direction audio-to-text", 1, "captions"),
    ("score 2022.csv --truth captions.csv --edition 2026", 1, "windows"),
    ("score unknown.npy", 1, "edition"),
    ("score other.npy --truth captions.csv --edition 2022", 1, "query"),
    ("score alike.npy --truth captions.csv", 1, "same name"),
    ("score dev.jsonl --truth true.jsonl --direction audio-to-text", 1, "neither"),
    ("score alone.npy", 1, "alone.json"),
    ("score run:none", 1, "none"),
    ("score run:blind", 1, "blind"),
    ("score run/audio", 1, "run"),
    ("score run/scores/blind.npy", 1, "known"),
    ("score dev.jsonl", 1, "truth"),
    ("score dev.jsonl --truth list.jsonl", 1, "blind"),
    ("compare a.npy other.npy --edition 2022", 1, "queries"),
    ("compare a.npy moments", 1, "edition"),
    ("write a.npy --out nowhere/x.csv", 1, "nowhere"),
    ("write 2022.csv --out x.csv", 1, "score matrix"),
    ("write dev.jsonl --out dev.jsonl", 1, "overwrite"),
    ("blend a.npy --out x.npy", 1, "two"),
    ("blend a.npy unknown.npy --out a.npy", 1, "overwrite"),
    ("blend a.npy a.npy --out x.npy", 1, "twice"),
    ("blend a.npy unknown.npy --validation a.npy --out x.npy", 1, "validation"),
    ("blend a.npy unknown.npy --validation a.npy --validation unknown.npy --out x.npy", 1, "common"),
    ("blend a.npy other.npy --out x.npy", 1, "different"),
    ("blend a.npy 2022.csv --out x.npy", 1, ".npy"),
    ("rerank a.npy --judged none.jsonl --validation val.npy pairs.jsonl --out x.npy", 1, "line 1"),
    ("rerank a.npy --judged none.jsonl --validation val.npy nan.jsonl --out x.npy", 1, "finite"),
    ("rerank a.npy --judged none.jsonl --validation a.npy none.jsonl --out x.npy", 1, "common"),
    ("pack run --about about.yaml --out x.tar", 1, ".zip"),
    ("pack run --about nowhere.yaml --out x.zip", 1, "nowhere"),
    ("pack run --about true.jsonl --out x.zip", 1, "YAML"),
    ("pack run moments --about about.yaml --out x.zip", 1, "edition"),
    ("pack run --about about.yaml --report nowhere.pdf --out x.zip", 1, "nowhere"),
    ("pack run --about about.yaml --report about.yaml --out x.zip", 1, "PDF"),
    ("report run --beside moments", 1, "task"),
    ("report moments:blind", 1, "blind"),
]


@pytest.mark.parametrize(("command", "status", "word"), ROWS, ids=[row[0] for row in ROWS])
def test_refused_command_names_its_fault_and_writes_nothing(made, command, status, word, monkeypatch, capsys):
    monkeypatch.chdir(made)
    before = {path: path.read_bytes() for path in made.rglob("*") if path.is_file()}
    assert main(command.split()) == status
    said = capsys.readouterr()
    assert word.lower() in (said.err + (said.out if status == 2 else "")).lower()
    assert "Traceback" not in said.err
    assert {path: path.read_bytes() for path in made.rglob("*") if path.is_file()} == before
