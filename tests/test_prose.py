"""Plain English: rules for docstrings, comments, messages, test names and Markdown.

A place that breaks a rule for a reason is marked by `# prose: ok` on its line, or on a docstring's first line.
"""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

FOLDERS = ("data_tools", "submission", "system", "recipes", "tests")
FIRST_WORDS = frozenset(
    [
        "what",
        "of",
        "by",
        "as",
        "in",
        "from",
        "for",
        "where",
        "which",
        "those",
        "that",
        "have",
        "how",
        "who",
        "at",
        "on",
        "to",
        "with",
        "their",
        "there",
    ]
)
BANNED = {  # pattern: what to write instead
    r"\banew\b": "again",
    r"(?<!-)\bbeside\b": "next to",
    r"\bbehind\b": "after",
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\bhand(s|ed|ing)? in\b": "submit",
    r"\bis (?-i:none)\b": "no X",
    r"\b(is|are) not there\b|\b(it|they) (is|are) there\b": "missing, present",
    r"\b(stands|stand|lies|lie) (in|at|above|below)\b": "is",
    r"\bthere are \{": "the fault and its value",
    r"\bwhat (a|an|the|it|they|was|are|has|does) ": "the thing itself: `the inputs`, `the missing frames`",
    r"\bhears\b|\bheard by\b": "processes, for a model",
    r"\ball at once\b": "together",
    r"\b(is|are) (said|told)\b": "reported, printed",
}
ANY_BANNED = re.compile("|".join(BANNED), re.IGNORECASE)
NAME_WORDS = frozenset(["anew", "beside", "behind", "mend", "told", "said", "heard"])
LONGEST_SENTENCE, LONGEST_LINE = 30, 120  # words in Markdown, characters
MARK = "# prose: ok"


class Text(NamedTuple):
    """A piece of prose. kind: docstring, comment, message, test or markdown."""

    line: int
    kind: str
    text: str


def python_texts(source: str) -> Iterator[Text]:
    """Yield docstrings, comments, test names, and strings of four words or more."""
    tree, docstrings = ast.parse(source), set()
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            if ast.get_docstring(node, clean=False) is not None:
                docstrings.add(node.body[0].value)  # type: ignore[attr-defined]
            if getattr(node, "name", "").startswith("test_"):
                yield Text(node.lineno, "test", node.name)  # type: ignore[union-attr]
    joined = [node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr)]
    for node in joined:
        text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{x}" for part in node.values)
        yield Text(node.lineno, "message", text)
    pieces = {part for node in joined for part in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in pieces:
            if node in docstrings:
                yield Text(node.lineno, "docstring", node.value)
            elif node.value.count(" ") > 2:
                yield Text(node.lineno, "message", node.value)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Text(token.start[0], "comment", token.string)


def markdown_texts(source: str) -> Iterator[Text]:
    """Yield paragraphs, list items and rows of tables without code."""
    without_code = re.sub(r"^```.*?^```$", lambda found: "\n" * found[0].count("\n"), source, flags=re.M | re.S)
    for found in re.finditer(
        r"(?:^(?:\||[-*>] |\d+\. |#)?.+\n?(?:^(?![-*>] |\d+\. |\||#).+\n?)*)", without_code, re.MULTILINE
    ):
        text = re.sub(r"`[^`]*`", "`code`", found[0])
        yield Text(without_code.count("\n", 0, found.start()) + 1, "markdown", re.sub(r"\]\([^)]*\)", "]", text))


def faults(text: Text) -> Iterator[str]:
    """Yield the rules that a text breaks."""
    if text.kind == "test":
        yield from (f"{word} in a test name" for word in NAME_WORDS.intersection(text.text.split("_")))
        return
    first = re.match(r"[\s#]*([A-Za-z]+)", text.text)
    if text.kind == "docstring" and first and first[1].lower() in FIRST_WORDS:
        yield f"begins with {first[1]}"
    line = " ".join(text.text.split())
    if ANY_BANNED.search(line):
        for pattern, better in BANNED.items():
            if found := re.search(pattern, line, re.IGNORECASE):
                yield f"{found[0]!r}; write {better}"
    if text.kind == "markdown" and not text.text.startswith("|"):
        for sentence in re.split(r"(?<=[.!?:;])\s+", text.text):
            if len(sentence.split()) > LONGEST_SENTENCE:
                yield f"a sentence of {len(sentence.split())} words"


def prose_files(root: Path, suffix: str) -> list[Path]:
    pages = [path for folder in FOLDERS for path in sorted((root / folder).rglob(f"*{suffix}"))]
    return [*pages, *(root.glob(f"*{suffix}"))]


@pytest.mark.parametrize("suffix", [".py", ".md"])
def test_texts_of_the_project_follow_the_prose_rules(root: Path, suffix: str) -> None:
    found = []
    for path in prose_files(root, suffix):
        if path == Path(__file__):
            continue
        source = path.read_text()
        lines = source.splitlines()
        texts = python_texts(source) if suffix == ".py" else markdown_texts(source)
        for text in texts:
            if MARK not in lines[text.line - 1]:
                found += [f"{path.relative_to(root)}:{text.line}: {fault}" for fault in faults(text)]
    assert found == []


def test_lines_of_markdown_have_at_most_120_characters(root: Path) -> None:
    found = []
    for path in prose_files(root, ".md"):
        text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
        found += [
            f"{path.name}: {line[:60]}"
            for line in text.splitlines()
            if len(line) > LONGEST_LINE and not line.startswith(("|", "<", "!["))
        ]
    assert found == []


@pytest.mark.parametrize(
    ("kind", "text", "fault"),
    [
        ("docstring", "What a loss sees.", "begins with What"),
        ("comment", "# the index lies in the folder", "'lies in'"),
        ("message", "there are {n} of them", "'there are {'"),  # prose: ok
        ("test", "test_a_damaged_file_is_told", "told in a test name"),
        ("markdown", "word " * 31, "a sentence of 31 words"),
    ],
)
def test_each_prose_rule_finds_its_example(kind: str, text: str, fault: str) -> None:
    assert any(found.startswith(fault) for found in faults(Text(1, kind, text)))


def test_prose_faults_are_found_in_docstrings_comments_and_messages() -> None:
    source = 'x = f"there are {n} items"\n'  # prose: ok
    found = [fault for text in python_texts(source) for fault in faults(text)]
    assert len(found) == 1
    assert found[0].startswith("'there are {'")
    page = "1. Plain.\n2. The file lies in\n   the folder.\n\n```\nbeside\n```\n| a | beside it |\n"
    assert [text.line for text in markdown_texts(page) if list(faults(text))] == [2, 8]


def test_prose_rules_find_no_fault_in_plain_prose() -> None:
    source = '"""Return the missing frames."""\n\n\ndef test_truncated_flac_is_refused():\n    pass  # a reason\n'
    assert [list(faults(text)) for text in python_texts(source)] == [[], [], []]
