"""Which pictures are for training, validation and test, where their owner has not said so.

A picture's place depends on the digest of its contents, or of the group it belongs to: copies, and pictures of one thing, stay in one
split. Adding pictures never takes one out of training, unless groups have pictures of several classes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

from shortcaps.data.own.pictures import Listing, digest_of
from shortcaps.errors import DataError

SHARES = {"test": 0.1, "validation": 0.1}
"""Of what is held out from the training pictures, where the owner has not done so."""
NO_CONTENTS = b""
"""Stands for the digest of a file that cannot be read: it is left in training, where it is named or skipped."""


def divide(listing: Listing, digest: Callable[[int], bytes]) -> dict[str, list[int]]:
    """The numbers of the pictures of each split, in their order.

    Args:
        listing: The pictures.
        digest: The SHA-256 of a picture's contents by its number, `NO_CONTENTS` if it cannot be read. It is asked for only if needed.

    Raises:
        DataError: There are too few pictures, or groups; or the owner's splits share a group.
    """
    numbers = range(len(listing.pictures))
    if not listing.splits:
        if listing.keeps_old_division and not listing.groups:
            return _by_rank(listing, [digest(n) for n in numbers])
        return _by_key(listing, numbers, ("test", "validation"), digest)
    parts = {name: [n for n in numbers if listing.splits[n] == name] for name in ("train", "validation", "test")}
    if listing.groups:
        _check_groups(listing)
    if not parts["validation"]:
        parts |= _by_key(listing, parts["train"], ("validation",), digest)
    return parts


def _check_groups(listing: Listing) -> None:
    """Raise DataError where the owner has put pictures of one group into several splits."""
    split_of: dict[str, str] = {}
    shared = {
        group: split
        for group, split in zip(listing.groups, listing.splits, strict=True)
        if split_of.setdefault(group, split) != split
    }
    if shared:
        group, split = next(iter(shared.items()))
        raise DataError(
            f"{listing.root}: {group!r} has pictures in {split_of[group]} and in {split}, and so have {len(shared) - 1} other groups: "
            "a test would ask for what was learned by heart; keep each group in one split, or leave out group-by"
        )


def _by_key(
    listing: Listing, numbers: Sequence[int], held_out: tuple[str, ...], digest: Callable[[int], bytes]
) -> dict[str, list[int]]:
    """A division by the digest of each picture or group alone, so that it does not depend on what else there is.

    Read as a number between 0 and 1, a digest below 0.1 is for the first split that is held out, one below 0.2 for the second. A class
    of which chance leaves nothing to a split gives it one nevertheless (`_spare`).
    """
    keys = {n: digest_of(listing.groups[n]) if listing.groups else digest(n) for n in numbers}
    borders = [
        (round(sum(SHARES[name] for name in held_out[: k + 1]) * 2**256), name) for k, name in enumerate(held_out)
    ]
    place = {
        key: next((name for border, name in borders if int.from_bytes(key) < border), "train")
        for key in set(keys.values())
    }
    place[NO_CONTENTS] = "train"
    of_class: defaultdict[int, set[bytes]] = defaultdict(set)
    for n, key in keys.items():
        of_class[listing.labels[n]].add(key)
    units_of = {label: sorted(of_class[label] - {NO_CONTENTS}) for label in range(len(listing.class_names))}
    for label, name in enumerate(listing.class_names):
        if len(units_of[label]) <= len(held_out):
            what = "groups" if listing.groups else "different images"
            raise DataError(
                f"class {name} has {len(units_of[label])} {what}: dividing them needs at least {len(held_out) + 1}"
            )
    # First every class by itself, so that what one lends does not depend on what the others have lent. Where a group has pictures of several
    # classes, what one class lends to a split another may lend elsewhere: then once more, with what all have lent.
    lent = [_lent(units, dict(place), held_out) for units in units_of.values()]
    for loans in lent:
        place |= loans
    for units in units_of.values():
        place |= _lent(units, place, held_out)
    parts: dict[str, list[int]] = {name: [] for name in (*held_out, "train")}
    for n in numbers:
        parts[place[keys[n]]].append(n)
    for split, chosen in parts.items():
        present = {listing.labels[n] for n in chosen}
        for label, name in enumerate(listing.class_names):
            if label not in present:
                what = "groups" if listing.groups else "images"
                raise DataError(f"the {len(of_class[label])} {what} of class {name} leave none for {split}: add some")
    return parts


def _lent(units: Sequence[bytes], place: dict[bytes, str], held_out: Sequence[str]) -> dict[bytes, str]:
    """What a class with these units lends to splits of which it has nothing; changes `place` likewise."""
    loans = {}
    for split in held_out:
        if not any(place[key] == split for key in units):
            spare = _spare(units, place)
            loans[spare] = place[spare] = split
    return loans


def _spare(units: Sequence[bytes], place: Mapping[bytes, str]) -> bytes:
    """The unit of a class that a split gets which has none: of another split that is held out and has several, or else of training.

    In this order, and from training the lowest digest, so that further pictures never take another one out of training.
    """
    by_split: defaultdict[str, list[bytes]] = defaultdict(list)
    for key in units:
        by_split[place[key]].append(key)
    several = [keys for split, keys in by_split.items() if split != "train" and len(keys) > 1]
    return several[0][-1] if several else by_split["train"][0]


def _by_rank(listing: Listing, digests: Sequence[bytes]) -> dict[str, list[int]]:
    """The division of earlier versions, on which runs rely.

    Of each class, in the order of digests, the first tenth is for the test and the next for validation. Where pictures come or go the borders hardly move: what was trained on does not become a test picture.
    """
    parts: dict[str, list[int]] = {"train": [], "validation": [], "test": []}
    of_class: defaultdict[int, list[int]] = defaultdict(list)
    for n, label in enumerate(listing.labels):
        of_class[label].append(n)
    for label, name in enumerate(listing.class_names):
        copies: defaultdict[bytes, list[int]] = defaultdict(list)
        for n in of_class[label]:
            copies[digests[n]].append(n)
        unreadable = copies.pop(NO_CONTENTS, [])
        pictures = [copies[key] for key in sorted(copies)]
        if len(pictures) < 3:
            raise DataError(f"class {name} has {len(pictures)} different images: dividing them needs at least 3")
        count = max(1, round(SHARES["test"] * len(pictures)))
        for split, chosen in (
            ("test", pictures[:count]),
            ("validation", pictures[count : 2 * count]),
            ("train", [*pictures[2 * count :], unreadable]),
        ):
            parts[split] += sorted(n for same in chosen for n in same)
    return _with_copies_together(parts, digests)


def _with_copies_together(parts: Mapping[str, Sequence[int]], digests: Sequence[bytes]) -> dict[str, list[int]]:
    """The same division, but that a picture which lies in several classes is held out in all of them if it is in one."""
    place: dict[bytes, str] = {}
    for split in ("test", "validation", "train"):
        for n in parts[split]:
            place.setdefault(digests[n], split)
    place[NO_CONTENTS] = "train"
    together: dict[str, list[int]] = {split: [] for split in parts}
    for numbers in parts.values():
        for n in numbers:
            together[place[digests[n]]].append(n)
    return together
