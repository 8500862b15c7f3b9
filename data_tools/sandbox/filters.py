"""Search filters of the sandbox.

Filters of a search in Solr's syntax, as far as the verb `crawl` and Freesound's public Python client use it.

All clauses of a list must match. OR makes the clauses before and after it optional. In a list with one required clause,
optional clauses have no effect. So `created:[...] type:wav OR type:aiff` finds all sounds of that time, as the real
search does (Lucene's classic query parser with AND as its default).
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np

from data_tools.freesound.sounds import parse_time
from data_tools.sandbox.corpus import Catalogue, Numbers

Matches = Callable[[Numbers], np.ndarray]
_TOKEN = re.compile(
    r"""\s*(?:(?P<sign>&&|\|\||[()!+-]|AND\b|OR\b|NOT\b)|(?P<field>\w+|\*(?=:\*)):|(?P<range>[\[{][^\]}]*[\]}])|"(?P<quoted>[^"]*)"
    |(?P<word>[^\s()"\[\]{}:]+))""",
    re.VERBOSE,
)
_MATH = re.compile(r"(NOW|\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z)((?:[+-]\d+[A-Z]+|/[A-Z]+)*)")
_STEP = re.compile(r"([+-]\d+|/)([A-Z]+)")
_UNITS = {"SECOND": 1, "MINUTE": 60, "HOUR": 3600, "DAY": 86_400, "MONTH": 2_629_746, "YEAR": 31_556_952}
_NUMBERS = ("created", "id", "duration", "samplerate", "channels", "filesize")


class FilterError(ValueError):
    """A filter that is invalid in the search."""


class UnsupportedError(ValueError):
    """A filter that the real search may support, but the sandbox does not."""


@dataclass(eq=False)
class Group:
    """Clauses of one level."""

    must: list[Matches] = field(default_factory=list)
    may: list[Matches] = field(default_factory=list)
    must_not: list[Matches] = field(default_factory=list)
    is_top: bool = False  # only at the top level may all clauses exclude

    def __call__(self, numbers: Numbers) -> np.ndarray:
        """Return, for each of the sounds with the given indices, whether it matches the clauses of the filter."""
        keep = np.full(len(numbers), bool(self.must or self.may) or self.is_top)
        if self.may and not self.must:
            keep = np.any([clause(numbers) for clause in self.may], axis=0)
        for clause in self.must:
            keep[keep] = clause(numbers[keep])
        for clause in self.must_not:
            keep[keep] = ~clause(numbers[keep])
        return keep


def matching_sounds(corpus: Catalogue, text: str | None) -> Numbers:
    """Return the indices of the sounds that match the filter `text`; without a filter (None), those of all sounds."""
    numbers: Numbers = np.arange(corpus.size)
    return numbers if text is None else numbers[_Parser(corpus, text).parse()(numbers)]


class _Parser:
    def __init__(self, corpus: Catalogue, text: str) -> None:
        """Split the filter `text` into tokens."""
        self._corpus, self._text = corpus, text
        self._tokens = list(_split_tokens(text))

    def parse(self) -> Group:
        """Parse the whole filter; return a Group, which finds the matching sounds. Raises FilterError."""
        group = self._parse_group(None)
        group.is_top = True
        if self._tokens:
            raise self._syntax_error()
        return group

    def _syntax_error(self) -> FilterError:
        """Return the API's error for a filter that cannot be parsed."""
        return FilterError(f"Solr responded with an error (HTTP 400): Cannot parse '{self._text[:60]}'")

    def _parse_group(self, name: str | None) -> Group:
        """Parse the clauses up to a closing parenthesis or the end; return a Group. name: Field before the group."""
        group, conjunction, last = Group(), "", None
        while self._tokens and self._tokens[0] != ("sign", ")"):
            if sign := self._take("AND", "&&", "OR", "||"):
                conjunction = sign
                if last is None:
                    raise self._syntax_error()
                continue
            is_or = conjunction in ("OR", "||")
            is_not = self._take("NOT", "!", "-")
            self._take("+")
            clause = self._parse_clause(name)
            if is_or and last and last in group.must:
                group.must.remove(last)
                group.may.append(last)
            (group.must_not if is_not else group.may if is_or else group.must).append(clause)
            conjunction, last = "", clause
        if last is None or conjunction:
            raise self._syntax_error()
        return group

    def _take(self, *signs: str) -> str:
        """Return the filter's next token and remove it if it is one of `signs`; otherwise return ""."""
        is_next = self._tokens and self._tokens[0][0] == "sign" and self._tokens[0][1] in signs
        return self._tokens.pop(0)[1] if is_next else ""

    def _parse_clause(self, name: str | None) -> Matches:
        """Parse one clause of a filter; return its condition on sounds. name: Field name before the parentheses."""
        if not self._tokens:
            raise self._syntax_error()
        kind, value = self._tokens.pop(0)
        if kind == "field":
            return self._parse_clause(value)
        if (kind, value) == ("sign", "("):
            group = self._parse_group(name)
            if not self._take(")"):
                raise self._syntax_error()
            return group
        if name is None or kind == "sign":
            raise self._syntax_error()
        return self._range_condition(name, value) if kind == "range" else self._term_condition(name, value)

    def _range_condition(self, name: str, value: str) -> Matches:
        """Return a condition on sounds: the value of the field `name` is in a range `value` such as `[1 TO 5]`."""
        match = re.fullmatch(r"[\[{](\S+) TO (\S+)[\]}]", value)
        if not match:
            raise self._syntax_error()
        convert = _parse_time if name == "created" else float
        try:
            low = -np.inf if match[1] == "*" else convert(match[1])
            high = np.inf if match[2] == "*" else convert(match[2])
        except (ValueError, LookupError, OverflowError):
            raise FilterError(f"Solr responded with an error (HTTP 400): Invalid bound in '{value[:60]}'") from None
        low = np.nextafter(low, np.inf) if value[0] == "{" else low
        high = np.nextafter(high, -np.inf) if value[-1] == "}" else high
        if name == "created":  # the index has whole seconds: a sound matches by its second
            first = self._corpus.from_time(np.ceil(low / 1000) * 1000)
            end = self._corpus.from_time(np.floor(high / 1000) * 1000 + 1000)
            return lambda numbers: (first <= numbers) & (numbers < end)
        values = self._field_values(name)

        def within(numbers: Numbers) -> np.ndarray:
            """Return, for each sound, whether its value is inside the range. numbers: Indices of the sounds."""
            field_values = np.asarray(values(numbers), float)
            return (low <= field_values) & (field_values <= high)

        return within

    def _term_condition(self, name: str, value: str) -> Matches:
        """Return a condition on sounds: the field `name` has the value `value`; a `*` in it matches any text."""
        if value == "*" and name in ("*", *_NUMBERS):
            return lambda numbers: np.ones(len(numbers), bool)
        if name in _NUMBERS:
            return self._range_condition(name, f"[{value} TO {value}]")
        pattern = re.compile(".*".join(map(re.escape, value.split("*"))))
        values = self._field_values(name)

        def matches(one: Any) -> bool:
            """Return whether a field's value matches the pattern."""
            texts = one if name == "tag" else [str(one).lower() if name == "is_explicit" else str(one)]
            return any(map(pattern.fullmatch, texts))

        return lambda numbers: np.array([matches(one) for one in values(numbers)], bool)

    def _field_values(self, name: str) -> Callable[[Numbers], Sequence[Any] | np.ndarray]:
        """Return a function that maps the indices of sounds to their values in the field `name`."""
        corpus, key = self._corpus, "tags" if name == "tag" else name
        quick: dict[str, Callable[[Numbers], Sequence[Any] | np.ndarray]] = {
            "duration": corpus.seconds,
            "license": corpus.licences,
            "gen_ai_preference": corpus.preferences,
            "id": lambda numbers: [corpus.id(int(number)) for number in numbers],
        }
        if key not in corpus.sound(0, ""):
            raise FilterError(f"Solr responded with an error (HTTP 400): undefined field {name}")
        return quick.get(name, lambda numbers: [corpus.sound(int(number), "")[key] for number in numbers])


def _split_tokens(text: str) -> list[tuple[str, str]]:
    """Split a filter into tokens, (kind, text) each. Raises FilterError, UnsupportedError."""
    tokens, at = list[tuple[str, str]](), 0
    while text[at:].strip():
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise FilterError(f"Solr responded with an error (HTTP 400): Cannot parse '{text[:60]}'")
        if match.lastgroup == "word" and re.search(r"[~^?\\]|^/|^\{!", match["word"]):
            raise UnsupportedError(f"the sandbox does not support {match['word'][:40]!r} in a filter; remove it")
        tokens.append((match.lastgroup, match[match.lastgroup]))
        at = match.end()
    if not tokens:
        raise FilterError("Invalid filter.")
    return tokens


def _parse_time(text: str) -> float:
    """Convert a time with Solr's date maths, such as NOW-1YEAR or NOW/DAY, to milliseconds.

    Months and years have their mean length.
    """
    match = _MATH.fullmatch(text)
    if match is None:
        return parse_time(text)
    time = datetime.now(UTC) if match[1] == "NOW" else datetime.fromisoformat(match[1])
    for count, unit in _STEP.findall(match[2]):
        length = _UNITS[unit.removesuffix("S")]
        passed = -(time.timestamp() % length) if count == "/" else int(count) * length
        time += timedelta(seconds=passed)
    return time.timestamp() * 1000
