"""MATLAB 5 files: what SciPy writes is read as it was, in either order of bytes, and damage is an error and no crash."""

from __future__ import annotations

import io
import zlib
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from shortcaps.data.affnist import _parse_matlab
from shortcaps.data.matlab import read_struct
from shortcaps.errors import DataError

PLENTY = 2**20


def written(record: dict[str, Any], *, packed: bool = False) -> bytes:
    stream = io.BytesIO()
    savemat(stream, {"before": np.eye(3), "record": record, "after": "text"}, do_compression=packed)
    return stream.getvalue()


def element(kind: int, content: bytes, order: str = "<") -> bytes:
    padding = b"" if kind == 15 else bytes(-len(content) % 8)
    return np.array([kind, len(content)], f"{order}u4").tobytes() + content + padding


def by_hand(order: str, stored: int, numbers: bytes, kind: int = 6, shape: tuple[int, ...] = (2, 3)) -> bytes:
    """A file with a struct `s` whose field `f` is an array of this class, with its numbers stored as these."""

    def start(kind: int, shape: tuple[int, ...], name: bytes) -> bytes:
        flags = element(6, np.array([kind, 0], f"{order}u4").tobytes(), order)
        return flags + element(5, np.array(shape, f"{order}i4").tobytes(), order) + element(1, name, order)

    field = element(14, start(kind, shape, b"") + element(stored, numbers, order), order)
    names = element(5, np.array([2], f"{order}i4").tobytes(), order) + element(1, b"f\0", order)
    header = bytes(124) + (b"\0\1IM" if order == "<" else b"\1\0MI")
    return header + element(14, start(2, (1, 1), b"s") + names + field, order)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("kind", ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8"])
def test_numbers_of_every_kind_are_read_as_scipy_wrote_them(kind: str, packed: bool) -> None:
    array = np.random.default_rng(0).integers(0, 100, (5, 7)).astype(kind)
    record = {"text": "no numbers", "cells": np.array([1, "two"], object), "mine": array, "small": array[:1, :1]}
    found = read_struct(written(record, packed=packed), "record", ("mine", "small", "missing"), PLENTY)
    assert set(found) == {"mine", "small"}
    for name in found:
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], record[name])


@pytest.mark.parametrize("order", ["<", ">"])
def test_doubles_that_matlab_stores_as_bytes_are_doubles_in_either_order(order: str) -> None:
    found = read_struct(by_hand(order, 2, bytes(range(6))), "s", ("f",), PLENTY)["f"]
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, [[0, 2, 4], [1, 3, 5]])


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no header"),
        (bytes(200), "no header"),
        (by_hand("<", 2, bytes(6))[:128], "no variable s"),
        (by_hand("<", 2, bytes(6))[:-9], "cut off"),
        (by_hand("<", 2, bytes(5)), r"5 numbers and the shape \(2, 3\)"),
        (by_hand("<", 2, bytes(6), shape=(6,)), r"the shape \(6,\)"),
        (by_hand("<", 2, b"", shape=(-1, 0)), r"the shape \(-1, 0\)"),
        (by_hand("<", 2, b"", shape=(2**30, 2**30, 2**30)), "0 numbers and the shape"),
        (by_hand("<", 9, bytes(48), kind=9), "cannot be numbers of kind 9"),
        (by_hand("<", 9, bytes(47)), "cannot be numbers of kind 9"),
        (by_hand("<", 8, bytes(48)), "cannot be numbers of kind 8"),
        (by_hand("<", 2, bytes(6), kind=4), "holds no real numbers"),
    ],
)
def test_what_is_wrong_is_said(data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_struct(data, "s", ("f",), PLENTY)


def test_a_kind_of_numbers_that_does_not_exist_is_no_crash() -> None:
    """On this file SciPy 1.17 looks for its kind far outside of a table."""
    stream = io.BytesIO()
    savemat(stream, {"affNISTdata": {"image": np.zeros((4, 1), np.uint8), "label_int": np.zeros((1, 1), np.uint8)}})
    data = bytearray(stream.getvalue())
    data[-8:-4] = (0xFFFF).to_bytes(4, "little")
    with pytest.raises(DataError, match="file is not an affNIST file, or is damaged"):
        _parse_matlab(bytes(data), "file")


def test_a_variable_unpacks_to_what_is_expected_and_no_more() -> None:
    zeros = {"f": np.zeros((1000, 1000), np.uint8)}
    packed = written(zeros, packed=True)
    assert len(packed) < 10_000
    with pytest.raises(ValueError, match="unpacks to more"):
        read_struct(packed, "record", ("f",), 100_000)
    whole = by_hand("<", 2, bytes(6))
    cut = whole[:128] + element(15, zlib.compress(whole[128:])[:-10])
    with pytest.raises(ValueError, match="cut off"):
        read_struct(cut, "s", ("f",), PLENTY)


def test_labels_that_are_no_digits_are_refused() -> None:
    for labels in ([[0, 10]], [[0.5, 1.0]], [[np.nan, 1.0]]):
        stream = io.BytesIO()
        savemat(stream, {"affNISTdata": {"image": np.zeros((1600, 2), np.uint8), "label_int": np.array(labels)}})
        with pytest.raises(DataError, match="expected 0 to 9"):
            _parse_matlab(stream.getvalue(), "file")
