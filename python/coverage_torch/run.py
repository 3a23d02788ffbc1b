"""How many models of torchvision, timm and transformers train here as they do in PyTorch.

    python python/coverage_torch/run.py [--only REGEX] [--workers N] [--seconds 300] [--kept results.jsonl] [--write docs/torch-coverage.md]

Every model has random weights and tiny inputs, dropout off, and is in training mode. It is exported, handed to the engine, and compared with eager
PyTorch. One process a model, ended after so many seconds; rows are kept as they come, so that a run that was ended goes on where it was. The package
must be importable (``PYTHONPATH``). Nothing is left out of the table that was tried.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import re
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
FORWARD, GRADIENTS, IN_F64, STEPS = 1e-4, 1e-3, 1e-8, 1e-3


def verdict(row: dict[str, Any]) -> dict[str, bool]:
    """What of a row is equal. A net that makes much of rounding makes as much of PyTorch's own: in f32 three times that passes, if it is equal in f64."""
    is_forward = row.get("forward", 1.0) <= FORWARD
    f64 = row.get("f64")
    is_exact = isinstance(f64, float) and f64 <= (GRADIENTS / 10 if row.get("f32_inside") else IN_F64)
    noise = row.get("noise", 0.0) if is_exact or f64 is None else 0.0
    steps_noise = row.get("steps_noise", 0.0) if is_exact or f64 is None else 0.0
    is_gradients = row.get("gradients", 1.0) <= max(GRADIENTS, 3 * noise) and (f64 is None or is_exact)
    is_steps = row.get("steps", 1.0) <= max(STEPS, 3 * steps_noise)
    return {"loads": row.get("loads") is True, "forward": is_forward, "gradients": is_gradients, "steps": is_steps, "all": is_forward and is_gradients and is_steps}


def one(name: str) -> None:
    """Prints the row of one model, as the last line."""
    warnings.filterwarnings("ignore")
    import torch

    from case import compared
    from models import LIBRARIES

    torch.set_num_threads(1)
    library = name.split("/")[0]
    make = dict(LIBRARIES[library]())[name]
    try:
        row = compared(make)
    except Exception as error:
        row = {"failed": f"{type(error).__name__}: {error}".split("\n")[0][:200]}
    print(json.dumps({"name": name, **row}), flush=True)


def asked(name: str, seconds: int) -> dict[str, Any]:
    """The row of one model, from a process of its own."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    try:
        ran = subprocess.run([sys.executable, __file__, "--one", name], capture_output=True, text=True, timeout=seconds, env=environment)
    except subprocess.TimeoutExpired:
        return {"name": name, "failed": f"not done after {seconds} s"}
    lines = [line for line in ran.stdout.splitlines() if line.startswith("{")]
    if not lines:
        return {"name": name, "failed": f"ended with {ran.returncode}: {ran.stderr.strip()[-160:]}"}
    return json.loads(lines[-1])


def names() -> list[str]:
    from models import LIBRARIES

    found = []
    for library, listed in LIBRARIES.items():
        try:
            found += [name for name, _ in listed()]
        except ImportError as error:
            print(f"{library} is not there: {error}", file=sys.stderr)
    return found


def table(rows: list[dict[str, Any]]) -> str:
    """The page."""
    import torch

    judged = [(row, verdict(row)) for row in sorted(rows, key=lambda row: row["name"])]
    count = lambda key: sum(found[key] for _, found in judged)
    n = max(1, len(judged))
    share = lambda key: f"{count(key)} ({100 * count(key) / n:.0f} %)"
    lines = [
        "# PyTorch models, held against PyTorch",
        "",
        f"Made by `python/coverage_torch/run.py` with PyTorch {torch.__version__.split('+')[0]}: random weights, tiny inputs, training mode, dropout off, on a CPU. *forward*: the",
        f"loss against eager PyTorch in f32 (equal to {FORWARD:g}). *gradients*: of every parameter against eager PyTorch in f64, the largest difference of an element as a share of",
        f"the largest element of that gradient, computed here in f32 (equal to {GRADIENTS:g}; in brackets how far PyTorch's own f32 is from it, of which three times passes where",
        f"f64 is equal) and in f64 (equal to {IN_F64:g}; where a model computes a part in f32 whatever it is given, to {GRADIENTS / 10:g}; models of more than 40 million elements are not tried in f64). *steps*: the losses of five steps of plain descent ({STEPS:g}). Where",
        "an activation stands at the kink of a ReLU, rounding decides on which side, in PyTorch as here: in f32 up to three draws of weights and inputs are tried, and the nearest counts.",
        "",
        f"{len(judged)} models: {share('loads')} load, {share('forward')} equal in the forward pass, {share('gradients')} in gradients, {share('steps')} in steps, **{share('all')} in all**.",
        "",
        "| model | forward | gradients f32 | f64 | steps | |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row, found in judged:
        number = lambda key: f"{row[key]:.0e}" if isinstance(row.get(key), float) else ""
        why = row.get("failed") or row.get("exports") or (row["loads"] if isinstance(row.get("loads"), str) else "")
        if not why and not found["all"]:
            why = row["f64"] if isinstance(row.get("f64"), str) else f"apart at {row.get('where', '')}"
        bracket = f" ({number('noise')})" if number("noise") else ""
        # Where the libraries lie on a machine says nothing to others.
        why = re.sub(r"/\S*/(?=(torchvision|timm|transformers)/)", "", str(why)).replace("|", "\\|")
        cells = [number("forward"), number("gradients") + bracket, number("f64"), number("steps")]
        lines.append(f"| {row['name']} | {' | '.join(cells)} | {'equal' if found['all'] else why} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--one", metavar="NAME", help="print the row of one model as JSON")
    words.add_argument("--only", metavar="REGEX", help="models whose names have this in them")
    words.add_argument("--workers", type=int, default=1, help="processes at a time")
    words.add_argument("--seconds", type=int, default=300, help="the most for one model")
    words.add_argument("--kept", type=Path, default=Path("torch-coverage.jsonl"), help="where rows are kept; models in it are not run again")
    words.add_argument("--again", action="store_true", help="run models again that are kept and not equal")
    words.add_argument("--list", action="store_true", help="print the names and end")
    words.add_argument("--write", type=Path, metavar="PAGE", help="write the table of all rows that are kept")
    given = words.parse_args()
    if given.one:
        return one(given.one)
    wanted = [name for name in names() if not given.only or re.search(given.only, name)]
    if given.list:
        return print("\n".join(wanted))
    rows: dict[str, dict[str, Any]] = {}
    if given.kept.exists():
        for line in given.kept.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            rows[row["name"]] = row
    todo = [name for name in wanted if name not in rows or (given.again and not verdict(rows[name])["all"])]
    lock = threading.Lock()

    def run(name: str) -> None:
        row = asked(name, given.seconds)
        with lock:
            rows[name] = row
            with given.kept.open("a", encoding="utf-8") as kept:
                kept.write(json.dumps(row) + "\n")
            words = "equal" if verdict(row)["all"] else json.dumps({key: value for key, value in row.items() if key not in ("name", "elements", "seconds")})
            print(f"{len(rows)}/{len(rows) + len([n for n in todo if n not in rows])} {name}: {words}", flush=True)

    with concurrent.futures.ThreadPoolExecutor(given.workers) as pool:
        for done in [pool.submit(run, name) for name in todo]:
            done.result()
    if given.write:
        given.write.write_text(table(list(rows.values())), encoding="utf-8")
    found = [verdict(row) for name, row in rows.items() if name in set(wanted)]
    print(f"{len(found)} models, {sum(f['forward'] for f in found)} equal in the forward pass, {sum(f['all'] for f in found)} in all")


if __name__ == "__main__":
    main()
