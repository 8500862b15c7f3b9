"""Words of captions, in any Unicode form."""

import unicodedata

import pytest

from data_tools.words import vocabulary_of, words_of
from system.losses.cider import regex_tokens

CAPTIONS = {
    "Un café à l'Été": ["un", "café", "à", "l'été"],
    "Čeština, žluťoučký kůň": ["čeština", "žluťoučký", "kůň"],
    "한국어 소리": ["한국어", "소리"],
    "ベルが鳴る": ["ベルが鳴る"],
    "İstanbul": ["istanbul"],  # its lower case is i with a dot that no letter takes in
    "x̄ and ŷ": ["x", "and", "ŷ"],
}


@pytest.mark.parametrize("form", ["NFC", "NFD"])
@pytest.mark.parametrize("caption", CAPTIONS)
def test_decomposed_letters_are_part_of_words(caption: str, form: str) -> None:
    text = unicodedata.normalize(form, caption)
    expected = [unicodedata.normalize("NFC", word) for word in CAPTIONS[caption]]
    assert words_of(text) == expected
    assert regex_tokens(text) == expected


def test_vocabulary_merges_composed_and_decomposed_words() -> None:
    assert vocabulary_of(["cafe\u0301 bell", "caf\u00e9"]) == ["caf\u00e9", "bell"]
