"""Writes the coverage table: every public class of Keras, tried in one or several configurations, as Markdown.

``python python/coverage [--applications] [--only TEXT] [--kept FILE] [--write FILE]`` with Plimsoll and Keras importable. Without ``--applications``, a table
that is written over keeps its rows of them, and says so. Each case runs in a
worker of its own kind: where one crashes or hangs, that is its result, and another worker goes on. ``--kept`` names a file where each result goes as
it is found; what is in it is not tried again, so that a run that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Iterator

sys.path.insert(0, str(Path(__file__).parent))
# Eager, so that a small case takes no compilation; and the one backend that has channels_first on a CPU.
os.environ.setdefault("KERAS_BACKEND", "torch")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("PLIMSOLL_CACHE", tempfile.mkdtemp(prefix="plimsoll-coverage-"))

GROUPS = ("layers", "losses", "metrics", "optimizers", "optimizers.schedules", "activations")


def public(group: str) -> list[str]:
    """The public classes of a part of Keras, each under one name; of the activations the functions."""
    import keras

    module: Any = keras
    for part in group.split("."):
        module = getattr(module, part)
    wanted = inspect.isfunction if group in ("activations", "applications") else inspect.isclass
    aside = {"get", "serialize", "deserialize"}
    named = [(name, getattr(module, name)) for name in dir(module) if not name.startswith("_") and name not in aside]
    by_class: dict[int, str] = {}
    for name, value in named:
        if wanted(value) and (id(value) not in by_class or value.__name__ == name):
            by_class[id(value)] = name
    return sorted(by_class.values())


def all_cases(applications: bool) -> list[Any]:
    import applications as of_applications
    import functions
    import images
    import layers
    import operations
    import optimizers
    import training

    found = [*layers.CASES, *images.CASES, *operations.CASES, *training.CASES, *optimizers.CASES, *functions.CASES]
    return found + (of_applications.CASES if applications else [])


def work(applications: bool) -> None:
    """A worker: numbers of cases come in by lines, results go out by lines."""
    from case import attempt

    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    cases = all_cases(applications)
    out.write("ready\n")
    for line in sys.stdin:
        out.write(json.dumps(attempt(cases[int(line)])) + "\n")


class Worker:
    """A process that tries cases, and is started again when it dies."""

    def __init__(self, applications: bool, backend: str) -> None:
        self.environment = {**os.environ, "KERAS_BACKEND": backend}
        self.words = [sys.executable, str(Path(__file__).parent), "--work"] + (["--applications"] if applications else [])
        self.process: subprocess.Popen[str] | None = None

    def attempt(self, number: int, longest: int) -> tuple[str, str]:
        if self.process is None:
            self.process = subprocess.Popen(
                self.words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                env=self.environment,
            )
            assert self.process.stdout is not None
            if self.process.stdout.readline() != "ready\n":
                raise SystemExit(f"the worker did not start: {' '.join(self.words)}")
        process = self.process
        assert process.stdin is not None and process.stdout is not None
        timer = threading.Timer(longest, process.kill)
        timer.start()
        try:
            process.stdin.write(f"{number}\n")
            process.stdin.flush()
            line = process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            self.process = None
            return "ERROR", f"the process ended with {process.wait()}"
        result, why = json.loads(line)
        return result, why


def full(case: Any) -> str:
    return f"{case.group}.{case.name} {case.label}"


def cell(text: str) -> str:
    text = text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
    return text if len(text) <= 220 else text[:217] + "…"


def summed(results: list[tuple[str, str, str]]) -> str:
    """The result of a class: the worst of its cases."""
    kinds = {result for _, result, _ in results}
    if len(kinds) > 1:
        # What Keras does not run says nothing of the others.
        kinds.discard("not applicable")
    for kind in ("WRONG", "ERROR", "not tried"):
        if kind in kinds:
            return kind
    if kinds == {"equal"}:
        return "equal"
    return "partly" if "equal" in kinds else next(iter(kinds))


def kept_part(path: Path, group: str) -> tuple[str, list[str]] | None:
    """What a table that was written before says of a group: its row, and its section."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    row = next((line for line in lines if line.startswith(f"| {group} |")), None)
    if row is None or f"## {group}" not in lines:
        return None
    at = lines.index(f"## {group}")
    end = next((i for i in range(at + 1, len(lines)) if lines[i].startswith("## ")), len(lines))
    return row, lines[at:end]


def table(
    by_class: dict[tuple[str, str], list[tuple[str, str, str]]], version: str, kept: tuple[str, list[str]] | None = None
) -> Iterator[str]:
    yield "# Keras, class by class"
    yield ""
    yield "Made by `python python/coverage --write docs/keras-coverage.md`; do not edit. Each case is a small model, through"
    yield "`plimsoll.predict` against `model.predict` (1e-5), and five steps of `plimsoll.fit` against `model.fit` (1e-4: losses, metrics,"
    yield f"weights, the optimizer's state), from the same weights on the same data, with Keras {version}."
    yield ""
    yield "*Refused* is what the engine's own errors refuse by name; any other exception, and a process that ended, is an *error*."
    yield ""
    yield "| Part | Classes | Equal | Partly (some configurations refused) | Refused | Wrong | Errors | Not run | Not applicable | Equal of the applicable | Cases equal |"
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    groups = sorted({group for group, _ in by_class}, key=lambda g: (list(GROUPS) + [g]).index(g))
    for group in groups:
        own = [results for (g, _), results in by_class.items() if g == group]
        count = Counter(summed(results) for results in own)
        cases = [result for results in own for _, result, _ in results if result != "not applicable"]
        applicable = len(own) - count["not applicable"]
        share = f"{100 * count['equal'] / applicable:.0f} %" if applicable else "-"
        yield (
            f"| {group} | {len(own)} | {count['equal']} | {count['partly']} | {count['refused']} | {count['WRONG']} | {count['ERROR']} | "
            f"{count['not tried']} | "
            f"{count['not applicable']} | {share} | {cases.count('equal')} of {len(cases)} |"
        )
    if kept:
        yield kept[0]
        yield from ("", "Applications take hours and were not tried again: their rows are those of the table before, which this script made with `--applications`.")
    for group in groups:
        yield from ("", f"## {group}", "", "| Name | Result | Cases |", "|---|---|---|")
        for (g, name), results in by_class.items():
            if g != group:
                continue
            equal = [label for label, result, why in results if result == "equal"]
            parts = [f"equal: {', '.join(equal)}"] if equal and any(equal) else []
            parts += sorted({f"{why}" for _, result, why in results if result == "equal" and why})
            parts += [f"{label}: {result}, {why}".strip(": ") for label, result, why in results if result != "equal"]
            yield f"| {name} | {summed(results)} | {'<br>'.join(cell(part) for part in parts)} |"
    if kept:
        yield from ("", *(line for line in kept[1] if line or line is not kept[1][-1]))


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__)
    asked.add_argument("--applications", action="store_true", help="try every application too (minutes)")
    asked.add_argument("--only", default="", help="only cases in whose name this regular expression is found")
    asked.add_argument("--write", type=Path, help="where the table goes; without, only what is not equal is shown")
    asked.add_argument("--workers", type=int, default=2, help="processes side by side")
    asked.add_argument("--kept", type=Path, help="a file of results, which are not tried again")
    asked.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    words = asked.parse_args()
    if words.work:
        work(words.applications)
        return
    import keras
    import nothing

    cases = all_cases(words.applications)
    by_class: dict[tuple[str, str], list[tuple[str, str, str]]] = {}
    for group in GROUPS + (("applications",) if words.applications else ()):
        for name in public(group):
            by_class[group, name] = []
            if (group, name) in nothing.APPLICABLE:
                by_class[group, name].append(("", "not applicable", nothing.APPLICABLE[group, name]))
    own = threading.local()
    kept: dict[str, tuple[str, str]] = {}
    if words.kept and words.kept.exists():
        for line in words.kept.read_text(encoding="utf-8").splitlines():
            name, result, why = json.loads(line)
            kept[name] = (result, why)
    writing = threading.Lock()

    def tried(number: int) -> tuple[str, str]:
        if full(cases[number]) in kept:
            return kept[full(cases[number])]
        workers = own.__dict__.setdefault("workers", {})
        backend = cases[number].backend
        worker = workers.setdefault(backend, Worker(words.applications, backend))
        result, why = worker.attempt(number, cases[number].longest)
        if result != "equal":
            print(f"{result:8} {full(cases[number])}: {why}", file=sys.stderr, flush=True)
        if words.kept:
            with writing, words.kept.open("a", encoding="utf-8") as file:
                file.write(json.dumps([full(cases[number]), result, why]) + "\n")
        return result, why

    wanted = [number for number, case in enumerate(cases) if re.search(words.only, full(case))]
    with ThreadPoolExecutor(words.workers) as pool:
        found = list(pool.map(tried, wanted))
    for number, (result, why) in zip(wanted, found):
        case = cases[number]
        for (group, name, part), reason in nothing.CASES.items():
            if result == "refused" and (group, name) == (case.group, case.name) and part in case.label:
                result, why = "not applicable", reason
        by_class.setdefault((case.group, case.name), []).append((case.label, result, why))
    for results in by_class.values():
        if not results:
            results.append(("", "not tried", "there is no case"))
    if words.only:
        by_class = {key: results for key, results in by_class.items() if results[0][1] not in ("not tried", "not applicable")}
    counted = Counter(result for results in by_class.values() for _, result, _ in results)
    print(dict(counted), Counter(summed(results) for results in by_class.values()), file=sys.stderr)
    if words.write:
        before = None if words.applications else kept_part(words.write, "applications")
        words.write.write_text("\n".join(table(by_class, keras.__version__, before)) + "\n", encoding="utf-8")
    if counted["WRONG"] or counted["ERROR"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
