"""Tokenize captions.

CIDEr-D uses Penn Treebank tokens, as in published captioning scores.

They come from the original tokenizer, which needs Java, or from a regular expression with nearly the same result.
"""

import re
import shutil
from collections.abc import Sequence

from data_tools.errors import KitError
from data_tools.words import lower_composed

# Clitics are tokens of their own ("'s", "n't"), as are the two halves of "cannot" and its like; a hyphen, apostrophe or
# slash inside a word, and a dot, comma or colon inside a number, stay. Everything else only separates.
_TOKEN = re.compile(
    r"""
      can(?=not\b) | (?:gon|wan)(?=na\b) | got(?=ta\b) | (?:gim|lem)(?=me\b)
    | [^\W_]+?(?=n't\b) | n't\b
    | '(?:s|re|ve|ll|m|d)\b
    | \d+(?:[.,:]\d+)+\b
    | [^\W_]+(?:[-'/](?!(?:s|re|ve|ll|m|d)\b)[^\W_]+)*
    """,
    re.VERBOSE,
)


def regex_tokens(caption: str) -> list[str]:
    """Return the lower-case tokens of a caption as PTBTokenizer does, but without Java.

    The list is empty for a caption without a word. Letters become lower case. A letter and its accent become one
    character (NFC); accents without such a character are removed.

    Source: pycocoevalcap's PTBTokenizer (Stanford CoreNLP 3.4.1, punctuation removed). Deviations: none on Clotho's
    29,645 captions; 20 of AudioCaps' 57,188 differ. In these, PTBTokenizer keeps brackets (`-lrb-`) and symbols (`&`,
    `|`, `*`) as tokens, and words around a dot (`laughing.then`, `p.a.`) as one token. This function does not.

    >>> regex_tokens("A dog's bark, far-off: it cannot stop.")
    ['a', 'dog', "'s", 'bark', 'far-off', 'it', 'can', 'not', 'stop']
    """
    return _TOKEN.findall(lower_composed(caption).replace("’", "'"))


def ptb_tokens(captions: Sequence[str]) -> list[list[str]]:
    """Return the tokens of each caption by pycocoevalcap's PTBTokenizer, in one Java process.

    A line break in a caption counts as a blank. Raises KitError if Java is missing or fails.
    """
    from pycocoevalcap.tokenizer.ptbtokenizer import PTBTokenizer

    if shutil.which("java") is None:
        raise KitError("the tokenizer ptb needs Java, and `java` is missing; install it, or set tokenizer: regex")
    lines = {n: [{"caption": " ".join(caption.split())}] for n, caption in enumerate(captions)}
    tokens = PTBTokenizer().tokenize(lines) if lines else {}
    if len(tokens) != len(lines):
        raise KitError(
            f"the tokenizer ptb failed: it gave {len(tokens)} lines for {len(lines)} captions; "
            "see Java's error message above, "
            "or set tokenizer: regex"
        )
    return [tokens[n][0].split() for n in range(len(lines))]


def tokenize(captions: Sequence[str], tokenizer: str) -> list[list[str]]:
    """Return the tokens of each caption by the tokenizer "regex" or "ptb". Raises KitError if ptb cannot run Java."""
    return ptb_tokens(captions) if tokenizer == "ptb" else [regex_tokens(caption) for caption in captions]
