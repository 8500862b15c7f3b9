"""Clean descriptions of Freesound.

Markup, links, licences and file names are no captions.

Of WavText5K's 4,525 descriptions 385 lose a part, and 44 all of their text, such as a single sentence that ends in
"requested by". Clotho's 29,645 captions stay as they are, but for blanks and commas at their ends.
"""

import html
import re

MAX_WORDS = 512  # at least the input limit, in tokens, of common sentence encoders

_BREAK = re.compile(r"<\s*/?\s*(?:br|p|div|li|ul|ol|h[1-6])\b[^<>]*>", re.IGNORECASE)
_TAG = re.compile(r"</?[a-z][^<>]*>", re.IGNORECASE)
_LINK = re.compile(r"(?:https?://|www\.)\S+|[\w.+-]+@[\w-]+\.\w[\w.-]*", re.IGNORECASE)
_EXTENSION = re.compile(r"\.(?:wave?|aiff?|mp3|flac|og[ga]|m4a)\b", re.IGNORECASE)
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
# Sentences about licences, credits and equipment.
_ASIDE = re.compile(
    r"\b(?:creative commons|public domain|cc0|copyright(?:ed|s)?(?! office)|royalty.free|licen[cs]e"
    r"|licen[cs]ed (?:under|as|by) \w|attribution|credits?(?! cards?)|free to use|feel free"
    r"|(?:non-?)?commercial(?:ly)? (?:use|purpose|project|work|product)|(?:many |big |special )?thanks? (?:to|for|you"
    r"|again|goes)|enjoy(?= it\b| this\b|\W*$)|(?<![a-z] )enjoy|(?<=you )enjoy|subscribe|(?:please|to|or) donate"
    r"|donate (?:at|via|if|here)|youtube|download|(?:leave|any|your) comments?|comments? (?:are|is|below|welcome|if"
    r"|and rat)|requested by (?!(?:the|a|an)\b)|recorded (?:with|using|on|by) (?:an?|my|the|me|zoom|sony|tascam)\b|khz"
    r"|\d+ ?-?bit|kbps|zoom h\w+|tascam|sennheiser|audacity|adobe|edited|normali[sz]ed|mastered)\b|requested by\W*$"
    r"|^thanks?\b",
    re.IGNORECASE,
)


def clean(text: str) -> str:
    """Return a description as a caption: without markup, links, licences, credits.

    Sentences about equipment go too; MAX_WORDS words are kept.

    >>> clean("A dog barks.<br>Recorded with a Zoom H4n, 96 kHz. Free to use!"), clean("rain_on_roof.wav")
    ('A dog barks.', 'rain on roof')
    """
    text = html.unescape(html.unescape(text))  # some are escaped twice
    text = _LINK.sub("", _TAG.sub("", _BREAK.sub("\n", text)))
    sentences = [part for part in _SENTENCE.split(text) if not _ASIDE.search(part)]
    words = _EXTENSION.sub("", " ".join(sentences)).replace("_", " ").split()[:MAX_WORDS]
    text = " ".join(words).strip(" ,;:-")
    is_list = text.startswith(("['", '["'))  # which no manifest accepts
    return text if any(character.isalpha() for character in text) and not is_list else ""
