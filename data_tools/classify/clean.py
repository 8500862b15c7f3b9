"""Clean descriptions.

Cleans descriptions by a closed list of named rules, and returns the names of the rules that changed a text.
"""

import html
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from data_tools.classify.language import language_of
from data_tools.manifest import MAX_WORDS

EMPTY = "empty"  # last rule of a text without any remaining letter


def _word_set(text: str) -> frozenset[str]:
    """Return the set of words in a text."""
    return frozenset(text.split())


# Words between the part about the sound and the boilerplate: "birds, [this recording is] free to use".
_LEAD = """a all also always an and any are as automatically available be because been best but by can completely do
    don't download feel for free freely from get given have here however i if in is it it's its just like may must my
    need no not of off only or originally our please released shared should so still taken that the them then these they
    this those to under use used want was were which with work would you your audio clip clips effect effects file files
    loop loops recording recordings sample samples sound sounds track tracks"""

# Phrases that mostly cut real descriptions correctly, or that name a licence or a platform: see RULES. Names of
# licences, which no sound has: cut everywhere.
_END = r"(?=[ ]*(?:[.!?,;)\]\n]|$))"
_LICENCE = rf"""creative[ -]commons | public[ ]domains? | all[ ]rights[ ]reserved
| copyright(?:ed)?[ ]*(?:by\b|\(c\)|©|[12]\d{{3}}\b) | ©
| attribution[ -](?:required|needed|licen[cs]e|non-?commercial|share|[34]\.0)
| (?:no|without|require[sd]?|needs?)[ ]attribution
| licen[cs]ed[ ](?:under|as)(?:[ ](?:an?[ ]|the[ ])?(?:cc\b|creative|attribution|public|sampling)|{_END})
| for[ ](?:\w+[ ]){{0,2}}(?:personal|private|non-?commercial|commercial)[ ](?:non-?commercial[ ])?
    (?:use|uses|purposes?|projects?)(?:[ ]only)?{_END}"""

# Requests of uploaders, which people also speak in recordings: cut at the start of sentences, clauses and brackets.
_WISH = rf"""free[ ](?:to[ ](?:use|download|share|remix)\b(?![ ](?:the|an?)\b)|of[ ](?:charge|copyright|rights)
    |for[ ](?:any|personal|private|commercial|non-?commercial|use\b|all[ ](?:to|uses|kinds|your)))
| use[ ](?:it|them|this|these|as|how|however|whatever|what|freely|wherever)\b[^.!?\n]{{0,200}}?
    you(?:['’]d)?[ ](?:like|want|wish)
| credit[ ](?:is[ ])?(?:not[ ])?(?:required|needed|appreciated) | give[ ](?:me|us)[ ](?:\w+[ ])?credits?\b
| (?:credit|attribute|cite)[ ](?:me|us|the[ ](?:author|artist|creator))\b | licen[cs]e[ ]*:{_END}"""

# Words to other users: cut in the same way.
_ASIDE = r"""(?<=[.!?][ ])(?:enjoy|thanks(?:[ ]to)?)(?:[ ]\w+)?(?=[.!]|$)
| (?:big|many|special|huge)[ ]thanks[ ](?:to|for)\b
| feel[ ]free[ ]to[ ](?:use|download|share|comment|rate|leave|edit|remix)\b | comments?[ ](?:are[ ])?welcome
| hope[ ](?:you|this|it|that|someone)\b[^.!?\n]{0,200}?(?:like|enjoy|use\w*|help\w*)\b
| (?:follow|find)[ ]me[ ](?:on|at)[ ](?:twitter|instagram|facebook|youtube|soundcloud|bandcamp|http|www|@)
| (?:subscribe|donate)[ ]to[ ](?:my|our)\b
| check[ ]out[ ](?:my|our)[ ](?:other|page|profile|sounds|packs?|channel|web ?site|music)\b
| if[ ]you[ ](?:use|download|like)[ ](?:this|it|these|them|my)\b"""

# SoundBible's note on the person who requested a sound: "Harpoon sound effect requested by Adam Brown."
_REQUEST = rf"""requested[ ]by[ ](?!(?:the|an?|his|her|their|its|our|my|some)\b)(?:\w+[ ]){{0,3}}\w+{_END}
| was[ ]a[ ]request[ ](?:from|by)\b"""

# A sentence of only technical and leading words, at least one of them in _MADE, describes the making of the file.
_MADE = _word_set(
    """recorded edited normalized normalised mastered remastered processed unprocessed denoised resampled equalized
    equalised converted exported khz kbps"""
)
_TECHNICAL = _MADE | _word_set(
    f"""{_LEAD} ableton adobe akg aiff and at audacity audition binaural bit bits bitrate channel compressed cubase dat
    device digital edirol equipment external flac handheld handy hz internal iphone live logic m-audio made marantz mic
    microphone microphones mics minidisc mono mp3 neumann ogg olympus on onboard pc pcm preamp pro quality rate raw
    reaper recorder rode røde roland samsung sampled sampling sennheiser shure smartphone software sony stereo studio
    tascam tools using via wav without xy zoom"""
)
_MODEL = re.compile(
    r"\d+(?:\.\d+)*(?:k?hz|k|-?bits?|kbps|db)?|h[1-8]\w{0,4}|dr-?\d+\w*|pcm-?\w+|mk[he]-?\d+|sm-?5[78]|nt-?\d\w?|ntg-?\d"
    r"|r-?0[59]|ls-?\d+|m10|d50|d100|c-?414|mixpre-?\w+"
)

_INLINE_TAGS = "a b code del em font i img pre q s small span strong sub sup td u"
_BREAK_TAGS = "blockquote br div h1 h2 h3 h4 h5 h6 hr li ol p table tr ul"
_LINK = r"(?:https?://|ftp://|www\.)\S*[\w/]|(?<![\w-])[\w-]{1,63}(?:\.[\w-]{1,63}){0,4}\.(?:com|org|net|co\.uk)\b(?:/\S*[\w/])?"


def _one_of(words: str) -> str:
    """Return a regular expression that matches any one of `words`, a text of words separated by blanks."""
    return "|".join(map(re.escape, words.split()))


def _boilerplate_pattern(core: str) -> re.Pattern[str]:
    """Compile the regular expression `core` so that it only matches at the beginning of a word, in any letter case."""
    return re.compile(rf"(?<!\w)(?:{core})", re.IGNORECASE | re.VERBOSE)


# The rest of the sentence or bracket after boilerplate; a full stop within a link is no end.
_TO_THE_END = re.compile(r"(?:[^.!?\n)\]]|[.!?](?=\S))*[.!?]*")
# Repetitions have limits, so that no odd text takes a time that grows with its length squared.
_ENTITIES = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
_BREAKS = re.compile(rf"<\s*/?\s*(?:{_one_of(_BREAK_TAGS)})\b[^<>]*>", re.IGNORECASE)
_INLINES = re.compile(rf"<\s*/?\s*(?:{_one_of(_INLINE_TAGS)})(?:\s[^<>]*)?/?>", re.IGNORECASE)
_LEADS = re.compile(rf"(?:(?<![\w'])(?:{_one_of(_LEAD)})(?![\w'-])|[ \t,;:-])+\Z", re.IGNORECASE)
_LICENCES, _WISHES, _ASIDES, _REQUESTS = map(_boilerplate_pattern, (_LICENCE, _WISH, _ASIDE, _REQUEST))
MAX_LEAD = 300  # characters of the words before boilerplate
_CLAUSE = re.compile(r"[,;:]|[ \t]-[ \t]")
_LICENCE_NAMES = re.compile(
    r"\b(?<!not )(?:(?:royalty|copyright)[ -]free|(?-i:CC)[ -]?(?:0|zero|BY(?:-(?:NC|SA|ND))*)(?:[ ][1-4]\.0)?"
    r"|(?<!the )public[ -]domain(?=\s(?!(?:so|and|but|as|audio|sounds?)\b)\w))\b",
    re.IGNORECASE,
)
_ADDRESSES = re.compile(
    r"(?:\b(?:contact|e-?mail)[:\s]{1,3})?(?:mailto:)?(?<![\w.+-])[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63})+",
    re.IGNORECASE,
)
_LINKS = re.compile(
    rf"[\s,;:]{{0,3}}(?:\b(?:from|at|on|via|by|see|visit|here)\b[:\s]{{0,3}}){{0,3}}[(<\[]?(?:{_LINK})[)>\]]?",
    re.IGNORECASE,
)
_SENTENCE_END = re.compile(r"((?<=[.!?])\s+|\n+)")
_BRACKETS = re.compile(r"\s*(?:\(([^()]*)\)|\[([^\[\]]*)\])")
_TOKEN = re.compile(r"[^\W_](?:[\w'’.-]*\w)?")
_EXTENSION = re.compile(r"(?<=[\w)\]#])(?:\s?\.(?:wave?|aiff?|mp3|flac|og[ga]|m4a|wma|aac)\b)+(?!\.\w)", re.IGNORECASE)
_UNDERSCORES = re.compile(r"(?<=[^\W_])_+(?=[^\W_])")
_INVISIBLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u200b\ufeff]")


def _decode_entities(text: str) -> str:
    """Decode the HTML entities in a text until none is left, because some texts were escaped twice.

    Only entities with a semicolon are decoded, so that "R&notes" stays.
    """
    while (decoded := _ENTITIES.sub(lambda match: html.unescape(match[0]), text)) != text:
        text = decoded
    return text


def _remove_boilerplate(boilerplate: re.Pattern[str], text: str, only_at_starts: bool = False) -> str:
    """Return a text without `boilerplate` and the rest of its sentence.

    Words before a match that only introduce it are removed too. A shortened sentence keeps its final ., ! or ?.
    Matches in double quotes stay.
    only_at_starts: Remove only matches at the start of sentences, brackets and clauses. A clause begins after a comma,
    semicolon, colon or dash.
    """
    remaining, at = "", 0
    for match in _unquoted(boilerplate, text):
        if match.start() < at:
            continue
        remaining, at = remaining + text[at : match.start()], match.start()
        last = remaining[-MAX_LEAD:]
        lead = last[len(_LEADS.sub("", last)) :]
        before = remaining[: len(remaining) - len(lead)]
        inside = bool(before) and before[-1] not in ".!?\n(["
        if only_at_starts and inside and not _CLAUSE.search(lead):
            continue
        at = _TO_THE_END.match(text, match.end()).end()  # type: ignore[union-attr]  # it may be empty
        remaining = before + (text[at - 1] if inside and text[at - 1] in ".!?" else "")
    return remaining + text[at:]


def _unquoted(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """Yield the matches of a pattern in a text, except those in double quotes."""
    at = straight = curly = 0
    for match in pattern.finditer(text):
        passed, at = text[at : match.start()], match.start()
        straight += passed.count('"')
        curly += passed.count("“") - passed.count("”")
        closing = '"' if straight % 2 else "”" if curly > 0 else None
        if closing is None or text.find(closing, at) < 0:
            yield match


def _remove_unquoted(pattern: re.Pattern[str], text: str) -> str:
    """Return a text without the matches of a pattern; matches in double quotes stay."""
    parts, at = [], 0
    for match in _unquoted(pattern, text):
        parts.append(text[at : match.start()])
        at = match.end()
    return "".join([*parts, text[at:]])


def _remove_equipment(text: str) -> str:
    """Return a text without the brackets and sentences that only name recording equipment or formats."""
    text = _BRACKETS.sub(lambda match: "" if _only_technical(match[1] or match[2] or "") else match[0], text)
    return "".join(part for part in _SENTENCE_END.split(text) if not _only_technical(part))


def _only_technical(text: str) -> bool:
    """Return whether a text consists of technical words only, such as a recorder's name and its sample rate."""
    tokens = [token.lower() for token in _TOKEN.findall(text)]
    return any(token in _MADE or token.endswith(("khz", "kbps")) for token in tokens) and all(
        token in _TECHNICAL or _MODEL.fullmatch(token) for token in tokens
    )


def _clean_spaces(text: str) -> str:
    """Return a text without invisible characters, empty brackets, repeated spaces, and stray punctuation."""
    text = re.sub(r"[(\[<]\s*[)\]>]", " ", _INVISIBLE.sub(" ", text))
    text = re.sub(r"\s+(?=[,.;:!?](?:\s|$))", "", " ".join(text.split()))
    return re.sub(r"^[,.;:]+\s+|^-\s+|[\s,;:]+-?$|\s-+$", "", text).strip()


def _shorten(text: str) -> str:
    """Cut a text to MAX_WORDS words, at the end of a sentence if possible."""
    if len(words := text.split()) <= MAX_WORDS:
        return text
    start = " ".join(words[:MAX_WORDS])
    ends = [match.end() for match in re.finditer(r"[.!?](?=\s)", start)]
    return start[: ends[-1]] if ends else start


# Measured on WavText5K's 4,525 descriptions and FSDKaggle2018's 11,979 titles: cuts per rule, and in brackets the
# number of these cuts with words about the sound. licence 61 (0), asides 234 (1), equipment 7 (0), all read; links 14
# and file_name 9,267, samples of them read (0). addresses, entities and markup do not occur there. In the 86,833
# captions of Clotho and AudioCaps the rules change only blanks and a separator at the end. Applied in this order:
# licence and asides come first, while links still show that a full stop within them ends nothing.
RULES: dict[str, Callable[[str], str]] = {
    "entities": _decode_entities,  # &amp; and the like, decoded
    # HTML tags, known by name: removed, those that begin a line become a line end
    "markup": lambda text: _INLINES.sub("", _BREAKS.sub("\n", text)),
    # licences and requests for credit: with the words that lead to them, up to the full stop
    "licence": lambda text: _remove_boilerplate(
        _WISHES, _remove_boilerplate(_LICENCES, _remove_unquoted(_LICENCE_NAMES, text)), only_at_starts=True
    ),
    # words to other users, and the person who requested a sound: in the same way
    "asides": lambda text: _remove_boilerplate(_REQUESTS, _remove_boilerplate(_ASIDES, text, only_at_starts=True)),
    "addresses": lambda text: _remove_unquoted(_ADDRESSES, text),  # e-mail
    "links": lambda text: _remove_unquoted(_LINKS, text),  # with a preceding "from", "at", "see"
    # sentences and brackets of technical words only: "Recorded with a Zoom H4n, 96 kHz."
    "equipment": _remove_equipment,
    # the extension of a sound file, and "_" between words, which becomes a space
    "file_name": lambda text: _UNDERSCORES.sub(" ", _EXTENSION.sub("", text)),
    "spaces": _clean_spaces,  # white space and control characters, empty brackets, separators left at an end
    "shortened": _shorten,  # to whole sentences within MAX_WORDS words, the limit of a manifest's captions
}


class Cleaned(NamedTuple):
    """Result of cleaning a description.

    Attributes:
        text: The cleaned text; "" if no letter was left.
        rules: Names of the rules that changed the text; the last one is "empty" if no letter was left.
        language: Language of the text: "en", another ISO 639-1 code, or the name of a script such as "cyrillic".
    """

    text: str
    rules: tuple[str, ...]
    language: str


def clean(text: str) -> Cleaned:
    """Clean a description so that it can be a caption; return the text, the rules that changed it, and its language.

    Only the rules in RULES change the text. A rule removes or decodes characters, or inserts a space; no rule changes
    the wording. Text in other languages is labelled and not changed.
    """
    rules = []
    for name, rule in RULES.items():
        changed = rule(text)
        if changed != text:
            rules.append(name)
            text = changed
    if not any(character.isalpha() for character in text):
        return Cleaned("", (*rules, EMPTY), language_of(""))
    return Cleaned(text, tuple(rules), language_of(text))
