"""Structure of the code: import directions, no needless torch, file sizes, verbs."""

import ast
import functools
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOMS = ("data_tools", "system", "submission")
MAY_IMPORT = {"data_tools": set(), "submission": {"data_tools"}, "system": {"data_tools", "submission"}}


def sources(root: Path, room: str) -> list[Path]:
    found = sorted((root / room).rglob("*.py"))
    assert found
    return found


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imported(tree: ast.AST) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.split(".")[0])
    return names


@pytest.mark.parametrize("room", ROOMS)
def test_packages_import_each_other_in_one_direction_only(root, room):
    for path in sources(root, room):
        others = imported(tree_of(path)) & set(ROOMS) - {room}
        assert others <= MAY_IMPORT[room], f"{path} imports {others}"


@functools.cache
def arrows(root: Path) -> dict[str, set[str]]:
    """Return the rooms that each room imports: folders of a package, or files such as data_tools.manifest."""
    found: dict[str, set[str]] = {}
    for name, others in imports_of_files(root).items():
        room = ".".join(name.split(".")[:2])
        found.setdefault(room, set()).update({".".join(other.split(".")[:2]) for other in others} - {room})
    return found


def test_folders_and_files_have_no_circular_imports(root):
    assert in_circles(arrows(root)) == []
    assert in_circles({"a": {"b"}, "b": {"c"}, "c": set()}) == []
    assert in_circles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": set()}) == ["a", "b", "c"]
    assert in_circles(imports_of_files(root)) == []


@functools.cache
def imports_of_files(root: Path) -> dict[str, set[str]]:
    """Return the modules that each module imports, inside functions too, except for type checking."""
    paths = [path for floor in ROOMS for path in sources(root, floor)]
    named = {".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}
    found: dict[str, set[str]] = {}
    for name, path in named.items():
        tree = tree_of(path)
        guards = [n for n in ast.walk(tree) if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.unparse(n.test)]
        ignored = {id(inner) for guard in guards for node in guard.body for inner in ast.walk(node)}
        wanted: set[str] = set()
        for node in ast.walk(tree):
            if id(node) not in ignored and isinstance(node, ast.ImportFrom) and node.module:
                wanted |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            elif id(node) not in ignored and isinstance(node, ast.Import):
                wanted |= {alias.name for alias in node.names}
        found[name] = (wanted & named.keys()) - {name, *ROOMS}
    return found


def in_circles(graph: dict[str, set[str]]) -> list[str]:
    """Return the names that are in a circle, or lead to one."""
    left = dict(graph)
    while free := [name for name, others in left.items() if not others & left.keys()]:
        for name in free:
            del left[name]
    return sorted(left)


@pytest.mark.parametrize("floor", ROOMS)
def test_each_package_has_few_folders_and_few_imports_between_them(root, floor):
    rooms = {path.relative_to(root / floor).parts[0] for path in sources(root, floor) if path.parent != root / floor}
    assert len(rooms) <= 16
    own = (arrows(root).get(f"{floor}.{room}", set()) for room in rooms)
    assert sum(other.startswith(floor) for others in own for other in others) <= 80


@pytest.mark.parametrize("room", ["data_tools", "submission"])
def test_data_tools_and_submission_never_import_torch(root, room):
    """The classifier is exempt, because it embeds sentences."""
    heavy = {"torch", "torchaudio", "transformers", "sentence_transformers"}
    for path in sources(root, room):
        if path.parent != root / "data_tools" / "classify":
            assert not imported(tree_of(path)) & heavy, path


@pytest.mark.parametrize("room", ROOMS)
def test_files_have_at_most_400_lines(root, room):
    for path in sources(root, room):
        text = path.read_text()
        assert len(text.splitlines()) <= 400, f"{path} is past 400 lines"


def test_top_level_has_only_known_entries(root):
    tracked = subprocess.run(["git", "-C", root, "ls-files"], capture_output=True, text=True, check=True).stdout
    top = {line.split("/")[0] for line in tracked.splitlines()}
    agreed = {"README.md", "pyproject.toml", "LICENSE", "recipes", *ROOMS, "tests"}
    assert {name for name in top if not name.startswith(".")} <= agreed


PROGRAMS = {"data_tools": "lbar data", "submission": "lbar submit", "system": "lbar"}


def verbs(room: str) -> list[str]:
    module = importlib.import_module(f"{room}.__main__")
    if room == "data_tools":
        return list(module.VERBS)
    return [verb.name or verb.callback.__name__ for verb in module.app.registered_commands]


@pytest.mark.parametrize("room", ROOMS)
def test_every_verb_has_help_and_a_readme_example(root, room):
    readme = (root / room / "README.md").read_text()
    for verb in verbs(room):
        assert importlib.import_module(f"{room}.__main__").main([verb, "--help"]) == 0, f"{room} {verb}"
        assert f"{PROGRAMS[room]} {verb}" in readme, f"{room}/README.md does not show {verb}"


@pytest.mark.parametrize("room", ROOMS)
def test_help_imports_no_torch(root, room):
    code = (
        "import sys, runpy\n"
        "sys.argv = ['-m', '--help']\n"
        "try:\n"
        f"    runpy.run_module({room!r}, run_name='__main__')\n"
        "except SystemExit as stop:\n"
        "    assert not stop.code, stop.code\n"
        "assert not {'torch', 'pandas', 'aiohttp', 'sklearn'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=root)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("room", ROOMS)
def test_wrong_usage_of_every_program_is_refused(room, capsys):
    for arguments in ([], ["nonsense"], ["--nonsense"]):
        assert importlib.import_module(f"{room}.__main__").main(arguments) == 2
        assert "usage:" in capsys.readouterr().err.lower()


def test_no_model_is_loaded_with_trust_remote_code(root):
    found = 0
    for room in ROOMS:
        for path in sources(root, room):
            for node in ast.walk(tree_of(path)):
                name = getattr(getattr(node, "func", None), "attr", getattr(getattr(node, "func", None), "id", ""))
                if isinstance(node, ast.Call) and name in ("from_pretrained", "SentenceTransformer"):
                    said = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                    assert said.get("trust_remote_code") == "False", f"{path}, line {node.lineno}"
                    found += 1
    assert found >= 4
