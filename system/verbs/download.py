"""The verb download: the published files that a recipe names and this machine lacks."""

import argparse

from data_tools.datasets.download import download
from data_tools.errors import KitError
from system.verbs.options import add_recipe_arguments, load_from


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_recipe_arguments(parser, runs=False)
    parser.add_argument("--show", action="store_true", help="only print the files, and where each is published")


def run(arguments: argparse.Namespace) -> int:
    recipe = load_from(arguments).recipe
    failed = []
    for name, expert in recipe.model.audio.experts.items():
        for setting, path in expert.weight_files().items():
            address = expert.published().get(setting, "")
            state = "here" if path.exists() else "missing"
            if not arguments.show and address.startswith(("http://", "https://")):
                try:
                    state = "fetched" if download(address, path, expert.known_sha256().get(setting, "")) else "here"
                except KitError as error:
                    failed.append(str(error))
                    state = "failed"
            print(f"{state:8} {path}  ({name}, published at {address})")
    if failed:
        raise KitError("\n".join(failed))
    return 0
