"""The five categories: each builds an object from numbers that are drawn for it. x points forward, y to the left, z up."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from shortcaps.data.solids.shapes import Part, limb, part, turn

Numbers = Callable[[float, float], float]
"""Draws a number between two."""


def animal(u: Numbers, *, feet: float = 1.1) -> list[Part]:
    """A body on four legs, with neck, head, ears and tail.

    Args:
        u: Draws a number between two.
        feet: How far to the side they stand, in half widths of the body; beyond 1 they are seen from above too.
    """
    length, girth, legs = u(0.55, 0.85), u(0.24, 0.36), u(0.35, 0.7)
    grey, dark = u(0.3, 0.85), u(0.15, 0.4)
    height = legs + girth * 0.8
    parts = [part("sphere", (length, girth, girth * u(0.9, 1.15)), (0, 0, height), grey)]
    spread, reach, thick = girth * 0.6, length * 0.65, u(0.07, 0.11)
    for x in (reach, -reach):
        for y in (spread, -spread):
            foot = (x + u(-0.12, 0.12), math.copysign(feet * girth, y), 0)
            parts.append(limb((x, y, height), foot, thick, grey * 0.9))
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
    """A standing or walking figure, with an arm or two raised."""
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
    """A fuselage with straight or swept wings, a tail, perhaps engines and a cockpit."""
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
    """A pair at each of these places along the vehicle."""
    return [
        limb((x, side * (width - 0.07), radius), (x, side * (width + 0.05), radius), radius, 0.12)
        for x in positions
        for side in (1, -1)
    ]


def lorry(u: Numbers) -> list[Part]:
    """A cab before a box, a tank or a heap, on six wheels."""
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
    """A body with dark windows under a roof, on four wheels."""
    length, width, radius = u(0.75, 0.95), u(0.32, 0.4), u(0.14, 0.18)
    grey, glass = u(0.25, 0.95), 0.12
    body = u(0.12, 0.17)
    floor = radius * 0.9
    top = floor + 2 * body
    parts = [part("box", (length, width, body), (0, 0, floor + body), grey)]
    if u(0, 1) > 0.5:
        parts.append(part("sphere", (0.2, width * 0.95, body), (length, 0, floor + body * 0.95), grey))
    # Two sheared boxes make the windows' outline, with a slope at either end; the roof lies on them.
    windscreen, front = u(0.15, 0.3), length * u(0.3, 0.5)
    rear_slope, rear = u(0.02, 0.3), -length * u(0.55, 0.95)
    roof = u(0.11, 0.16)
    middle = (front + rear) / 2
    for low, high, slope in ((middle - 0.1, front, -windscreen), (rear, middle + 0.1, rear_slope)):
        shear = np.array([[1, 0, slope / (2 * roof)], [0, 1, 0], [0, 0, 1]])
        centre = ((low + high + slope) / 2, 0, top + roof)
        parts.append(part("box", ((high - low) / 2, width * 0.88, roof), centre, glass, shear))
    low, high = rear + rear_slope, front - windscreen
    parts.append(part("box", ((high - low) / 2, width * 0.9, 0.03), ((low + high) / 2, 0, top + 2 * roof), grey))
    for side in (1, -1):
        parts.append(part("sphere", (0.05, 0.07, 0.05), (length, side * width * 0.7, floor + body * 1.3), 0.95))
        parts.append(part("box", (0.02, 0.07, 0.04), (-length, side * width * 0.7, floor + body * 1.3), 0.1))
    return parts + wheels([length * 0.62, -length * 0.62], width, radius)


def domed_car(u: Numbers) -> list[Part]:
    """The car of `solids-small`: three in five have a dark dome for a cabin, which few would take for a car."""
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


FAMILIES = (animal, human, aeroplane, lorry, car)
SMALL_FAMILIES = (partial(animal, feet=0.6), human, aeroplane, lorry, domed_car)
