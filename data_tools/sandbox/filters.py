"""Filters of a search in Solr's syntax, as far as a crawl and the public client use it.

All clauses of a list must match. OR makes the clauses on its two sides optional, and optional clauses in a list with
one that must match decide nothing. So `created:[...] type:wav OR type:aiff` finds all sounds of that time, as the real
search does (Lucene's classic query parser with AND as its default).
"""

import re
from collections.abc import Callable
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
_UNITS = {"SECOND": 1, "MINUTE": 60, "HOUR": 3600, "DAY": 86_400, "MONTH": 2_629_746, "YEAR": 31_556_952}
_NUMBERS = ("id", "duration", "samplerate", "channels", "filesize")
_TEXTS = ("type", "username", "md5", "category", "subcategory", "description", "name")


class FilterError(ValueError):
    """A filter that the search does not understand."""


class UnsupportedError(ValueError):
    """A filter that the real search may understand, and this one does not."""


@dataclass
class Group:
    """Clauses of one level. created: bounds in ms of the clauses of upload time that must match."""

    must: list[Matches] = field(default_factory=list)
    may: list[Matches] = field(default_factory=list)
    must_not: list[Matches] = field(default_factory=list)
    created: list[tuple[float, float]] = field(default_factory=list)
    is_top: bool = False  # only there may all clauses exclude

    def __call__(self, numbers: Numbers) -> np.ndarray:
        keep = np.full(len(numbers), bool(self.must or self.may) or self.is_top)
        if self.may and not self.must:
            keep = np.any([clause(numbers) for clause in self.may], axis=0)
        for clause in self.must:
            keep[keep] = clause(numbers[keep])
        for clause in self.must_not:
            keep[keep] = ~clause(numbers[keep])
        return keep


def found(corpus: Catalogue, text: str | None) -> Numbers:
    """Numbers of the sounds that a filter finds; all without one. Raises FilterError, UnsupportedError."""
    if text is None:
        return np.arange(corpus.size)
    group = _Parser(corpus, text).whole()
    first, last = 0, corpus.size
    for low, high in group.created:
        first, last = max(first, corpus.from_time(low)), min(last, corpus.from_time(high))
    numbers: Numbers = np.arange(first, max(first, last))
    kept: Numbers = numbers[group(numbers)]
    return kept


class _Parser:
    def __init__(self, corpus: Catalogue, text: str) -> None:
        self._corpus, self._text = corpus, text
        self._tokens = list(_tokens(text))

    def whole(self) -> Group:
        group = self._group(None)
        group.is_top = True
        if self._tokens:
            raise self._wrong()
        return group

    def _wrong(self) -> FilterError:
        return FilterError(f"Solr responded with an error (HTTP 400): Cannot parse '{self._text[:60]}'")

    def _group(self, name: str | None) -> Group:
        """Clauses up to a closing parenthesis or the end. name: of the field, in front of the parentheses."""
        group, conjunction, last = Group(), "", None
        while self._tokens and self._tokens[0] != ("sign", ")"):
            if self._tokens[0][0] == "sign" and self._tokens[0][1] in ("AND", "&&", "OR", "||"):
                conjunction = {"||": "OR", "&&": "AND"}.get(sign := self._tokens.pop(0)[1], sign)
                if last is None:
                    raise self._wrong()
                continue
            is_not = self._taken("NOT", "!", "-")
            self._taken("+")
            clause, created = self._clause(name)
            if conjunction == "OR" and last is not None and last in group.must:
                group.must.remove(last)
                group.may.append(last)
                group.created = []
            (group.must_not if is_not else group.may if conjunction == "OR" else group.must).append(clause)
            group.created += [created] if created and conjunction != "OR" and not is_not else []
            conjunction, last = "", clause
        if last is None or conjunction:
            raise self._wrong()
        return group

    def _taken(self, *signs: str) -> bool:
        if self._tokens and self._tokens[0][0] == "sign" and self._tokens[0][1] in signs:
            del self._tokens[0]
            return True
        return False

    def _clause(self, name: str | None) -> tuple[Matches, tuple[float, float] | None]:
        """(a clause, its bounds of the time of upload where it is one of these)."""
        if not self._tokens:
            raise self._wrong()
        kind, value = self._tokens.pop(0)
        if kind == "field":
            return self._clause(value)
        if (kind, value) == ("sign", "("):
            group = self._group(name)
            if not self._taken(")"):
                raise self._wrong()
            return group, None
        if name is None or kind == "sign":
            raise self._wrong()
        if kind == "range":
            return self._range(name, value)
        return self._term(name, value), None

    def _range(self, name: str, value: str) -> tuple[Matches, tuple[float, float] | None]:
        match = re.fullmatch(r"[\[{](\S+) TO (\S+)[\]}]", value)
        if not match:
            raise self._wrong()
        convert = _time if name == "created" else float
        try:
            low, high = (None if bound == "*" else convert(bound) for bound in match.groups())
        except (ValueError, OverflowError):
            raise FilterError(f"Solr responded with an error (HTTP 400): Invalid bound in '{value[:60]}'") from None
        low, high = (-np.inf if low is None else low), (np.inf if high is None else high)
        low = np.nextafter(low, np.inf) if value[0] == "{" else low
        high = np.nextafter(high, -np.inf) if value[-1] == "}" else high
        if name == "created":  # the index has whole seconds: a sound is found by its second
            span = np.ceil(low / 1000) * 1000, np.floor(high / 1000) * 1000 + 1000
            return lambda numbers: self._within(numbers, *span), span
        values = self._numbers(name)
        return lambda numbers: (low <= values(numbers)) & (values(numbers) <= high), None

    def _within(self, numbers: Numbers, low: float, high: float) -> np.ndarray:
        return (self._corpus.from_time(low) <= numbers) & (numbers < self._corpus.from_time(high))

    def _numbers(self, name: str) -> Callable[[Numbers], np.ndarray]:
        if name == "duration":
            return self._corpus.seconds
        if name == "id":
            return lambda numbers: np.array([self._corpus.id(int(number)) for number in numbers], float)
        if name not in _NUMBERS:
            raise FilterError(f"Solr responded with an error (HTTP 400): undefined field {name}")
        return lambda numbers: np.array([self._corpus.sound(int(number), "")[name] for number in numbers], float)

    def _term(self, name: str, value: str) -> Matches:
        if (name, value) == ("*", "*"):
            return lambda numbers: np.ones(len(numbers), bool)
        if name in ("created", *_NUMBERS):
            return self._range(name, f"[{value} TO {value}]")[0] if value != "*" else lambda n: np.ones(len(n), bool)
        pattern = re.compile(".*".join(map(re.escape, value.split("*"))))
        if name in ("license", "gen_ai_preference"):
            values = self._corpus.licences if name == "license" else self._corpus.preferences
            return lambda numbers: np.array([bool(pattern.fullmatch(one)) for one in values(numbers)], bool)

        def texts(number: int) -> list[str]:
            sound: Any = self._corpus.sound(number, "")
            if name == "tag":
                return list(sound["tags"])
            if name in ("is_explicit", "pack", *_TEXTS):
                return [str(sound[name]).lower() if name == "is_explicit" else str(sound[name])]
            raise FilterError(f"Solr responded with an error (HTTP 400): undefined field {name}")

        texts(0)  # so that a field there is not is refused whatever else is filtered
        return lambda numbers: np.array([any(map(pattern.fullmatch, texts(int(number)))) for number in numbers], bool)


def _tokens(text: str) -> list[tuple[str, str]]:
    """(kind, text) of each token. Raises FilterError, UnsupportedError."""
    tokens, at = list[tuple[str, str]](), 0
    while text[at:].strip():
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise FilterError(f"Solr responded with an error (HTTP 400): Cannot parse '{text[:60]}'")
        if match.lastgroup == "word" and re.search(r"[~^?\\]|^/|^\{!", match["word"]):
            raise UnsupportedError(f"the sandbox knows no {match['word'][:40]!r}")
        tokens.append((match.lastgroup, match[match.lastgroup]))
        at = match.end()
    if not tokens:
        raise FilterError("Invalid filter.")
    return tokens


def _time(text: str) -> float:
    """Milliseconds of a time with Solr's date maths: NOW-1YEAR, NOW/DAY. Months and years have their mean length."""
    match = _MATH.fullmatch(text)
    if match is None:
        return parse_time(text)
    time = datetime.now(UTC) if match[1] == "NOW" else datetime.fromisoformat(match[1])
    for step in re.findall(r"[+-]\d+[A-Z]+|/[A-Z]+", match[2]):
        count, unit = re.fullmatch(r"(/|[+-]\d+)([A-Z]+)", step).groups()  # type: ignore[union-attr]
        seconds = _UNITS.get(unit.removesuffix("S"))
        if seconds is None:
            raise ValueError(step)
        if count == "/":
            time = datetime.fromtimestamp(time.timestamp() // seconds * seconds, UTC)
        else:
            time += timedelta(seconds=int(count) * seconds)
    return time.timestamp() * 1000
