"""The notebook of the guide runs from its first cell to its last: by plain Python, and by a kernel where there is one."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.keras
NOTEBOOK = Path(__file__).parents[2] / "docs/notebooks/first_run.ipynb"


def cells() -> list[str]:
    read = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert read["nbformat"] == 4
    code = [cell for cell in read["cells"] if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in code), "it is kept without outputs"
    return ["".join(cell["source"]) for cell in code]


def run(cell: str, names: dict[str, Any]) -> Any:
    """Runs a cell and gives the value of its last line, as a notebook shows it."""
    tree = ast.parse(cell)
    last = tree.body[-1]
    if not isinstance(last, ast.Expr):
        exec(compile(tree, "cell", "exec"), names)
        return None
    exec(compile(ast.Module(tree.body[:-1], []), "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names)


def test_its_cells_run_in_order_and_plans_are_shown_as_pages(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}
    shown = [run(cell, names) for cell in cells()]
    pages = [value._repr_html_() for value in shown if hasattr(value, "_repr_html_")]
    assert len(pages) == 3 and all("<iframe" in page for page in pages)
    said = capsys.readouterr().out
    assert "ops run twice" in said and "Keras says" in said and 'memory="' in said
    assert names["tight"].planned <= names["plan"].planned and names["epochs"][-1]["accuracy"] > 0.5


@pytest.mark.notebook
def test_a_kernel_runs_it() -> None:
    import nbclient
    import nbformat

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    nbclient.NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    shown = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs if output.output_type == "execute_result"]
    assert sum("text/html" in output.data for output in shown) == 3
