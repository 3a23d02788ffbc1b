"""How many models of torchvision, timm and transformers, ones written by hand, and every class of torch.nn train here as they do in PyTorch.

    python python/coverage_torch/run.py [--only REGEX] [--workers N] [--together N] [--seconds 300] [--kept results.jsonl] [--write docs/torch-coverage.md]

Every model has random weights and tiny inputs, dropout off, and is in training mode. It is exported, handed to the engine, and compared with eager
PyTorch. A process a model (or for several small ones), ended after so many seconds; rows are kept as they come, so that a run that was ended goes on where it was. The package
must be importable (``PYTHONPATH``). Nothing is left out of the table that was tried.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import json
import os
import queue
import re
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from verdict import FORWARD, GRADIENTS, IN_F64, STEPS, STEPS_IN_F64, verdict  # noqa: E402


def each(names: list[str]) -> None:
    """Prints the rows of models, one a line."""
    warnings.filterwarnings("ignore")
    import torch

    from case import compared
    from models import LIBRARIES

    torch.set_num_threads(1)
    for name in names:
        make = dict(LIBRARIES[name.split("/")[0]]())[name]
        try:
            row = compared(make)
        except Exception as error:
            row = {"failed": f"{type(error).__name__}: {error}".split("\n")[0][:200]}
        print(json.dumps({"name": name, "torch": torch.__version__.split("+")[0], **row}), flush=True)


def asked(names: list[str], seconds: int, core: int | None = None) -> list[dict[str, Any]]:
    """The rows of models, from a process of their own, on one core where that can be said."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    bound = None if core is None else lambda: os.sched_setaffinity(0, {core})
    try:
        ran = subprocess.run([sys.executable, __file__, "--each", *names], capture_output=True, text=True, timeout=seconds * len(names), env=environment, preexec_fn=bound)
        said, why = ran.stdout, f"ended with {ran.returncode}: {ran.stderr.strip()[-160:]}"
    except subprocess.TimeoutExpired as late:
        said, why = (late.stdout or b"").decode(), f"not done after {seconds} s"
    rows = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    done = {row["name"] for row in rows}
    # Of several in one process those that come after one that ended it are left for another run.
    left = [name for name in names if name not in done][:1]
    return rows + [{"name": name, "failed": why} for name in left]


def names() -> list[str]:
    from models import LIBRARIES

    found = []
    for library, listed in LIBRARIES.items():
        try:
            found += [name for name, _ in listed()]
        except (ImportError, RuntimeError) as error:
            print(f"{library} is not there: {error}", file=sys.stderr)
    return found


def _untried() -> list[str]:
    from parts import missing

    return missing()


#: A row of a page as it stands: its line, and what of it is equal.
Line = tuple[str, dict[str, bool]]
PAGE_NUMBERS = ("forward", "gradients", "noise", "f64", "steps", "steps_f64")


def line(row: dict[str, Any]) -> Line:
    """The line of a row."""
    found = verdict(row)
    number = lambda key: f"{row[key]:.0e}" if isinstance(row.get(key), float) else ""
    why = row.get("failed") or row.get("exports") or (row["loads"] if isinstance(row.get("loads"), str) else "")
    if not why and not found["all"]:
        why = row["f64"] if isinstance(row.get("f64"), str) else f"apart at {row.get('where', '')}"
    bracket = lambda key: f" ({number(key)})" if number(key) else ""
    # Where the libraries lie on a machine says nothing to others.
    why = re.sub(r"/\S*/(?=(torchvision|timm|transformers|coverage_torch)/)", "", str(why)).replace("|", "\\|")
    # One that was cut at the end tells nothing more.
    why = re.sub(r" at /\S*$", "", why)
    cells = [number("forward"), number("gradients") + bracket("noise"), number("f64"), number("steps") + bracket("steps_f64")]
    return f"| {row['name']} | {' | '.join(cells)} | {'equal' if found['all'] else why} |", found


def standing(page: str) -> dict[str, Line]:
    """The rows that a page has, by name."""
    number = r"([-+.\dnaife]*)"
    form = re.compile(rf"\| (\S+/.+?) \| {number} \| {number}(?: \({number}\))? \| {number} \| {number}(?: \({number}\))? \| (.*) \|")
    lines = {}
    for text in page.splitlines():
        read = form.fullmatch(text)
        if read is None:
            continue
        row = {key: float(value) for key, value in zip(PAGE_NUMBERS, read.groups()[1:-1]) if value}
        found = verdict({**row, "loads": True if row else "not"})
        lines[read[1]] = (text, dict.fromkeys(found, True) if read.groups()[-1] == "equal" else {**found, "all": False})
    return lines


def table(rows: list[dict[str, Any]], listed: list[str], before: str = "") -> str:
    """The page; what stood on it before and was not tried again stays."""
    lines = {**standing(before), **{row["name"]: line(row) for row in rows}}
    told = re.search(r"with PyTorch ([\d. and]+):", before)
    versions = " and ".join(sorted({row["torch"] for row in rows if "torch" in row} | set(told[1].split(" and ") if told else ())))
    parts = {name for name in {*lines, *listed} if name.startswith("torch.nn/")}

    def summary(names: set[str], what: str) -> str:
        judged = [found for name, (_, found) in lines.items() if name in names]
        count = lambda key: sum(found[key] for found in judged)
        # Rounded down: 100 % is all.
        share = lambda key: f"{count(key)} ({100 * count(key) // max(1, len(judged))} %)"
        left = len((set(listed) & names) - set(lines))
        more = f" {left} further {what} of the script's list have no row yet." if left else ""
        return f"{len(judged)} {what}: {share('loads')} load, {share('forward')} equal in the forward pass, {share('gradients')} in gradients, {share('steps')} in steps, **{share('all')} in all**.{more}"

    def listing(names: set[str], what: str) -> list[str]:
        return [f"| {what} | forward | gradients f32 | f64 | steps | |", "| --- | --- | --- | --- | --- | --- |", *(lines[name][0] for name in sorted(names & set(lines)))]

    models = {*lines, *listed} - parts
    page = [
        "# PyTorch models, held against PyTorch",
        "",
        f"Made by `python/coverage_torch/run.py` with PyTorch {versions}: random weights, tiny inputs, training mode, dropout off, on a CPU. *forward*: the",
        f"loss against eager PyTorch in f32 (equal to {FORWARD:g}). *gradients*: of every parameter against eager PyTorch in f64, the largest difference of an element as a share of",
        f"the largest element of that gradient (or of a thousandth of the largest of all, in f64 of a ten-thousandth, where it is smaller), computed here in f32 (equal to {GRADIENTS:g}; in brackets how far PyTorch's own f32 is from it, of which three times passes where",
        f"f64 is equal) and in f64 (equal to {IN_F64:g}; where a model computes a part in f32 whatever it is given, to {GRADIENTS / 10:g}; models of more than 40 million elements are not tried in f64). *steps*: the losses of five steps of plain descent in f32 (equal to {STEPS:g}), and",
        f"in brackets in f64 ({STEPS_IN_F64:g}): one of the two must be, for deep nets make a millionth of a difference a tenth within five steps. Where",
        "an activation stands at the kink of a ReLU, rounding decides on which side, in PyTorch as here: PyTorch's own f32 is that of its plain run and, where that does not do, of the batch",
        "from its last sample to its first, of PyTorch without oneDNN, and of weights that are as far beside themselves as one rounding puts them, the farthest of them; and up to three draws of weights and inputs are tried, of which the nearest counts.",
        "",
        summary(models, "models"),
        "",
        *listing(models, "model"),
    ]
    if parts & set(lines):
        page += [
            "",
            "## Every class of torch.nn",
            "",
            "Each class that computes, by itself and in the ways in which it can be told, between a parameter that is added to its inputs and a loss over all that it gives; and functions that are no class.",
            "",
            summary(parts, "cases"),
            "",
            *listing(parts, "part"),
        ]
    return "\n".join(page) + "\n"


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--each", nargs="+", metavar="NAME", help="print the rows of these models as JSON")
    words.add_argument("--together", type=int, default=1, help="models in one process: small ones take less time than a process needs to begin")
    words.add_argument("--only", metavar="REGEX", help="models whose names have this in them")
    words.add_argument("--workers", type=int, default=1, help="processes at a time")
    words.add_argument("--seconds", type=int, default=300, help="the most for one model")
    words.add_argument("--kept", type=Path, default=Path("torch-coverage.jsonl"), help="where rows are kept; models in it are not run again")
    words.add_argument("--again", action="store_true", help="run models again that are kept and not equal")
    words.add_argument("--list", action="store_true", help="print the names and end")
    words.add_argument("--write", type=Path, metavar="PAGE", help="write the table of all rows that are kept; rows that the page has of others stay")
    given = words.parse_args()
    if given.each:
        return each(given.each)
    wanted = [name for name in names() if not given.only or re.search(given.only, name)]
    if given.list:
        return print("\n".join(wanted))
    if untried := _untried():
        sys.exit(f"no case of parts.py is of these classes of torch.nn: {', '.join(untried)}; add one, or name them in ASIDE with the reason")
    rows: dict[str, dict[str, Any]] = {}
    if given.kept.exists():
        for line in given.kept.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            rows[row["name"]] = row
    todo = [name for name in wanted if name not in rows or (given.again and not verdict(rows[name])["all"])]
    lock = threading.Lock()
    cores: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    there = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    for worker in range(given.workers):
        cores.put(there[worker] if worker < len(there) and given.workers > 1 else None)

    def run(names: list[str]) -> None:
        core = cores.get()
        found = asked(names, given.seconds, core)
        cores.put(core)
        with lock:
            for row in found:
                rows[row["name"]] = row
                with given.kept.open("a", encoding="utf-8") as kept:
                    kept.write(json.dumps(row) + "\n")
                words = "equal" if verdict(row)["all"] else json.dumps({key: value for key, value in row.items() if key not in ("name", "elements", "seconds")})
                print(f"{len(rows)} {row['name']}: {words}", flush=True)

    with concurrent.futures.ThreadPoolExecutor(given.workers) as pool:
        for done in [pool.submit(run, todo[at : at + given.together]) for at in range(0, len(todo), given.together)]:
            done.result()
    if given.write:
        before = given.write.read_text(encoding="utf-8") if given.write.exists() else ""
        given.write.write_text(table(list(rows.values()), names(), before), encoding="utf-8")
    found = [verdict(row) for name, row in rows.items() if name in set(wanted)]
    print(f"{len(found)} models, {sum(f['forward'] for f in found)} equal in the forward pass, {sum(f['all'] for f in found)} in all")


if __name__ == "__main__":
    main()
