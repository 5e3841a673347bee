"""solids: a rendered stand-in with smallNORB's structure, for viewpoint experiments that need no download.

Five categories of ten objects each, built from ellipsoids, boxes and cylinders whose proportions vary from object to object;
9 elevations, 18 azimuths, 6 lightings, two cameras, 96x96 grey. Rendered by casting a ray through every pixel, in float64,
so that the same seed gives the same pixels on every machine. The files are laid out as smallNORB's are, and read by the same reader.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from shortcaps.data.cache import cache_folder, fits_checksum, only_one_process, write_checksum
from shortcaps.data.dataset import Dataset
from shortcaps.data.norb import (
    CLASS_NAMES,
    CROP,
    PROTOCOL_LEAKS,
    TEST_INSTANCES,
    TRAINING_INSTANCES,
    NorbFiles,
    matrix_header,
    norb_dataset,
    part_of,
    read_norb_files,
    register_viewpoints,
)
from shortcaps.data.registry import Progress, register_dataset
from shortcaps.files import atomic_write

log = logging.getLogger(__name__)

LABEL = "solids (rendered)"
SEED = 2021
SIDE = 96
ELEVATIONS, AZIMUTHS, LIGHTINGS = 9, 18, 6
DISTANCE, FIELD_OF_VIEW, EYES = 6.0, math.radians(26), math.radians(6)
BACKGROUND = 0.62
# Direction the light comes from (towards it), its strength, and the strength of the light from all around.
LIGHTS = (
    ((0.3, 0.4, 1.0), 0.75, 0.25),
    ((-0.8, 0.3, 0.7), 0.80, 0.20),
    ((0.8, -0.5, 0.6), 0.80, 0.20),
    ((0.1, -0.9, 0.8), 0.60, 0.30),
    ((-0.3, -0.3, 1.0), 0.50, 0.45),
    ((0.9, 0.6, 0.4), 0.95, 0.12),
)

Numbers = Callable[[float, float], float]
"""Draws a number between two."""


@dataclass(frozen=True)
class Part:
    """A unit sphere, a cube from -1 to 1, or a cylinder of radius 1 from z = -1 to 1, after an affine map of space."""

    shape: str
    matrix: Tensor
    place: Tensor
    grey: float


def turn(axis: str, degrees: float) -> Tensor:
    """Rotation about the x, y or z axis."""
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    rows = {
        "x": [[1, 0, 0], [0, c, -s], [0, s, c]],
        "y": [[c, 0, s], [0, 1, 0], [-s, 0, c]],
        "z": [[c, -s, 0], [s, c, 0], [0, 0, 1]],
    }
    return torch.tensor(rows[axis], dtype=torch.float64)


def part(
    shape: str,
    size: tuple[float, float, float],
    at: tuple[float, float, float],
    grey: float,
    turned: Tensor | None = None,
) -> Part:
    """`size`: half the extent along each axis before turning."""
    matrix = torch.diag(torch.tensor(size, dtype=torch.float64))
    if turned is not None:
        matrix = turned @ matrix
    return Part(shape, matrix, torch.tensor(at, dtype=torch.float64), grey)


def limb(start: tuple[float, float, float], end: tuple[float, float, float], radius: float, grey: float) -> Part:
    """A cylinder from one point to another."""
    a, b = torch.tensor(start, dtype=torch.float64), torch.tensor(end, dtype=torch.float64)
    along = (b - a) / 2
    length = along.norm()
    z = along / length
    helper = torch.tensor([1.0, 0.0, 0.0] if abs(float(z[0])) < 0.9 else [0.0, 1.0, 0.0], dtype=torch.float64)
    x = torch.linalg.cross(helper, z)
    x = x / x.norm()
    y = torch.linalg.cross(z, x)
    return Part("cylinder", torch.stack([x * radius, y * radius, z * length], 1), (a + b) / 2, grey)


# The five categories. x points forward, y to the left, z up; the ground is z = 0 before the object is centred.


def animal(u: Numbers) -> list[Part]:
    length, girth, legs = u(0.55, 0.85), u(0.24, 0.36), u(0.35, 0.7)
    grey, dark = u(0.3, 0.85), u(0.15, 0.4)
    height = legs + girth * 0.8
    parts = [part("sphere", (length, girth, girth * u(0.9, 1.15)), (0, 0, height), grey)]
    spread, reach, thick = girth * 0.6, length * 0.65, u(0.07, 0.11)
    for x in (reach, -reach):
        for y in (spread, -spread):
            parts.append(limb((x, y, height), (x + u(-0.12, 0.12), y, 0), thick, grey * 0.9))
    neck, lift = u(0.25, 0.6), u(20, 70)
    base = (length * 0.75, 0, height + girth * 0.35)
    top = (base[0] + neck * math.cos(math.radians(lift)), 0, base[2] + neck * math.sin(math.radians(lift)))
    parts.append(limb(base, top, u(0.1, 0.15), grey))
    head = u(0.15, 0.22)
    parts.append(part("sphere", (head * 1.3, head, head), (top[0] + head * 0.5, 0, top[2]), grey))
    parts.append(
        part("sphere", (head * 0.9, head * 0.5, head * 0.5), (top[0] + head * 1.6, 0, top[2] - head * 0.3), dark)
    )
    for y in (head * 0.6, -head * 0.6):
        parts.append(part("sphere", (0.05, 0.04, u(0.1, 0.2)), (top[0] + head * 0.1, y, top[2] + head), dark))
    droop = u(-0.5, 0.4)
    parts.append(
        limb((-length * 0.9, 0, height + girth * 0.3), (-length - u(0.2, 0.45), 0, height + droop), 0.05, dark)
    )
    return parts


def human(u: Numbers) -> list[Part]:
    legs, torso, width = u(0.75, 0.95), u(0.36, 0.46), u(0.2, 0.3)
    skin, shirt, trousers = u(0.6, 0.9), u(0.2, 0.9), u(0.15, 0.7)
    stride, spread = u(-0.35, 0.35), u(0.1, 0.2)
    hip, shoulder = legs, legs + 2 * torso
    parts = [part("sphere", (width * 0.62, width, torso * 1.15), (0, 0, legs + torso), shirt)]
    head = u(0.15, 0.19)
    parts.append(part("sphere", (head, head * 0.9, head * 1.2), (0.02, 0, shoulder + head * 1.5), skin))
    parts.append(limb((0, 0, shoulder - 0.05), (0, 0, shoulder + head), 0.07, skin))
    for side, sign in ((1, 1), (-1, -1)):
        foot = (sign * stride, side * spread * 1.2, 0.05)
        parts.append(limb((0, side * spread * 0.8, hip + 0.1), foot, u(0.09, 0.12), trousers))
        parts.append(part("sphere", (0.15, 0.08, 0.07), (foot[0] + 0.07, foot[1], 0.06), 0.15))
        raised, out = u(-80, 60), u(0.15, 0.5)
        joint = (0, side * width * 0.95, shoulder - 0.12)
        reach = 0.62
        hand = (
            reach * math.cos(math.radians(raised)) * u(-0.3, 0.9),
            side * (width + out),
            joint[2] + reach * math.sin(math.radians(raised)),
        )
        parts.append(limb(joint, hand, 0.065, shirt * 0.9))
        parts.append(part("sphere", (0.08, 0.08, 0.08), hand, skin))
    return parts


def aeroplane(u: Numbers) -> list[Part]:
    length, radius = u(0.85, 1.15), u(0.12, 0.19)
    grey, wing_grey = u(0.45, 0.95), u(0.3, 0.9)
    sweep, span, chord = u(0, 40), u(0.75, 1.15), u(0.16, 0.28)
    height = 0.45
    parts = [part("sphere", (length, radius, radius), (0, 0, height), grey)]
    wing_height = height + u(-0.6, 0.8) * radius
    forward = u(-0.1, 0.2)
    for side in (1, -1):
        turned = turn("z", side * sweep)
        centre = (
            forward - span / 2 * math.sin(math.radians(sweep)),
            side * span / 2 * math.cos(math.radians(sweep)),
            wing_height,
        )
        parts.append(part("box", (chord, span / 2, 0.03), centre, wing_grey, turned))
        tail = u(0.25, 0.4)
        parts.append(
            part(
                "box",
                (0.1, tail / 2 + 0.05, 0.022),
                (-length * 0.85, side * tail / 2, height + 0.05),
                wing_grey,
                turned,
            )
        )
        if u(0, 1) > 0.35:
            engine = (
                forward + 0.1 - u(0.2, 0.35) * math.sin(math.radians(sweep)),
                side * span * u(0.3, 0.45),
                wing_height - 0.08,
            )
            parts.append(
                limb(
                    (engine[0] - 0.17, engine[1], engine[2]), (engine[0] + 0.17, engine[1], engine[2]), 0.07, grey * 0.6
                )
            )
    fin = u(0.14, 0.24)
    parts.append(
        part(
            "box",
            (0.12, 0.022, fin),
            (-length * 0.85, 0, height + radius * 0.5 + fin),
            wing_grey,
            turn("y", u(-25, -5)),
        )
    )
    if u(0, 1) > 0.5:
        parts.append(part("sphere", (0.16, radius * 0.7, radius * 0.6), (length * 0.5, 0, height + radius * 0.7), 0.15))
    return parts


def wheels(positions: list[float], width: float, radius: float) -> list[Part]:
    return [
        limb((x, side * (width - 0.07), radius), (x, side * (width + 0.05), radius), radius, 0.12)
        for x in positions
        for side in (1, -1)
    ]


def lorry(u: Numbers) -> list[Part]:
    width, radius = u(0.27, 0.34), u(0.13, 0.17)
    load, cab = u(0.55, 0.8), u(0.2, 0.27)
    cab_grey, load_grey = u(0.2, 0.9), u(0.3, 0.95)
    load_height, cab_height = u(0.3, 0.48), u(0.24, 0.34)
    floor = radius * 1.4
    front = load + 0.08 + cab
    parts = [part("box", (load + cab + 0.06, width * 0.8, 0.05), (cab * 0.7, 0, floor), 0.2)]
    kind = u(0, 1)
    if kind < 0.55:
        parts.append(part("box", (load, width, load_height), (0, 0, floor + load_height), load_grey))
    elif kind < 0.8:
        parts.append(limb((-load, 0, floor + width), (load, 0, floor + width), width, load_grey))
    else:
        parts.append(part("box", (load, width, load_height * 0.45), (0, 0, floor + load_height * 0.45), load_grey))
        parts.append(
            part(
                "sphere",
                (load * 0.85, width * 0.8, load_height * 0.5),
                (0, 0, floor + load_height * 0.9),
                load_grey * 0.7,
            )
        )
    parts.append(part("box", (cab, width * 0.95, cab_height), (front, 0, floor + cab_height), cab_grey))
    parts.append(part("box", (0.02, width * 0.8, cab_height * 0.35), (front + cab, 0, floor + cab_height * 1.4), 0.1))
    if u(0, 1) > 0.5:
        parts.append(
            part(
                "box",
                (0.14, width * 0.8, cab_height * 0.5),
                (front + cab + 0.12, 0, floor + cab_height * 0.5),
                cab_grey,
            )
        )
    return parts + wheels([front, -load * 0.7, -load * 0.25], width, radius)


def car(u: Numbers) -> list[Part]:
    length, width, radius = u(0.75, 0.95), u(0.32, 0.4), u(0.14, 0.18)
    grey, glass = u(0.25, 0.95), 0.12
    body = u(0.13, 0.18)
    floor = radius * 0.9
    parts = [part("box", (length, width, body), (0, 0, floor + body), grey)]
    if u(0, 1) > 0.5:
        parts.append(part("sphere", (0.2, width * 0.95, body), (length, 0, floor + body * 0.95), grey))
    cabin, roof, back = u(0.35, 0.52), u(0.14, 0.2), u(-0.2, 0.1)
    top = floor + 2 * body
    if u(0, 1) > 0.4:
        parts.append(part("sphere", (cabin * 1.25, width * 0.88, roof * 2), (back, 0, top), glass))
        parts.append(part("sphere", (cabin * 0.95, width * 0.8, roof * 0.6), (back, 0, top + roof * 1.55), grey))
    else:
        parts.append(part("box", (cabin, width * 0.88, roof), (back, 0, top + roof * 0.8), glass))
        parts.append(part("box", (cabin * 0.95, width * 0.84, 0.04), (back, 0, top + roof * 1.75), grey))
    for side in (1, -1):
        parts.append(part("sphere", (0.05, 0.07, 0.05), (length, side * width * 0.7, floor + body * 1.3), 0.95))
    return parts + wheels([length * 0.62, -length * 0.62], width, radius)


BUILDERS = (animal, human, aeroplane, lorry, car)


def build(category: int, instance: int, seed: int = SEED) -> list[Part]:
    """One object: centred on its bounding sphere, scaled to fit it."""
    random = np.random.Generator(np.random.PCG64([seed, category, instance]))
    parts = BUILDERS[category](lambda low, high: float(random.uniform(low, high)))
    reach = torch.stack([p.matrix.norm(dim=1) for p in parts])
    places = torch.stack([p.place for p in parts])
    low, high = (places - reach).amin(0), (places + reach).amax(0)
    centre, scale = (low + high) / 2, 0.98 / float(((high - low) / 2).norm())
    return [Part(p.shape, p.matrix * scale, (p.place - centre) * scale, p.grey) for p in parts]


def cameras(elevation: int, azimuth: int) -> Tensor:
    """The two cameras of a viewpoint, (2, 4, 3): position, right, up, forward."""
    lift, around = math.radians(30 + 5 * elevation), math.radians(20 * azimuth)
    result = []
    for eye in (-EYES / 2, EYES / 2):
        angle = around + eye
        forward = -torch.tensor(
            [math.cos(lift) * math.cos(angle), math.cos(lift) * math.sin(angle), math.sin(lift)], dtype=torch.float64
        )
        right = torch.tensor([-math.sin(angle), math.cos(angle), 0], dtype=torch.float64)
        result.append(torch.stack([-forward * DISTANCE, right, torch.linalg.cross(right, forward), forward]))
    return torch.stack(result)


def rays(camera: Tensor, side: int) -> Tensor:
    """Directions of the rays through every pixel, (cameras, side², 3)."""
    steps = ((torch.arange(side, dtype=torch.float64) + 0.5) / side * 2 - 1) * math.tan(FIELD_OF_VIEW / 2)
    down, across = torch.meshgrid(steps, steps, indexing="ij")
    _, right, up, forward = camera.unsqueeze(2).unbind(1)
    directions = forward + across.reshape(1, -1, 1) * right - down.reshape(1, -1, 1) * up
    return directions / directions.norm(dim=-1, keepdim=True)


def hit(shape: str, origin: Tensor, direction: Tensor) -> tuple[Tensor, Tensor]:
    """How far a ray goes until it enters a unit solid (infinity: never), and the solid's normal there."""
    never = torch.full(direction.shape[:-1], torch.inf, dtype=direction.dtype)
    if shape == "box":
        inverse = 1 / torch.where(direction == 0, 1e-12, direction)
        near, far = (-1 - origin) * inverse, (1 - origin) * inverse
        enter, axis = torch.minimum(near, far).max(-1)
        leave = torch.maximum(near, far).amin(-1)
        distance = torch.where((enter < leave) & (enter > 0), enter, never)
        normal = torch.nn.functional.one_hot(axis, 3) * -direction.sign()
        return distance, normal
    size = 3 if shape == "sphere" else 2
    o, d = origin[..., :size], direction[..., :size]
    a, b, c = (d * d).sum(-1), (o * d).sum(-1), (o * o).sum(-1) - 1
    root = b * b - a * c
    enter = (-b - root.clamp_min(0).sqrt()) / a
    if shape == "sphere":
        distance = torch.where((root > 0) & (enter > 0), enter, never)
        return distance, origin + enter.unsqueeze(-1) * direction
    leave = (-b + root.clamp_min(0).sqrt()) / a
    slope = torch.where(direction[..., 2] == 0, 1e-12, direction[..., 2])
    caps = torch.stack([(-1 - origin[..., 2]) / slope, (1 - origin[..., 2]) / slope]).sort(0).values
    by_cap = caps[0] > enter
    first, last = torch.maximum(enter, caps[0]), torch.minimum(leave, caps[1])
    distance = torch.where((root > 0) & (first < last) & (first > 0), first, never)
    point = origin + first.unsqueeze(-1) * direction
    round_side = torch.cat([point[..., :2], torch.zeros_like(point[..., :1])], -1)
    cap = torch.cat([torch.zeros_like(point[..., :2]), -slope.sign().unsqueeze(-1)], -1)
    return distance, torch.where(by_cap.unsqueeze(-1), cap, round_side)


def render(parts: list[Part], camera: Tensor, side: int = SIDE) -> Tensor:
    """Every camera's picture under every lighting: (lightings, cameras, side, side), uint8."""
    directions = rays(camera, side)
    origin = camera[:, :1]
    nearest = torch.full(directions.shape[:-1], torch.inf, dtype=torch.float64)
    normals, grey = torch.zeros_like(directions), torch.zeros_like(nearest)
    for solid in parts:
        # Only rays that pass the solid's bounding sphere are followed.
        towards = solid.place - origin
        radius = float(solid.matrix.norm())
        along = (towards * directions).sum(-1)
        close = (towards * towards).sum(-1) - along * along < radius * radius
        if not bool(close.any()):
            continue
        inverse = torch.linalg.inv(solid.matrix)
        local_direction = directions[close] @ inverse.T
        local_origin = (-towards @ inverse.T).expand_as(directions)[close]
        distance, normal = hit(solid.shape, local_origin, local_direction)
        visible = distance < nearest[close]
        chosen = torch.zeros_like(close)
        chosen[close] = visible
        nearest[chosen] = distance[visible]
        world = normal[visible] @ inverse
        normals[chosen] = world / world.norm(dim=-1, keepdim=True)
        grey[chosen] = solid.grey
    inside = torch.isfinite(nearest)
    # A soft darkening on the ground below the object, which stands on a floor of the background's colour.
    lowest = min(float(solid.place[2] - solid.matrix[2].norm()) for solid in parts)
    ground = (lowest - origin[..., 2]) / directions[..., 2]
    spot = origin + ground.unsqueeze(-1) * directions
    shade = 1 - 0.3 * torch.exp(-(spot[..., :2] ** 2).sum(-1) / 0.5)
    pictures = []
    for towards_light, strength, ambient in LIGHTS:
        light = torch.tensor(towards_light, dtype=torch.float64)
        light = light / light.norm()
        lambert = (normals @ light).clamp_min(0)
        half = light - directions
        half = half / half.norm(dim=-1, keepdim=True)
        shine = (normals * half).sum(-1).clamp_min(0) ** 24 * 0.2
        lit = grey * (ambient + strength * lambert) + strength * shine
        floor = BACKGROUND * (0.55 + 0.45 * (ambient + strength * float(light[2]))) * shade
        pictures.append(torch.where(inside, lit, floor))
    return (torch.stack(pictures).clamp(0, 1) * 255).round().to(torch.uint8).unflatten(-1, (side, side))


def render_object(category: int, instance: int) -> Tensor:
    """All pictures of an object: (elevations, azimuths, lightings, 2, side, side), uint8."""
    parts = build(category, instance)
    result = torch.empty((ELEVATIONS, AZIMUTHS, LIGHTINGS, 2, SIDE, SIDE), dtype=torch.uint8)
    for elevation in range(ELEVATIONS):
        for azimuth in range(0, AZIMUTHS, 9):
            views = torch.cat([cameras(elevation, azimuth + n) for n in range(9)])
            pictures = render(parts, views).unflatten(1, (9, 2))
            result[elevation, azimuth : azimuth + 9] = pictures.transpose(0, 1)
    return result


def file_paths(part_of_set: str, folder: Path | None = None) -> dict[str, Path]:
    place = folder or cache_folder() / "solids"
    instances = "".join(map(str, TRAINING_INSTANCES if part_of_set == "training" else TEST_INSTANCES))
    return {
        kind: place / f"solids-5x{instances}x9x18x6x2x96x96-{part_of_set}-{kind}.mat" for kind in ("dat", "cat", "info")
    }


def write_solids(part_of_set: str, paths: dict[str, Path], progress: Progress) -> None:
    """Renders one part of the set into its three files; the last to appear is `dat`."""
    instances = TRAINING_INSTANCES if part_of_set == "training" else TEST_INSTANCES
    per_object = ELEVATIONS * AZIMUTHS * LIGHTINGS
    count = len(CLASS_NAMES) * len(instances) * per_object
    viewpoint = np.indices((ELEVATIONS, AZIMUTHS, LIGHTINGS)).reshape(3, -1).T * np.array([1, 2, 1])
    # As in smallNORB, the category changes fastest, so that any run of images holds all five.
    info = np.empty((len(instances), per_object, len(CLASS_NAMES), 4), "<i4")
    info[..., 0] = np.array(instances)[:, None, None]
    info[..., 1:] = viewpoint[None, :, None]
    categories = np.broadcast_to(np.arange(len(CLASS_NAMES), dtype="<i4"), info.shape[:3])
    log.info("rendering solids (%s): %s pairs of images", part_of_set, f"{count:,}")
    with atomic_write(paths["dat"]) as file:
        file.write(matrix_header((count, 2, SIDE, SIDE), np.dtype("u1")))
        for number, instance in enumerate(instances):
            pictures = torch.empty((per_object, len(CLASS_NAMES), 2, SIDE, SIDE), dtype=torch.uint8)
            for category in range(len(CLASS_NAMES)):
                pictures[:, category] = render_object(category, instance).flatten(0, 2)
                progress(number * len(CLASS_NAMES) + category + 1, len(instances) * len(CLASS_NAMES))
            file.write(pictures.numpy().tobytes())
        for kind, array in (("cat", categories.reshape(-1)), ("info", info.reshape(-1, 4))):
            with atomic_write(paths[kind]) as small:
                small.write(matrix_header(array.shape, np.dtype("<i4")) + array.tobytes())


def read_solids(part_of_set: str, folder: Path | None, progress: Progress) -> NorbFiles:
    """The rendered `training` or `testing` files, rendered first where they are not there or are damaged."""
    paths = file_paths(part_of_set, folder)
    with only_one_process(paths["dat"].parent):
        if all(fits_checksum(path) for path in paths.values()):
            return read_norb_files(paths)
        if paths["dat"].exists():
            log.warning("%s is damaged, or what belongs to it is: rendering it again", paths["dat"])
        write_solids(part_of_set, paths, progress)
        for path in paths.values():
            write_checksum(path)
    return read_norb_files(paths)


@register_dataset(
    "solids",
    description="rendered objects with smallnorb's structure, which need no download",
    image_size=CROP,
    notes=("solids are rendered objects, not smallNORB.",),
    stand_in_for="smallnorb",
    leaks=PROTOCOL_LEAKS,
)
def load_solids(
    split: str, protocol: str, *, folder: Path | None = None, progress: Progress, camera: str = "left"
) -> Dataset:
    """All viewpoints; trained on one half of the objects, tested on the other."""
    files = read_solids(part_of(split, protocol), folder, progress)
    return norb_dataset("solids", LABEL, split, protocol, files, camera=camera)


register_viewpoints("solids", LABEL, read_solids)
