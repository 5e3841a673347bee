"""`shortcaps explain`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from shortcaps.cli.app import app, console, note, print_json
from shortcaps.cli.shared import DATA, INVERT, PLUGIN, RUN, data_of_run
from shortcaps.errors import RunError


@app.command(
    "explain",
    help="""Explain one picture: figures of its capsules, and a page that holds them all.

They show where the winning class takes its votes from, for each shortcut, channel and pass; the class poses; how probability and
pose change as the picture is shifted, rotated, scaled and sheared; and an equivariance score: how much of the effect of such a
transformation on the poses is one linear map, the same for all images. A network without pose capsules shows only what
transformations do to its probabilities.

Examples:

    shortcaps explain mnist-baseline-fuzzy digit.png

    shortcaps explain runs/affnist-baseline-em digit.png --class 7 --out seven/
""",
)
def explain_command(
    run: RUN,
    picture: Annotated[Path, typer.Argument(metavar="PICTURE", help="A picture file.")],
    out: Annotated[
        Path | None, typer.Option(help="Output folder. [default: explained-PICTURE]", show_default=False)
    ] = None,
    class_name: Annotated[
        str | None, typer.Option("--class", help="The class to explain. [default: the winner]", show_default=False)
    ] = None,
    invert: INVERT = None,
    score_images: Annotated[
        int, typer.Option(help="Test images for the equivariance score; 0 to skip it.", min=0)
    ] = 400,
    data: DATA = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON.")] = False,
    plugin: PLUGIN = None,
) -> None:
    """Run `shortcaps explain`."""
    from shortcaps.data import sample_images
    from shortcaps.errors import DataError
    from shortcaps.inference.explain import equivariance_score, images_needed
    from shortcaps.inference.explain.page import explain, write_explanation
    from shortcaps.inference.predict import Predictor
    from shortcaps.models import CapsuleNetwork

    predictor = Predictor(run)
    if not picture.is_file():
        raise DataError(f"{picture} {'is a folder: give one picture' if picture.is_dir() else 'does not exist'}")
    try:
        image = predictor.read(picture, invert=invert)
    except DataError as reason:
        raise DataError(f"{picture}: {reason}") from reason
    names = predictor.class_names
    if class_name is not None and class_name not in names:
        raise RunError(f"unknown class {class_name!r}: this network knows {', '.join(names)}")
    network, score = predictor.network, None
    if not isinstance(network, CapsuleNetwork):
        note(
            f"{run} holds a {network.title}, which has no pose capsules: no routing maps, no poses and no equivariance score, "
            "only what transformations do"
        )
    elif score_images:
        try:
            needed = images_needed(network)
            if score_images < needed:
                raise DataError(f"--score-images {score_images} is too few: give at least {needed}, or 0 to skip it")
            images = sample_images(data_of_run(predictor.manifest, "test", data), score_images)
            score = equivariance_score(network, images)
        except (DataError, ValueError) as reason:  # no test images, or too few
            note(f"no equivariance score: {reason}")
    number = None if class_name is None else names.index(class_name)
    explanation = explain(network, image, class_number=number, score=score)
    target = out or Path(f"explained-{picture.stem}")
    page = write_explanation(explanation, target, f"{picture.name}: {names[explanation.winner]}")
    if as_json:
        poses = explanation.found.poses
        figures: dict[str, Any] = {
            "picture": str(picture),
            "class": names[explanation.winner],
            "probabilities": dict(zip(names, explanation.found.probabilities[0].tolist(), strict=True)),
            "pose": None if poses is None else poses[0, explanation.winner].tolist(),
            "page": str(page),
        }
        if score is not None:
            figures["equivariance"] = {
                "score": score.score,
                "by_transformation": score.by_transformation,
                "movement": score.movement,
                "images": score.images,
            }
        print_json(figures)
        return
    probability = float(explanation.found.probabilities[0, explanation.winner])
    console.print(f"{names[explanation.winner]}, probability {probability:.3f}", highlight=False, style="bold")
    if score is not None:
        parts = ", ".join(f"{name.replace('_', ' ')} {value:.2f}" for name, value in score.by_transformation.items())
        console.print(f"equivariance score {score.score:.2f} ({parts}; {score.images} test images)", highlight=False)
    console.print(f"page: {page}", highlight=False)
