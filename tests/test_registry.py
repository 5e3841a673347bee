"""The registries: lookups, filters, refusals; and plug-ins, which are loaded when the user names them and never otherwise."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
import torch

import shortcaps
from shortcaps import plugins
from shortcaps.errors import RunError
from shortcaps.models import MODELS
from shortcaps.registry import Registry
from shortcaps.routing import ROUTINGS

PLUGIN = """
import torch
from torch import nn
import shortcaps

@shortcaps.register_routing
class Plain(shortcaps.Attention):
    name = "plain-attention"

@shortcaps.register_model("pixels", description="a linear layer on pixels")
class Pixels(shortcaps.Network):
    def __init__(self, *, image_size, channels, classes, scale=1.0):
        super().__init__(image_size, channels, classes)
        self.scale = scale
        self.classify = nn.Linear(channels * image_size[0] * image_size[1], classes)

    def forward(self, images):
        return self.classify(self.scale * images.flatten(1)).softmax(-1)
"""


@pytest.fixture(autouse=True)
def _registries_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    for registry in (ROUTINGS, MODELS):
        for name in ("_parts", "_places", "_plugins"):
            monkeypatch.setattr(registry, name, dict(getattr(registry, name)))
    monkeypatch.setattr(plugins, "_loaded", {})


def registry() -> Registry[object]:
    made: Registry[object] = Registry("thing")
    for name in ("net-23k", "net-68k", "other", "net-23k-plain"):
        made.register(name, object())
    return made


def test_names_are_filtered_as_timm_does() -> None:
    things = registry()
    assert list(things) == things.names() == ["net-23k", "net-23k-plain", "net-68k", "other"]
    assert things.names("net-*") == ["net-23k", "net-23k-plain", "net-68k"]
    assert things.names(["*-68k", "other"]) == ["net-68k", "other"]
    assert things.names("net-*", exclude="*-plain") == ["net-23k", "net-68k"]
    wanted = things["other"]
    assert things.names(where=lambda part: part is wanted) == ["other"]
    assert things.names("nothing*") == []


def test_an_unknown_name_gets_what_there_is_and_what_was_perhaps_meant() -> None:
    with pytest.raises(
        ValueError, match=r"unknown thing 'net-23': choose one of net-23k, .*, other \(did you mean net-23k\?\)"
    ):
        registry()["net-23"]
    with pytest.raises(KeyError):
        registry()["net-23"]
    assert "net-23" not in registry()
    assert 23 not in registry()


def test_a_name_is_not_given_twice_but_a_definition_may_run_again() -> None:
    things: Registry[type] = Registry("thing")

    def define() -> type:
        class Thing:
            pass

        return Thing

    first, again = define(), define()
    things.register("a", first)
    things.register("a", again)  # a notebook's cell that runs once more
    assert things["a"] is again
    with pytest.raises(
        ValueError, match=r"there is already a thing called 'a', from tests\.test_registry: choose another name"
    ):
        things.register("a", dict)
    with pytest.raises(ValueError, match="there is already a routing called 'fuzzy', from shortcaps itself: choose"):

        @shortcaps.register_routing
        class Mine(shortcaps.Attention):
            name = "fuzzy"


def test_what_is_no_routing_or_has_no_name_is_refused() -> None:
    with pytest.raises(TypeError, match="is not a subclass of Routing"):
        shortcaps.register_routing(dict)  # type: ignore[type-var]
    with pytest.raises(TypeError, match=r"Nameless has no name: give it one, e\.g\. `name = 'nameless'`"):

        @shortcaps.register_routing
        class Nameless(shortcaps.Routing):
            pass


def test_every_network_is_made_by_name() -> None:
    assert shortcaps.list_models(kind="capsules", exclude="compact*") == ["baseline", "expanded"]
    assert shortcaps.list_models("cnn-*", kind="plain") == ["cnn-23k", "cnn-68k"]
    for name in shortcaps.list_models(exclude="sabour"):
        model = shortcaps.create_model(name, image_size=30, channels=2, classes=3).eval()
        assert model(torch.rand(2, 2, 30, 30)).shape == (2, 3), name
        assert MODELS[name].description, name
        assert isinstance(model, shortcaps.CapsuleNetwork) == (MODELS[name].kind == "capsules"), name
        assert model.summary().parameters == sum(parameter.numel() for parameter in model.parameters()), name


def test_a_setting_that_a_network_does_not_have_is_named() -> None:
    with pytest.raises(TypeError, match="the network baseline has no setting 'num_classes': did you mean classes\\?"):
        shortcaps.create_model("baseline", num_classes=10)
    for name in shortcaps.list_models():
        for foreign, own in (("num_classes", "classes"), ("in_channels", "channels"), ("img_size", "image_size")):
            with pytest.raises(TypeError, match=f"has no setting '{foreign}': did you mean {own}\\?"):
                shortcaps.create_model(name, **{foreign: 3})
    with pytest.raises(TypeError, match="the network cnn-23k has no setting 'routing'"):
        shortcaps.create_model("cnn-23k", routing="em")


def test_parts_of_a_plugin_file_are_used_by_name(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(PLUGIN)
    shortcaps.load_plugin(file)
    shortcaps.load_plugin(file)  # a second time does nothing
    assert "plain-attention" in shortcaps.list_routings()
    assert ROUTINGS.origin("plain-attention") == str(file)
    assert ROUTINGS.origin("fuzzy") is None
    own = shortcaps.create_model("baseline", routing="plain-attention")
    like = shortcaps.create_model("baseline", routing="attention")
    like.load_state_dict(own.state_dict())
    images = torch.rand(2, 1, 28, 28)
    torch.testing.assert_close(own.eval()(images), like.eval()(images))
    pixels = shortcaps.create_model("pixels", scale=0.5)
    assert pixels(images).shape == (2, 10)
    assert pixels.title == "Pixels"
    assert pixels.summary().multiply_adds == 28 * 28 * 10


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "is not a file: give the path of a Python file, or the name of a module"),
        ("1 / 0", "failed: ZeroDivisionError: division by zero"),
        ("def", "failed: SyntaxError"),
    ],
)
def test_a_plugin_that_does_not_work_says_why(tmp_path: Path, content: str | None, message: str) -> None:
    file = tmp_path / "mine.py"
    if content is not None:
        file.write_text(content)
    with pytest.raises(RunError, match=message):
        shortcaps.load_plugin(file)


def test_a_module_that_cannot_be_imported_says_so() -> None:
    with pytest.raises(RunError, match="--plugin no_such_module is neither a file nor an importable module"):
        shortcaps.load_plugin("no_such_module")


def test_plugins_of_installed_packages_are_found_when_a_name_is_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "installed_routings.py").write_text(PLUGIN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(plugins, "_installed_are_loaded", False)
    entry = EntryPoint("mine", "installed_routings", plugins.ENTRY_POINTS)
    monkeypatch.setattr(plugins, "entry_points", lambda group: [entry] if group == plugins.ENTRY_POINTS else [])
    assert shortcaps.create_model("baseline", routing="plain-attention").routing.name == "plain-attention"
    assert ROUTINGS.origin("plain-attention") == "installed_routings"
    sys.modules.pop("installed_routings")


def test_importing_shortcaps_runs_no_plugin() -> None:
    program = "import shortcaps.plugins as p, shortcaps; print(p._installed_are_loaded, p._loaded)"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "False {}"
