"""A network that was trained in a loop of one's own, as a run directory that every command takes."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from shortcaps.backbones import evaluating
from shortcaps.data import Dataset
from shortcaps.environment import describe_environment
from shortcaps.errors import RunError
from shortcaps.inference.prepare import Preparation
from shortcaps.models import Network, create_model
from shortcaps.models.blueprint import blueprint_origins, plain_blueprint
from shortcaps.registry import UnknownPart
from shortcaps.runs.bounds import check_settings
from shortcaps.runs.directory import RunDirectory
from shortcaps.runs.manifest import Manifest, TrainedOn
from shortcaps.runs.sample import write_sample
from shortcaps.settings import unknown_setting

# What of `TrainedOn` says how pictures are prepared; `shortcaps.data.Dataset` has attributes of the same names.
_NOT_PREPARATION = ("name", "label", "protocol", "class_names", "view", "augment", "fingerprints", "paths", "in_memory")
_PREPARATION = tuple(field.name for field in fields(TrainedOn) if field.name not in _NOT_PREPARATION)


def save(
    model: Network,
    run: str | Path,
    *,
    class_names: Sequence[str] | None = None,
    preparation: Dataset | Mapping[str, Any] | None = None,
    label: str = "",
    network: Mapping[str, Any] | None = None,
) -> Path:
    """Save a network as a run directory, which `predict`, `explain`, `export`, `evaluate`, `serve` and `train --from` take.

    Before anything is written, the network is made again by its name and settings, and has to give the same answers. It must see images in
    0–1; what else it does with them (subtract a mean, say) has to be part of its `forward`.

    Args:
        model: Any network that `create_model` has made, or whose arguments are given as `network`.
        run: The run directory; it must not hold a run.
        class_names: In the order of the outputs; by default those of the model or of `preparation`.
        preparation: How pictures become images: a `Dataset` whose images the network was trained on, of which a sample is kept, or a
            mapping with any of `stored_size` (height and width that a picture is resized to; the middle of it is shown to the
            network), `fit` (`stretch`, `pad` or `crop`, for pictures of another shape), `bright_on_dark` (light strokes on black: pictures
            of ink on paper are inverted) and `centred_digits` (digits are cropped and centred as in MNIST). By default pictures are
            stretched to the network's size, and nothing else.
        label: What the network was trained on, for reports; by default that of `preparation`.
        network: The arguments of `create_model`, for a network that was made otherwise, e.g. `{"name": "mine", "width": 8}`.

    Returns:
        The run directory.

    Raises:
        RunError: Nothing says how to make the network again, what is made again differs, or the directory cannot be used.

    Example:
        model = shortcaps.create_model("compact-23k", classes=2)
        ...  # train it
        shortcaps.save(model, "runs/mine", class_names=["cat", "dog"])
    """
    try:
        blueprint = plain_blueprint(model, network)
    except (ValueError, UnknownPart) as error:
        raise RunError(str(error)) from error
    check_settings(blueprint)
    data = _describe_data(model, class_names, preparation, label)
    manifest = Manifest({}, {}, blueprint, data, describe_environment(), blueprint_origins(blueprint))
    Preparation.of_run(manifest)  # refuses what would make every answer wrong
    weights = {name: tensor.detach().clone().cpu() for name, tensor in model.state_dict().items()}
    for name, tensor in weights.items():
        if not tensor.isfinite().all():
            raise RunError(f"the network holds numbers that are not finite, in {name}: it was not saved")
    _check_same(model, blueprint, weights)
    target = RunDirectory(Path(run).expanduser())
    target.claim(resume=False)
    try:
        target.write_weights(weights, target.weights_file)
        if isinstance(preparation, Dataset):
            write_sample(target, preparation)
        else:
            target.sample_file.unlink(missing_ok=True)  # of a run that was here before
        # Last, as it makes the directory a run.
        target.write_json("config.json", manifest.to_json())
    finally:
        target.release()
    return target.path


def _describe_data(
    model: Network, class_names: Sequence[str] | None, preparation: Dataset | Mapping[str, Any] | None, label: str
) -> TrainedOn:
    names = _listed(class_names)
    given: dict[str, Any]
    if isinstance(preparation, Dataset):
        shape = preparation.image_shape
        if shape != (model.channels, *model.image_size):
            raise RunError(
                f"{preparation.label} has images of {'x'.join(map(str, shape))}, but the network was made for "
                f"{'x'.join(map(str, (model.channels, *model.image_size)))} (channels x height x width)"
            )
        given = {name: getattr(preparation, name) for name in _PREPARATION if hasattr(preparation, name)}
        given["stored_size"] = tuple(preparation.images.shape[2:])
        # Not those of an earlier run, whose network may have been trained further.
        names = names or list(preparation.class_names)
        label = label or preparation.label
    else:
        given = _settings_of(preparation)
        names = names or list(model.class_names)
    if len(names) != model.classes:
        raise RunError(
            f"the network has {model.classes} classes, but there are {len(names)} class_names: give one for each, in the order of the "
            "outputs"
        )
    if len(set(names)) < len(names):
        raise RunError(f"two classes have the same name: {', '.join(names)}")
    defaults = {"stored_size": tuple(model.image_size), "bright_on_dark": False, "centred_digits": False}
    where = label or "images of one's own"
    return TrainedOn(
        **{"name": where, "label": where, "protocol": "default", "class_names": tuple(names), **defaults, **given}
    )


def _listed(class_names: Sequence[str] | None) -> list[str]:
    """Names of classes as plain texts, from whatever holds them, e.g. an array."""
    try:
        names = [] if class_names is None else list(class_names)
    except TypeError as error:
        raise RunError(f"class_names {class_names!r:.40} is no list: give a text for each class") from error
    for name in names:
        if not isinstance(name, str):
            raise RunError(f"class_names has {name!r:.40}, which is no text: give a text for each class")
    return [str(name) for name in names]


def _settings_of(preparation: Mapping[str, Any] | None) -> dict[str, Any]:
    if not isinstance(preparation, Mapping | None):
        raise RunError(
            f"preparation is a {type(preparation).__name__}: give a Dataset, or a mapping with any of {', '.join(_PREPARATION)}"
        )
    given = dict(preparation or {})
    for name in given:
        if name not in _PREPARATION:
            raise RunError(f"preparation: {unknown_setting(str(name), _PREPARATION)}")
    if "stored_size" in given:
        size = given["stored_size"]
        try:
            height, width = map(operator.index, size if isinstance(size, Sequence) else (size, size))
        except (TypeError, ValueError) as error:
            raise RunError(
                f"preparation: stored_size {size!r:.40} is no size: give whole numbers of pixels, one or height and width"
            ) from error
        given["stored_size"] = (height, width)
    return given


def _check_same(model: Network, blueprint: Mapping[str, Any], weights: Mapping[str, torch.Tensor]) -> None:
    """Raise RunError unless the blueprint makes a network that gives the same answers with these weights."""
    try:
        # What is drawn to make it must not change what the caller draws next.
        with torch.random.fork_rng(devices=[]):
            again = create_model(**blueprint)
        again.load_state_dict(weights)
    except (ValueError, TypeError, KeyError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise RunError(f"create_model makes another network than this of {blueprint['name']}: {reason}") from error
    images = torch.rand(2, model.channels, *model.image_size, generator=torch.Generator().manual_seed(0))
    own = next(iter(weights.values()), images)
    with torch.no_grad(), evaluating(model):
        expected = model(images.to(next(model.parameters(), own)))
        found = again.to(expected.dtype).eval()(images.to(expected.dtype))
    if not torch.allclose(expected.cpu(), found, rtol=1e-4, atol=1e-5):
        raise RunError(
            f"this network does something else than the {blueprint['name']} that create_model makes with its weights: register it under a "
            "name of its own (register_model)"
        )
