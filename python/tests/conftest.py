"""Groups of tests that need more than NumPy: counted where they cannot run, as the workspace's tests are."""

from __future__ import annotations

import importlib.util
import os
import tempfile

import pytest

# The machine's own cache of kernel times is not for tests.
os.environ.setdefault("PLIMSOLL_CACHE", tempfile.mkdtemp(prefix="plimsoll-python-tests-"))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

HAS_KERAS = importlib.util.find_spec("keras") is not None


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "keras: needs Keras and one of its backends")


def _log(state: str, test: str, why: str = "") -> None:
    path = os.environ.get("PLIMSOLL_TEST_LOG")
    if path:
        with open(path, "a", encoding="utf-8") as log:
            log.write(f"keras\t{state}\t{test}\t{why}\n")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("keras") is None:
        return
    if HAS_KERAS:
        _log("ran", item.name)
        return
    why = "Python cannot import keras"
    _log("absent", item.name, why)
    if "keras" in os.environ.get("PLIMSOLL_REQUIRE", "").split(","):
        pytest.fail(f"group keras is required, and {why}")
    pytest.skip(why)
