"""The stub of the compiled module against the module: names, parameters, their order, kinds and defaults."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

import plimsoll
from plimsoll import _native

STUB = ast.parse((Path(plimsoll.__file__).parent / "_native.pyi").read_text(encoding="utf-8"))
# What Python gives every class, and operators, whose signatures are Python's own.
GIVEN = {"__new__", "__doc__", "__module__", "__init__", "__repr__", "__array_ufunc__"}
NAMED = {"__array__", "__dlpack__", "__dlpack_device__", "__deepcopy__", "__reduce__", "__enter__", "__exit__"}


def described(node: ast.FunctionDef) -> list[tuple[str, str, bool]]:
    """Name, kind and whether there is a default, of every parameter of a function in the stub."""
    of = node.args
    plain = [*of.posonlyargs, *of.args]
    bare = len(plain) - len(of.defaults)
    found = [(arg.arg, "plain", i >= bare) for i, arg in enumerate(plain)]
    if of.vararg:
        found.append((of.vararg.arg, "rest", False))
    found += [(arg.arg, "named", default is not None) for arg, default in zip(of.kwonlyargs, of.kw_defaults)]
    return found


def actual(function: Any) -> list[tuple[str, str, bool]]:
    """The same of a function of the module."""
    kinds = {
        inspect.Parameter.POSITIONAL_ONLY: "plain", inspect.Parameter.POSITIONAL_OR_KEYWORD: "plain",
        inspect.Parameter.VAR_POSITIONAL: "rest", inspect.Parameter.KEYWORD_ONLY: "named",
    }
    parameters = inspect.signature(function).parameters.values()
    return [(own.name, kinds[own.kind], own.default is not inspect.Parameter.empty) for own in parameters]


def functions(body: list[ast.stmt]) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in body if isinstance(node, ast.FunctionDef)}


def test_the_stub_lists_every_function_with_its_parameters() -> None:
    listed = functions(STUB.body)
    there = {name for name, value in vars(_native).items() if callable(value) and not inspect.isclass(value) and not name.startswith("_")}
    assert there == set(listed)
    for name, node in listed.items():
        assert described(node) == actual(getattr(_native, name)), name


def test_the_stub_lists_every_class_with_its_methods() -> None:
    classes = {node.name: node for node in STUB.body if isinstance(node, ast.ClassDef)}
    assert set(classes) == {name for name, value in vars(_native).items() if inspect.isclass(value)}
    for name, node in classes.items():
        kind, listed = getattr(_native, name), functions(node.body)
        public = lambda names: {own for own in names if not own.startswith("_") or own in NAMED}
        assert public(vars(kind)) == public(listed), name
        extra = {own for own in vars(kind) if own.startswith("__")} - set(listed) - GIVEN
        assert not {own for own in extra if own not in dir(object)} - {"__rpow__", "__rmatmul__"}, (name, extra)
        for method, of in listed.items():
            is_property = any(isinstance(mark, ast.Name) and mark.id == "property" for mark in of.decorator_list)
            is_overloaded = any(isinstance(mark, ast.Name) and mark.id == "overload" for mark in of.decorator_list)
            if is_property or is_overloaded or method.startswith("__") and method not in NAMED - {"__exit__"}:
                continue
            assert described(of) == actual(vars(kind)[method]), f"{name}.{method}"
        if "__init__" in listed:
            assert described(listed["__init__"])[1:] == actual(kind), name


def test_every_public_name_is_documented() -> None:
    for name in plimsoll.__all__:
        if name != "__version__":
            assert (getattr(plimsoll, name).__doc__ or "").strip(), name
