"""Recipes: how to train. Each is a TOML file in this folder, whose diff shows the scientific change."""

from pathlib import Path

from shortcaps.recipes.recipe import (
    BALANCES,
    PLACEMENTS,
    RECIPES,
    Recipe,
    RecipeSpec,
    find_recipe,
    list_recipes,
    read_recipe,
    register_recipe,
)

__all__ = [
    "BALANCES",
    "FOLDER",
    "PLACEMENTS",
    "RECIPES",
    "Recipe",
    "RecipeSpec",
    "find_recipe",
    "list_recipes",
    "read_recipe",
    "register_recipe",
]

FOLDER = Path(__file__).parent

for _file in sorted(FOLDER.glob("*.toml")):
    register_recipe(_file.stem, _file)
