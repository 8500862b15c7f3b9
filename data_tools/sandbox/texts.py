"""What uploaders put around and instead of descriptions, and titles that make bad file names."""

import numpy as np

NAMES = (
    "../../x",
    "..\\..\\x.wav",
    "/etc/passwd",
    "CON",
    "nul.wav",
    "x" * 300,
    "tab\tnew\nline\x07bell.wav",
    "trailing dot.",
    " leading blank.wav",
    'a<b>c:d"e|f?g*.wav',
    "-rf",
    "=1+1",
    "\u202egnp.wav",
    "Geräusch – 雨の音.wav",
)

_LICENCES = (
    "Please credit me if you use this sound.",
    "This work is licensed under Creative Commons Attribution 4.0.",
    "Free to use in any project, commercial or not.",
    "If you use it, leave a comment with a link to your work!",
)
_LINKS = (
    '<a href="https://example.org/my-sounds" rel="nofollow">more of my sounds</a>',
    "https://www.youtube.com/watch?v=abcdefghijk",
    "Contact: someone@example.org",
    "www.example.org/donate",
)
_OTHER = (
    "Eine Straßenbahn fährt vorbei und die Vögel zwitschern im Park.",
    "Der Regen fällt auf das Dach und der Wind weht durch die Bäume.",
    "Le bruit de la pluie sur les toits avec des oiseaux dans le jardin.",
    "Une voiture passe dans la rue pendant que les gens parlent.",
    "Grabación de una calle con coches y personas que hablan en la plaza.",
    "El agua cae en la fuente y los pájaros cantan en el parque.",
    "Registrazione di una strada con le macchine che passano e la gente che parla.",
    "Som de chuva com vento e um cachorro que late na rua da minha casa.",
    "雨が屋根に降る音。",
    "Звук дождя и ветра за окном.",
)


def dress(rng: np.random.Generator, text: str, plain: bool) -> str:
    """A description as it might stand on Freesound. plain: it reads as a caption does, and mostly stays so."""
    if rng.random() < 0.04:
        return "" if rng.random() < 0.3 else _one(rng, _OTHER)
    if rng.random() < (0.1 if plain else 0.4):
        text += _one(rng, ("\n\n", " ", "<br />")) + _one(rng, (*_LICENCES, *_LINKS))
    return text.replace("'", "&#39;").replace(" and ", " &amp; ") if rng.random() < 0.03 else text


def _one(rng: np.random.Generator, options: tuple[str, ...]) -> str:
    return options[int(rng.integers(len(options)))]
