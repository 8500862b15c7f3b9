"""Exported models in sentence-transformers and on the hub, and models in mteb, against the kit's own numbers."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import soundfile
from huggingface_hub import ModelCard
from sentence_transformers import SentenceTransformer
from sites import Quiet, serving

from data_tools.errors import KitError
from data_tools.manifest import Clip, Query, caption_queries, read_manifest
from submission.metrics.summary import ranks_from_audio, ranks_in_matrix, summarise, summarise_audio_to_text
from system import Retriever, load_model
from system.__main__ import main
from system.runs.folder import Run


@pytest.fixture(scope="module")
def exported(unbroken, tmp_path_factory):
    out = tmp_path_factory.mktemp("exported") / "model"
    assert main(["export", str(unbroken), "--out", str(out)]) == 0
    return out


@pytest.fixture(scope="module")
def opened(exported):
    return SentenceTransformer(str(exported), trust_remote_code=True, device="cpu")


def test_sentence_transformer_of_an_export_gives_the_embeddings_of_the_kit(exported, opened, world):
    model, clips = load_model(exported), read_manifest(world)[:5]
    texts, paths = [clip.captions[0] for clip in clips], [clip.path for clip in clips]
    sounds = [soundfile.read(path, dtype="float32") for path in paths]
    own = model.encode_text(texts), model.encode_audio(paths)
    assert np.array_equal(opened.encode(texts), own[0])
    assert np.array_equal(opened.encode(texts, prompt="a high "), model.encode_text([f"a high {one}" for one in texts]))
    assert len({path.stat().st_mode & 0o777 for path in exported.iterdir() if path.is_file()}) == 1
    assert np.allclose(opened.encode(texts[0], convert_to_tensor=True).numpy(), own[0][0], atol=1e-6)  # no padding
    for form in (
        paths,
        [wave for wave, _ in sounds],
        [{"array": wave, "sampling_rate": rate} for wave, rate in sounds],
    ):
        assert np.allclose(opened.encode(form), own[1], atol=1e-6)
    assert np.allclose(opened.similarity(own[0], own[1]).numpy(), model.similarity(*own), atol=1e-6)
    assert (opened.get_embedding_dimension(), opened.modalities) == (model.dim, ["text", "audio"])


def test_export_in_the_cache_of_the_hub_is_opened_by_its_name(exported, world, monkeypatch):
    def cached(name: str, file: str) -> str | None:
        return str(exported / file) if name == "me/model" and (exported / file).exists() else None

    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", cached)
    texts = read_manifest(world)[0].captions
    assert np.array_equal(load_model("me/model").encode_text(texts), load_model(exported).encode_text(texts))


def test_export_of_a_model_without_a_vector_per_clip_is_no_sentence_transformer(
    moments_run, moments_manifest, tmp_path
):
    assert main(["export", str(moments_run), "--out", str(tmp_path / "model")]) == 0
    assert not (tmp_path / "model/modules.json").exists()
    with pytest.raises(KitError, match="no single vector"):
        load_model(tmp_path / "model").encode_audio(read_manifest(moments_manifest)[0].path)


def test_card_of_an_export_has_the_scores_of_its_checkpoint(exported, unbroken):
    data = ModelCard.load(exported / "README.md").data
    figures = Run(unbroken).metrics["evaluation"]
    assert {one.metric_type: one.metric_value for one in data.eval_results} == pytest.approx(figures, abs=1e-6)
    assert (data.license, data.library_name, data.pipeline_tag) == (
        "other",
        "sentence-transformers",
        "feature-extraction",
    )
    assert data.datasets == ["tones"]
    assert "published weights" not in (exported / "README.md").read_text(), "all weights are in the folder"


class Hub(Quiet):
    """Stands in for the hub: it takes a new repository and one commit of files."""

    received: ClassVar[dict[str, Any]] = {}

    def do_POST(self) -> None:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        answer: dict[str, Any] = {"url": f"http://{self.headers['Host']}/me/model", "name": "me/model"}
        if self.path.endswith("preupload/main"):
            files = json.loads(body)["files"]
            answer = {"files": [one | {"uploadMode": "regular", "shouldIgnore": False} for one in files]}
        elif self.path.endswith("commit/main"):
            lines = [json.loads(line)["value"] for line in body.splitlines()]
            Hub.received |= {line["path"]: line for line in lines if "path" in line}
            answer |= {
                "commitUrl": f"http://{self.headers['Host']}/me/model/commit/1",
                "commitOid": "1",
                "success": True,
            }
        self._say(answer)

    def do_GET(self) -> None:
        self._say({"id": "me/model", "sha": "0", "siblings": [], "lastCommit": None})

    def _say(self, answer: Any) -> None:
        content = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.mark.slow
def test_export_is_uploaded_whole_and_stays_if_the_hub_refuses(unbroken, tmp_path, root):
    environment = {**os.environ, "HF_TOKEN": "hf_x", "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0"}

    def push(name: str, out: Path) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "system", "export", str(unbroken), "--out", str(out), "--push", name]
        return subprocess.run(command, capture_output=True, text=True, cwd=root, env=environment)

    with serving(Hub) as environment["HF_ENDPOINT"]:
        done = push("me/model", tmp_path / "a")
    assert done.returncode == 0, done.stderr
    assert "uploaded: " in done.stdout
    written = {path.relative_to(tmp_path / "a").as_posix() for path in (tmp_path / "a").rglob("*") if path.is_file()}
    assert set(Hub.received) >= {"README.md", "model.safetensors", "recipe.json", "modules.json"}
    assert set(Hub.received) == written
    refused = push("me/model", tmp_path / "b")
    assert refused.returncode == 1
    assert "not uploaded" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert (tmp_path / "b/model.safetensors").exists()


def task(
    name: str, category: str, documents: dict[str, list[Any]], queries: dict[str, list[Any]], relevant: Any
) -> Any:
    """An offline task of mteb. documents, queries: their columns `id`, and `text` or `audio`."""
    from datasets import Audio, Dataset, DatasetDict
    from mteb.abstasks.retrieval import AbsTaskRetrieval
    from mteb.abstasks.task_metadata import TaskMetadata

    def data(columns: dict[str, list[Any]]) -> Any:
        made = Dataset.from_dict(columns)
        return DatasetDict({"test": made.cast_column("audio", Audio()) if "audio" in columns else made})

    class Offline(AbsTaskRetrieval):
        metadata = TaskMetadata(
            name=name, description="made here", reference="https://dcase.community",
            type="Any2AnyRetrieval", dataset={"path": "a/b", "revision": "1"},
            category=category, modalities=["text", "audio"], eval_splits=["test"],
            eval_langs=["eng-Latn"], main_score="map_at_10", date=("2025-01-01", "2025-11-01"), domains=["AudioScene"],
            task_subtypes=["Environment Sound Retrieval"], license="not specified", annotations_creators="derived",
            dialect=[], sample_creation="created", bibtex_citation="",
        )  # fmt: skip

        def load_data(self, **kwargs: Any) -> None:
            self.corpus, self.queries, self.relevant_docs = data(documents), data(queries), {"test": relevant}
            self.data_loaded = True

    return Offline()


def by_mteb(model: Retriever, *tasks: Any) -> list[dict[str, float]]:
    import mteb

    from system.bridges.mteb import MtebModel

    found = mteb.evaluate(MtebModel(model), tasks, cache=None, show_progress_bar=False)
    return [one.scores["test"][0] for one in found.task_results]


def columns(clips: list[Clip], queries: list[Query]) -> tuple[dict[str, Any], dict[str, Any]]:
    sounds = {"id": [clip.id for clip in clips], "audio": [clip.path for clip in clips]}
    return sounds, {"id": [query.id for query in queries], "text": [query.text for query in queries]}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_mteb_gives_the_figures_of_the_kit_in_both_directions(unbroken, world):
    model = load_model(unbroken)
    clips = [clip for clip in read_manifest(world) if clip.split == "evaluation"]
    queries = caption_queries(clips)
    sounds, texts = columns(clips, queries)
    to_clips = {query.id: dict.fromkeys(query.relevant or (), 1) for query in queries}
    to_texts: dict[str, dict[str, int]] = {}
    for query in queries:
        to_texts.setdefault((query.relevant or [""])[0], {})[query.id] = 1
    found = by_mteb(model, task("T2A", "t2a", sounds, texts, to_clips), task("A2T", "a2t", texts, sounds, to_texts))
    matrix = model.matrix(queries, model.open(clips))
    expected = [summarise(ranks_in_matrix(matrix)).values, summarise_audio_to_text(ranks_from_audio(matrix)).values]
    for scores, own, hits in zip(found, expected, ("R", "HR"), strict=True):
        for k in (1, 5, 10):
            assert scores[f"hit_rate_at_{k}"] == pytest.approx(own[f"{hits}@{k}"], abs=1e-5)
        assert scores["map_at_10"] == pytest.approx(own["mAP@10"], abs=1e-5)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_mteb_ranks_recordings_by_a_model_of_moments(moments_run, moments_manifest):
    model = load_model(moments_run)
    clips = read_manifest(moments_manifest)[:12]
    queries = [Query(str(n), clip.captions[0], [clip.id]) for n, clip in enumerate(clips) if clip.captions]
    assert len(queries) > 5
    sounds, texts = columns(clips, queries)
    relevant = {query.id: dict.fromkeys(query.relevant or (), 1) for query in queries}
    (scores,) = by_mteb(model, task("Moments", "t2a", sounds, texts, relevant))
    own = summarise(ranks_in_matrix(model.matrix(queries, model.open(clips)))).values
    assert scores["map_at_10"] == pytest.approx(own["mAP@10"], abs=1e-5)
    assert scores["recall_at_1"] == pytest.approx(own["R@1"], abs=1e-5)
