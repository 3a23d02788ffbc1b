"""Groups of tests that need more than NumPy: counted where they cannot run, as the workspace's tests are."""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import signal
import sys
import tempfile

import pytest

# The machine's own cache of kernel times is not for tests.
os.environ.setdefault("PLIMSOLL_CACHE", tempfile.mkdtemp(prefix="plimsoll-python-tests-"))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# A shell lets programs in the background ignore Ctrl-C; the tests of it want it heard.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if not any("on_a_card" in word for word in sys.argv):
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")


def _no_card() -> str | None:
    import plimsoll

    try:
        plimsoll.Tensor([1.0], device="cuda")
    except plimsoll.PlimsollError as error:
        return str(error).split("\n")[0]
    return None


#: Modules that are looked away from, so that a machine that has them shows what one without them would see: PLIMSOLL_WITHOUT=keras,torch.
WITHOUT = [name for name in os.environ.get("PLIMSOLL_WITHOUT", "").split(",") if name]


class _LookedAwayFrom(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in WITHOUT:
            raise ModuleNotFoundError(f"PLIMSOLL_WITHOUT names {name}: a test that needs it is in no group that says so", name=name)
        return None


if WITHOUT:
    sys.meta_path.insert(0, _LookedAwayFrom())


def _missing(module: str) -> str | None:
    if module in WITHOUT:
        return f"PLIMSOLL_WITHOUT names {module}"
    return None if importlib.util.find_spec(module) is not None else f"Python cannot import {module}"


#: What each group needs, and why it is not there.
GROUPS = {
    "keras": ("needs Keras and one of its backends", lambda: _missing("keras")),
    "tensorflow": ("needs TensorFlow", lambda: _missing("tensorflow")),
    "torch": ("needs PyTorch", lambda: _missing("torch")),
    "card": ("needs a card", _no_card),
    "notebook": ("needs nbclient and a kernel of Python", lambda: _missing("nbclient") or _missing("ipykernel")),
}
_WHY: dict[str, str | None] = {}


def pytest_configure(config: pytest.Config) -> None:
    for name, (needs, _) in GROUPS.items():
        config.addinivalue_line("markers", f"{name}: {needs}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.name.startswith("test_torch_"):
            item.add_marker("torch")


def _log(group: str, state: str, test: str, why: str = "") -> None:
    path = os.environ.get("PLIMSOLL_TEST_LOG")
    if path:
        with open(path, "a", encoding="utf-8") as log:
            log.write(f"{group}\t{state}\t{test}\t{why}\n")


def pytest_runtest_setup(item: pytest.Item) -> None:
    for group, (_, absent) in GROUPS.items():
        if item.get_closest_marker(group) is None:
            continue
        if group not in _WHY:
            _WHY[group] = absent()
        why = _WHY[group]
        if why is None:
            _log(group, "ran", item.name)
            continue
        _log(group, "absent", item.name, why)
        if group in os.environ.get("PLIMSOLL_REQUIRE", "").split(","):
            pytest.fail(f"group {group} is required, and {why}")
        pytest.skip(why)
