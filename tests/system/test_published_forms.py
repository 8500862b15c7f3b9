"""Every supported type of audio model in every form that transformers saves: a table of differences."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from hub_models import made, tokenizer
from loaded import relative
from test_hugging_face import KINDS, LIBRARY, batch, samples
from threads import one_thread  # noqa: F401  a fixture

from system.networks.hugging_face import build_from_folder
from system.networks.hugging_face_types import ROWS

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]

FORMS = ("extractor", "processor", "sharded", "whole")
PROCESSORS = {"clap": "ClapProcessor", "clap_fused": "ClapProcessor", "whisper": "WhisperProcessor"}
PROCESSORS |= dict.fromkeys(("wav2vec2", "wav2vec2_normed", "hubert", "wavlm", "data2vec-audio"), "Wav2Vec2Processor")
PROCESSORS |= dict.fromkeys(("sew", "unispeech", "unispeech-sat"), "Wav2Vec2Processor")
PROCESSORS |= {"wav2vec2-bert": "Wav2Vec2BertProcessor"}
PROCESSORS |= dict.fromkeys(("pe_audio", "pe_audio_frame", "pe_audio_video"), "PeAudioProcessor")
WHOLE = {
    "audio-spectrogram-transformer": "ASTForAudioClassification",
    "whisper": "WhisperForConditionalGeneration",
    "wav2vec2": "Wav2Vec2ForCTC",
    "wav2vec2_normed": "Wav2Vec2ForCTC",
    "hubert": "HubertForSequenceClassification",
    "wavlm": "WavLMForSequenceClassification",
    "data2vec-audio": "Data2VecAudioForCTC",
    "sew": "SEWForCTC",
    "unispeech": "UniSpeechForSequenceClassification",
    "unispeech-sat": "UniSpeechSatForSequenceClassification",
    "wav2vec2-bert": "Wav2Vec2BertForCTC",
}
REASONS = {
    "processor": "the library has no processor for it",
    "whole": "the saved model is the whole one, or the library has no larger model",
}


def save(kind: str, form: str, folder: Path) -> str | None:
    """Save a model in a form. Returns: Why the library has no such form; None if it has."""
    model, extractor = made(kind)
    if form == "whole":
        if kind not in WHOLE:
            return REASONS[form]
        torch.manual_seed(1)
        larger = getattr(transformers, WHOLE[kind])(model.config)
        larger.base_model.load_state_dict(model.state_dict(), strict=False)
        model = larger
    model.save_pretrained(folder, **({"max_shard_size": "20KB"} if form == "sharded" else {}))
    if kind == "embedding_gemma2":  # its processor needs the tokenizer
        tokenizer().save_pretrained(folder)
    if form != "processor":
        extractor.save_pretrained(folder)
        return None
    if kind not in PROCESSORS:
        return "its processor needs torchvision" if kind == "embedding_gemma2" else REASONS[form]
    getattr(transformers, PROCESSORS[kind])(extractor, tokenizer_for(PROCESSORS[kind], folder)).save_pretrained(folder)
    assert not (folder / "preprocessor_config.json").exists()
    return None


def tokenizer_for(processor: str, folder: Path) -> Any:
    """A tokenizer of the kind that a processor needs."""
    if processor in ("ClapProcessor", "WhisperProcessor", "PeAudioProcessor"):
        return tokenizer()
    words = folder.parent / "vocab.json"
    words.write_text(json.dumps({"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3, "|": 4, "a": 5, "b": 6, "c": 7}))
    return transformers.Wav2Vec2CTCTokenizer(str(words))


def library_vector(kind: str, folder: Path, wave: Any) -> Any:
    """The vector of a wave by the classes of transformers."""
    import test_hugging_face

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(test_hugging_face, "hub_folder", lambda _: folder)
        return test_hugging_face.expected(kind, wave)


@LIBRARY
@pytest.mark.parametrize("kind", KINDS)
def test_published_models_in_every_file_format_match_transformers(kind: str, tmp_path: Path) -> None:
    wave, cells = samples(kind, 1.0), []
    for form in FORMS:
        folder = tmp_path / form / "model"
        folder.mkdir(parents=True)
        if reason := save(kind, form, folder):
            cells.append(f"{form}: {reason}")
            continue
        network = build_from_folder(KINDS[kind], folder)  # type: ignore[arg-type]
        network.load_published(folder)
        with torch.inference_mode():
            found = network.eval()(*batch([wave], len(wave)))[0]
        difference = relative(found, library_vector(kind, folder, wave))
        cells.append(f"{form}: {difference:.0e}")
        assert difference < 1e-6, f"{kind}, {form}"
        if form == "sharded":
            assert len(list(folder.glob("*.safetensors"))) > 1
        shutil.rmtree(folder)
    print(f"\n{kind} ({ROWS[KINDS[kind]].model}): {'; '.join(cells)}")  # type: ignore[index]
