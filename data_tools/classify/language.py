"""Detect languages.

Detects whether a short text is English by its scripts, small words and letters; no model, no dependency.

Published detectors are trained on sentences; a description is often two nouns. So a text counts as English unless its
evidence of another language outweighs the English in it.
"""

import re
import unicodedata
from collections import Counter
from functools import cache

ENGLISH = "en"

# 2 points per word, once per text; no word here is also an English word.
_SURE = {
    "en": """the of and with from this that these are was were being by for while then some its into through very off
        out when who which someone sound sounds recording recorded near birds people walking talking traffic street
        water background train station ambience ambient noise machine inside outside short loud small old metal wooden
        opening closing playing running driving passing footsteps crowd""",
    "fr": """dans avec et sur une du les aux au qui bruit bruits oiseaux oiseau pluie mer porte voiture chien cloche
        cloches eau rue feu bois orage gare foule enregistrement enregistré""",
    "de": """und mit dem das ist nicht auf im vom zum zur einer eines einem ein eine beim aus wird durch vor regen vögel
        vogel wasser aufnahme aufgenommen geräusch geräusche tür straße glocken kirche zug hund""",
    "es": """una por desde hacia muy lluvia pájaros pájaro viento agua sonido sonidos grabación grabado ruido puerta
        calle perro gente campanas ciudad pasos coche mientras""",
    "it": """della delle dei degli nella nel nelle sulla dalla dal gli che pioggia uccelli vento acqua suono suoni
        rumore registrazione registrato strada campane mentre chiesa""",
    "pt": """uma pela pelo ao não chuva pássaros som sons gravação gravado ruído água porta rua cachorro vento cidade
        enquanto""",
    "nl": "het een uit bij voor naar niet regen vogels geluid opname straat hond klokken kerk buiten opgenomen",
    "pl": "się przez przy oraz dla nie jest deszcz ptaki wiatr woda dźwięk nagranie drzwi ulica",
    "sv": "och som att från på är ett när regn fåglar ljud vatten dörr inspelning hund skog",
    "da": "og fra på et af ved når lyd regn fugle vand dør gade optagelse optaget hund skov",
    "fi": "kun sade linnut tuuli vesi ääni äänitys ovi katu koira kirkon kellot metsässä",
    "cs": "při déšť ptáci vítr zvuk nahrávka dveře ulice zvony",
    "tr": "bir ve ile için yağmur kuş kuşlar rüzgar sesi sesleri kayıt kapı sokak köpek",
}
# 1 point; a word of two languages is in both lists.
_LIKELY = {
    "en": """a an in on to at it is as no i me my do die den met van over door up down car dog bird rain wind wave hit
        loop bell""",
    "fr": "de la le un en est à des par sous",
    "de": "die den in an am von zu bei über für",
    "es": "de la el los las del en un con se al es para sobre muy y",
    "it": "di la il un uno con da in lo le del per su sul",
    "pt": "de do da em no na um os as que por para se",
    "nl": "de in en op van met is aan te over door",
    "pl": "do po za na",
    "sv": "en av till vid för den med",
    "da": "en til med der for er",
    "fi": "ja ei se että tai",
    "cs": "do od na je se ve",
    "tr": "da de",
}
_LETTERS = {
    "fr": "éèêàùçîœ",
    "de": "ßäöü",
    "es": "ñ¿¡áéíóú",
    "it": "àèìòù",
    "pt": "ãõçáéíóúêâ",
    "pl": "ąęłńśźż",
    "sv": "åäö",
    "da": "øæå",
    "fi": "äö",
    "cs": "řěůčšž",
    "tr": "ışğ",
}
_WORD = re.compile(r"[^\W\d_]+")


def language_of(text: str) -> str:
    """Return the language of a text: "en", another ISO 639-1 code, or the name of a script ("cyrillic", "cjk").

    A text with mostly letters of another script gets that script. Otherwise the language with the most points wins, if
    it has 2 or more points, and more points than English. A word that is a sure sign of a language counts 2 points for
    it, and a word that only makes it likely 1 point. A language also gets 1 point if the text has one of its letters
    that English does not have. At equal points, English wins, then the first language in the order of _SURE.

    >>> language_of("Pluie sur le toit"), language_of("Kick 01"), language_of("Дождь")
    ('fr', 'en', 'cyrillic')
    """
    text = unicodedata.normalize("NFC", text)  # a decomposed é would separate words at its mark
    if not text.isascii():
        scripts = Counter(_script(letter) for letter in text if letter.isalpha())
        script, count = max(scripts.items(), key=lambda item: item[1], default=("latin", 0))
        if script != "latin" and 2 * count > scripts.total():
            return script
    lower = text.lower()
    points: Counter[str] = Counter()
    for word in set(_WORD.findall(lower)):
        points.update(_points_by_word().get(word, {}))
    if not text.isascii():
        points.update(language for language, letters in _LETTERS.items() if not set(letters).isdisjoint(lower))
    best = max(_SURE, key=lambda language: points[language])  # English is first, so it wins every tie
    return best if points[best] >= 2 else ENGLISH


@cache
def _points_by_word() -> dict[str, dict[str, int]]:
    """Return a dict from word to its points per language: 2 for a sure sign of the language, 1 for a likely one."""
    points: dict[str, dict[str, int]] = {}
    for lists, count in ((_LIKELY, 1), (_SURE, 2)):
        for language, words in lists.items():
            for word in words.split():
                points.setdefault(word, {})[language] = count
    return points


@cache
def _script(letter: str) -> str:
    """Return the script of a letter, the first word of its Unicode name, such as latin, greek or cjk."""
    return unicodedata.name(letter, "unknown").split()[0].lower()
