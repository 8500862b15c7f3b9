"""READMEs and code agree: every link leads somewhere, every command opens, every example works."""

import functools
import importlib
import re
import shlex
from pathlib import Path
from typing import Any

import typer

ROOMS = ("data_tools", "system", "submission")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def readmes(root: Path) -> list[Path]:
    folders = [root / top for top in (*ROOMS, "recipes", "tests")]
    pages = [path for folder in folders for path in folder.rglob("*.md")]
    return [root / "README.md", *pages]


def prose(path: Path) -> str:
    """A README without its code blocks."""
    return re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)


def test_every_readme_link_leads_to_a_file_and_heading(root):
    links = 0
    for path in readmes(root):
        for target in re.findall(r"\]\(([^)\s]+)\)", prose(path)):
            if "://" in target:
                continue
            links += 1
            name, _, anchor = target.partition("#")
            leads = path.parent / name if name else path
            assert leads.exists(), f"{path} links to {target}"
            if anchor:
                headings = re.findall(r"^#+ (.*)$", prose(leads), re.MULTILINE)
                slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
                assert anchor in slugs, f"{path} links to {target}"
    assert links > 30


def test_each_number_of_three_decimals_appears_in_only_one_readme(root):
    """Figures of at least three decimals; deviations (after ±), differences (with a sign) and the ledger may repeat."""
    stands_in: dict[str, Path] = {}
    for path in readmes(root):
        text = re.sub(r"± [\d.]+", "", path.read_text().partition("## Ledger")[0])
        for figure in re.findall(r"(?<![\w.+-])\d+\.\d{3,}(?![\w.])", text):
            assert stands_in.setdefault(figure, path) == path, f"{figure} is in {stands_in[figure]} and in {path}"
    assert len(stands_in) > 100


@functools.cache
def program(room: str) -> Any:
    main = importlib.import_module(f"{room}.__main__")
    return typer.main.get_command(main.app_of([]) if room == "data_tools" else main.app)


def parse(room: str, words: list[str]) -> None:
    """Raise an exception for a command that is not taken."""
    verb = program(room)
    context, rest = None, list(words)
    while hasattr(verb, "resolve_command") and (rest or context is None):
        context = verb.make_context("lbar", rest, parent=context)
        _, verb, rest = verb.resolve_command(context, rest)
    verb.make_context(words[0], rest, parent=context)


def commands(root: Path) -> list[list[str]]:
    """All commands of the kit in the READMEs, in the recipes' first lines, and in the verbs' own examples."""
    texts = []
    for path in readmes(root):
        texts += [line for block in blocks(path.read_text(), "sh") for line in block.splitlines()]
        texts += [" ".join(text.split()) for text in re.findall(r"`([^`]+)`", prose(path)) if len(text.split()) > 4]
    for path in (root / "recipes").rglob("*.yaml"):
        texts += [line.removeprefix("#").strip() for line in path.read_text().splitlines()[:12]]
    return [shlex.split(text.removesuffix(" &"), comments=True) for text in texts if text.startswith("lbar ")]


def test_every_command_in_a_readme_parses(root):
    shown = commands(root)
    assert len(shown) > 100
    for words in shown:
        room = {"data": "data_tools", "submit": "submission"}.get(words[1], "system")
        rest = words[1 if room == "system" else 2 :]
        try:
            parse(room, rest)
        except (SystemExit, Exception) as stop:
            raise AssertionError(f"{shlex.join(words)} is not taken") from stop
        for word in words:
            if word.startswith("recipes/"):
                assert (root / word).is_file(), shlex.join(words)


def test_install_commands_in_readmes_name_existing_extras(root):
    import tomllib

    readme = "".join(path.read_text() for path in readmes(root))
    extras = set(tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    named = {extra for group in re.findall(r'"\.\[([\w,]+)\]"', readme) for extra in group.split(",")}
    assert named == extras


def test_every_recipe_is_listed_in_the_readme_of_recipes(root):
    text = (root / "recipes/README.md").read_text()
    for path in (root / "recipes").rglob("*.yaml"):
        assert f"`{path.relative_to(root / 'recipes')}`" in text, path
