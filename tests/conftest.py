"""Settings for the whole suite."""

from __future__ import annotations

import ctypes
import logging

import pytest
import torch
from hypothesis import settings

from shortcaps.kernels.library import native

settings.register_profile("suite", deadline=None, max_examples=12, derandomize=True)
settings.load_profile("suite")


@pytest.fixture(autouse=True, scope="session")
def _single_threaded_from_the_start() -> None:
    """Fixtures of a whole module run before those of its first test, and what they train is compared bit by bit."""
    torch.set_num_threads(1)


@pytest.fixture(autouse=True, scope="session")
def _every_thread_gets_work() -> None:
    """The native code divides a problem among threads only if it is large; those of the tests are small."""
    if (library := native()) is not None:
        library.shortcaps_set_work_per_thread(ctypes.c_int64(1))


@pytest.fixture(autouse=True)
def _seeded_and_single_threaded() -> None:
    """Two workers share two cores, and a test must not depend on the one before it."""
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _cache_of_its_own(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads or writes the user's cache."""
    monkeypatch.setenv("SHORTCAPS_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What the package logs from INFO on, as the command line shows it."""
    caplog.set_level(logging.INFO, logger="shortcaps")
    return caplog
