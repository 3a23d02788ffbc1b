"""The package without Keras: import, errors, the command, explanations, arrays."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import plimsoll
from plimsoll import _native


def test_importing_the_package_loads_no_numpy():
    code = "import sys, plimsoll; print(plimsoll.__version__, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [plimsoll.__version__, "False"]


def test_everything_that_is_named_is_there():
    for name in plimsoll.__all__:
        assert getattr(plimsoll, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'train'"):
        plimsoll.train


def test_the_command_comes_with_the_package():
    run = lambda *words: subprocess.run([sys.executable, "-m", "plimsoll._command", *words], capture_output=True, text=True)
    version = run("--version")
    assert version.returncode == 0 and version.stdout.strip() == f"plimsoll {plimsoll.__version__}"
    wrong = run("no-such-command")
    assert wrong.returncode == 2 and "no-such-command" in wrong.stderr


def test_the_command_trains_inside_a_limit(tmp_path):
    words = ["train", "--take", "64", "--epochs", "1", "--memory", "200MiB", "--quiet", "--out", str(tmp_path / "run")]
    done = subprocess.run([sys.executable, "-m", "plimsoll._command", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "model.safetensors").is_file()


def test_errors_carry_their_figures():
    error = plimsoll.MemoryLimitError("too little", least=10, limit=5, holders=[("a", 7)], ways_out=[("smaller", 4)])
    assert isinstance(error, plimsoll.PlimsollError) and str(error) == "too little"
    assert (error.least, error.limit, error.holders, error.ways_out) == (10, 5, [("a", 7)], [("smaller", 4)])
    error = plimsoll.OutOfMemoryError("no room", requested=3, in_use=2, limit=4)
    assert (error.requested, error.in_use, error.limit, error.holders) == (3, 2, 4, [])


def test_a_refusal_names_arguments_and_no_flags():
    text = "too little\nways out:\n  --memory 85MiB       least  85.0 MiB  more\n  --batch 2            enough 64.4 MiB  2 samples, with --memory raised to that"
    assert str(plimsoll.MemoryLimitError(text)).split("\n")[2:] == [
        '  memory="85MiB"  least  85.0 MiB  more',
        "  batch_size=2    enough 64.4 MiB  2 samples, with memory raised to that",
    ]


def test_a_report_of_another_system_is_explained(tmp_path):
    text = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 15.89 GiB of which "
        "1.10 GiB is free. Including non-PyTorch memory, this process has 14.79 GiB memory in use. Of the allocated memory 13.00 GiB "
        "is allocated by PyTorch, and 1.20 GiB is reserved by PyTorch but unallocated."
    )
    told = plimsoll.explain(text)
    assert "2.00 GiB" in str(told) or "2 GiB" in str(told)
    assert told._repr_html_().startswith("<iframe") and told.html().lower().startswith("<!doctype html>")
    file = tmp_path / "log.txt"
    file.write_text(text)
    assert plimsoll.explain(file).figures == plimsoll.explain(file.read_bytes()).figures | {}
    with pytest.raises(plimsoll.PlimsollError):
        plimsoll.explain("nothing of the kind")


def test_arrays_are_taken_as_they_lie_or_refused_by_name():
    x = np.zeros((4, 3), np.float32)
    assert isinstance(_native.arrays([("x", "numbers", x)]), _native.Data)
    with pytest.raises(TypeError, match="not list"):
        _native.arrays([("x", "numbers", [1, 2])])
    with pytest.raises(ValueError, match="C order"):
        _native.arrays([("x", "numbers", x.T)])
    with pytest.raises(ValueError, match="byte order"):
        _native.arrays([("x", "numbers", x.astype(">f4"))])
    with pytest.raises(TypeError, match="complex64"):
        _native.arrays([("x", "numbers", x.astype(np.complex64))])
    with pytest.raises(TypeError, match="not Sub"):

        class Sub(np.ndarray):
            pass

        _native.arrays([("x", "numbers", x.view(Sub))])
    with pytest.raises(plimsoll.PlimsollError, match="'x' has 4 rows and 'y' has 3"):
        _native.arrays([("x", "numbers", x), ("y", "label", np.zeros(3))])


def test_an_array_is_held_for_as_long_as_its_data():
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    before = sys.getrefcount(x)
    data = _native.arrays([("x", "numbers", x)])
    assert sys.getrefcount(x) == before + 1
    del data
    assert sys.getrefcount(x) == before


def test_a_configuration_that_is_none_is_an_error_and_no_abort():
    class Nothing:
        pass

    with pytest.raises(plimsoll.PlimsollError, match="m"):
        _native.LiveModel("m", "{}", "3.0.0", [], Nothing())
    with pytest.raises(plimsoll.PlimsollError):
        _native.LiveModel("m", "not json", "3.0.0", [], Nothing())


def test_another_interpreter_of_the_process_is_right_or_refused_and_the_first_goes_on():
    code = """
        import numpy, plimsoll
        try:
            import _xxsubinterpreters as interpreters
        except ImportError:
            import _interpreters as interpreters
        failed = None
        try:
            failed = interpreters.run_string(interpreters.create(), "import plimsoll; assert (plimsoll.Tensor([1.0, 2.0]) * 2).numpy().tolist() == [2.0, 4.0]")
        except RuntimeError as error:
            failed = error
        # NumPy says of itself that it is in one interpreter at a time.
        assert failed is None or "ImportError" in str(failed), failed
        assert (plimsoll.Tensor([1.0, 2.0]) * 2).numpy().tolist() == [2.0, 4.0]
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True, timeout=120)
