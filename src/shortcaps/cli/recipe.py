"""`shortcaps recipe`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from shortcaps.cli.app import app, console
from shortcaps.cli.shared import PLUGIN
from shortcaps.errors import RunError
from shortcaps.files import atomic_write
from shortcaps.recipes import FOLDER, RECIPES, find_recipe

recipe = typer.Typer(
    help="""List, show and copy recipes: how networks are trained.

Examples:

    shortcaps recipe list

    shortcaps recipe show fast

    shortcaps recipe copy fast my.toml && shortcaps train --recipe my.toml
""",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
app.add_typer(recipe, name="recipe")
NAME = Annotated[str, typer.Argument(metavar="NAME", help="Name of a recipe.")]


@recipe.command("list")
def list_command(plugin: PLUGIN = None) -> None:
    """List the recipes, with a line about each."""
    from rich.table import Table

    table = Table("recipe", "epochs", "batch", "lr", "schedule", "loss", "", box=None, header_style="dim")
    for name, spec in RECIPES.items():
        base = spec.recipe
        table.add_row(
            name, str(base.epochs), str(base.batch_size), f"{base.lr:g}", base.schedule, base.loss, spec.description
        )
    console.print(table)


@recipe.command("show")
def show_command(name: NAME, plugin: PLUGIN = None) -> None:
    """Print the TOML file of a recipe."""
    print(_file_of(name).read_text("utf-8"), end="")


@recipe.command("copy")
def copy_command(
    name: NAME,
    target: Annotated[Path, typer.Argument(metavar="FILE", help="The copy; it must not exist yet.")],
    plugin: PLUGIN = None,
) -> None:
    """Copy the TOML file of a recipe, to edit and train with `--recipe FILE`."""
    if target.suffix != ".toml":
        raise RunError(f"{target} is not the name of a recipe file: it must end in .toml")
    if target.exists():
        raise RunError(f"{target} already exists: choose another name")
    with atomic_write(target) as file:
        file.write(_file_of(name).read_bytes())
    console.print(f"train with it: shortcaps train --recipe {target}", highlight=False, markup=False)


def _file_of(name: str) -> Path:
    find_recipe(name)
    file = FOLDER / f"{name}.toml"
    if not file.is_file():
        raise RunError(
            f"the recipe {name} comes from a plug-in ({RECIPES.origin(name)}), not from a file of this package"
        )
    return file
