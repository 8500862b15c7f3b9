"""Invented sounds.

Each sound is a function of the seed and of its number, so that half a million sounds need no memory.

Sounds are numbered by upload time. Ids rise with the upload time, as almost always on Freesound. They have the range of
Freesound's ids, so that some of them are on the real exclusion lists. Uploads grow over the years and come in bursts
within one second.
"""

import bisect
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from data_tools.freesound.sounds import PREVIEWS, format_time, parse_time
from data_tools.scenes.captions import describe, describe_noisily
from data_tools.scenes.compose import KINDS, SECONDS, draw_events
from data_tools.scenes.synth import CLASSES

FIRST_MS, LAST_MS = parse_time("2005-04-05"), parse_time("2026-06-30")
HIGHEST_ID = 760_000
CAPTIONS = 0.3  # share of descriptions that read like captions
BURST, BURSTS = 64, 0.02  # sounds in a burst, share of such bursts
EXPLICIT = 0.01  # share of explicit sounds
BROKEN = 0.005  # share of sounds whose files cannot be decoded
LICENCES = {
    "Creative Commons 0": ("http://creativecommons.org/publicdomain/zero/1.0/", 0.55),
    "Attribution": ("https://creativecommons.org/licenses/by/4.0/", 0.30),
    "Attribution NonCommercial": ("https://creativecommons.org/licenses/by-nc/4.0/", 0.12),
    "Sampling+": ("http://creativecommons.org/licenses/sampling+/1.0/", 0.03),
}
PREFERENCES = {
    "no-additional-preferences": 0.85,
    "open-source-models": 0.04,
    "noncommercial-open-source-models": 0.03,
    "no-gen-ai": 0.08,
}
# Seconds at these shares of the sounds, linear between them: some too short, half of them as long as a scene.
_SECONDS = ((0.0, 0.15, 0.2, 0.75, 0.93, 0.97, 1.0), (0.2, 3.0, SECONDS, SECONDS, 30.0, 120.0, 600.0))

# Titles that make bad file names.
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

# Texts that uploaders write with, or instead of, descriptions.
_CREDITS = (
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

_BITS = 2**64 - 1
_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB  # of splitmix64

Numbers = npt.NDArray[np.int64]


class Scene(NamedTuple):
    """The audio content of a sound: kind and events as in data_tools.scenes.compose."""

    kind: str
    events: list[str]


class Catalogue:
    """The invented sounds. size: Number of sounds, 1 or more. Sounds are numbered from 0 to size - 1."""

    def __init__(self, size: int, seed: int) -> None:
        """Set the number of sounds, the seed of their random values, and the distance between their ids."""
        self.size, self.seed = size, seed
        self._spacing = max(1, HIGHEST_ID // size)

    def created(self, number: int) -> int:
        """Return the upload time of a sound in ms since 1970, rising with the number; in a burst, times are equal."""
        block = number // BURST
        if self.one_uniform("burst", block) < BURSTS:
            return self._spread_time(block * BURST) // 1000 * 1000
        return self._spread_time(number)

    def _spread_time(self, number: int) -> int:
        """Return the upload time of a sound outside of bursts in ms since 1970; later years have more sounds."""
        return int(FIRST_MS + round((LAST_MS - FIRST_MS) * ((number + 0.5) / self.size) ** 0.6))

    def from_time(self, milliseconds: float) -> int:
        """Return the number of the first sound uploaded at `milliseconds` since 1970 or later; `size` if none was."""
        return bisect.bisect_left(range(self.size), milliseconds, key=self.created)

    def id(self, number: int) -> int:
        """Return the id of a sound."""
        return 1 + number * self._spacing + int(self.one_uniform("id", number) * self._spacing)

    def number(self, sound_id: int) -> int | None:
        """Return the number, from 0, of the sound with an id; None for an unknown id."""
        number = (sound_id - 1) // self._spacing
        return number if 0 <= number < self.size and self.id(number) == sound_id else None

    def uniform(self, purpose: str, numbers: Numbers) -> npt.NDArray[np.float64]:
        """Return a pseudo-random value in [0, 1) for each number; values for different purposes are independent."""
        drawn: npt.NDArray[np.float64] = self._random_values(purpose, numbers.astype(np.uint64))
        return drawn

    def one_uniform(self, purpose: str, number: int) -> float:
        """Return one sound's pseudo-random value in [0, 1), as `uniform` does, but faster for a single number."""
        return float(self._random_values(purpose, number))

    def _random_values(self, purpose: str, number: Any) -> Any:
        """Return a random value in [0, 1) for each number, by splitmix64.

        Source: Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", OOPSLA 2014.

        purpose: Name of the use of the values, such as "id". Each name has its own sequence of values.

        number: One number, or an array of unsigned 64-bit integers.
        """
        start = int.from_bytes(purpose.encode().ljust(8, b"\0")[:8], "little") ^ (self.seed * _GOLDEN & _BITS)
        mixed = (start + (number + 1) * _GOLDEN) & _BITS
        mixed = (mixed ^ mixed >> 30) * _FIRST & _BITS
        mixed = (mixed ^ mixed >> 27) * _SECOND & _BITS
        return ((mixed ^ mixed >> 31) >> 11) / 2**53

    def seconds(self, numbers: Numbers) -> np.ndarray:
        """Return the durations in seconds of the sounds with the given numbers."""
        return np.interp(self.uniform("seconds", numbers), *_SECONDS).round(3)

    def licences(self, numbers: Numbers) -> np.ndarray:
        """Return the licence of each of the sounds with the given numbers, as named in search filters."""
        return _pick_names(self.uniform("licence", numbers), {name: share for name, (_, share) in LICENCES.items()})

    def preferences(self, numbers: Numbers) -> np.ndarray:
        """Return the uploaders' preferences about generative AI for the sounds with the given numbers."""
        return _pick_names(self.uniform("preference", numbers), PREFERENCES)

    def scene(self, number: int) -> Scene:
        """Return the scene, kind and events, that decides the synthesised audio of a sound."""
        rng = np.random.default_rng((self.seed, number, 0))
        kind = list(KINDS)[int(rng.integers(len(KINDS)))]
        return Scene(kind, [event.name for event in draw_events(rng, kind, {name: [] for name in CLASSES})])

    def is_broken(self, number: int) -> bool:
        """Whether the audio of the sound with this number cannot be decoded."""
        return self.one_uniform("broken", number) < BROKEN

    def sound(self, number: int, site: str, cdn: str = "") -> Mapping[str, Any]:
        """Return all fields of a sound. site, cdn: Addresses of the API and of the host of the previews.

        The field md5 is random, because no file is made. If `cdn` is "", the previews are on the site.
        """
        sound, user, previews = _invent_sound(self.size, self.seed, number)
        return sound | {
            "created": f"{format_time(self.created(number))[:19]}Z",
            "previews": {
                name: f"{cdn or site}{previews}-{name.split('-')[1]}.{name.split('-')[2]}" for name in PREVIEWS
            },
            "pack": f"{site}{sound['pack']}" if sound["pack"] else None,
            "url": f"{site}/people/{user}/sounds/{sound['id']}/",
            "download": f"{site}/apiv2/sounds/{sound['id']}/download/",
        }


@lru_cache(maxsize=1 << 14)
def _invent_sound(size: int, seed: int, number: int) -> tuple[dict[str, Any], str, str]:
    """Invent a sound; return its fields that depend on neither site nor time, its user, and the path of its previews.

    Results are cached: a crawl requests sounds at the edges of its windows several times, an update all sounds again.
    """
    corpus, one = Catalogue(size, seed), np.array([number])
    rng = np.random.default_rng((seed, number, 1))
    scene = corpus.scene(number)
    plain = rng.random() < CAPTIONS
    text = describe(rng, scene.kind, scene.events, 1, 0.0)[0] if plain else describe_noisily(rng, scene.events)
    sound_id, user = corpus.id(number), f"user{rng.integers(1, 2 + size // 20)}"
    seconds = float(corpus.seconds(one)[0])
    sound = {
        "id": sound_id,
        "name": _invent_title(rng, scene, sound_id),
        "tags": [*scene.events, "field-recording"],
        "description": in_uploaders_style(rng, text, plain),
        "username": user,
        "license": LICENCES[str(corpus.licences(one)[0])][0],
        "gen_ai_preference": str(corpus.preferences(one)[0]),
        "duration": seconds,
        "type": "wav",
        "channels": 1,
        "samplerate": 44100.0,
        "filesize": 44 + 2 * round(seconds * 44100),
        "md5": f"{int(rng.integers(2**62)):032x}",
        "category": "Sound effects",
        "subcategory": "Objects / House appliances" if corpus.one_uniform("sub", number) < 0.8 else None,
        "pack": f"/apiv2/packs/{user.removeprefix('user')}/" if corpus.one_uniform("pack", number) < 0.5 else None,
        "is_explicit": corpus.one_uniform("explicit", number) < EXPLICIT,
        "num_downloads": int(1000 * corpus.one_uniform("loads", number)),
    }
    return sound, user, f"/previews/{sound_id // 1000}/{sound_id}_{user.removeprefix('user')}"


def _invent_title(rng: np.random.Generator, scene: Scene, sound_id: int) -> str:
    """Invent the title of a sound; one in a hundred would be a dangerous file name."""
    if rng.random() < 0.01:
        return NAMES[int(rng.integers(len(NAMES)))]
    return f"{' '.join(scene.events)} {sound_id % 90 + 10}.wav"


def _pick_names(values: np.ndarray, shares: Mapping[str, float]) -> np.ndarray:
    """Choose a name for each of the random `values`, in [0, 1); return the names. shares: Probability of each name."""
    edges = np.cumsum(list(shares.values()))[:-1]
    return np.array(list(shares))[np.searchsorted(edges, values, side="right")]


def in_uploaders_style(rng: np.random.Generator, text: str, plain: bool) -> str:
    """Change a text at random, as in Freesound's descriptions: add credits or links, escape it, or replace it.

    plain: Add credits or links to 10 % of texts, not to 40 %.
    """
    if rng.random() < 0.04:
        return "" if rng.random() < 0.3 else _choose_one(rng, _OTHER)
    if rng.random() < (0.1 if plain else 0.4):
        text += _choose_one(rng, ("\n\n", " ", "<br />")) + _choose_one(rng, (*_CREDITS, *_LINKS))
    return text.replace("'", "&#39;").replace(" and ", " &amp; ") if rng.random() < 0.03 else text


def _choose_one(rng: np.random.Generator, options: tuple[str, ...]) -> str:
    """Return one of the options, chosen at random."""
    return options[int(rng.integers(len(options)))]
