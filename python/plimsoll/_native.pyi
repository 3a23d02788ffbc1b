"""The engine, compiled."""

from typing import Any, Callable, Iterator

import numpy as np

__version__: str

class LiveModel:
    def __init__(
        self,
        name: str,
        config: str,
        version: str,
        listed: list[tuple[str, str, list[int]]],
        store: Any,
        inputs: list[list[int]] | None = None,
        precision: str | None = None,
    ) -> None: ...
    def inputs(self) -> list[tuple[str, bool]]: ...
    def outputs(self) -> list[tuple[str, list[int], bool]]: ...
    def labelled(self) -> list[int]: ...
    def notices(self) -> list[str]: ...

class Data:
    def samples(self) -> int | None: ...

def arrays(fields: list[tuple[str, str, np.ndarray]]) -> Data: ...
def batches(
    fields: list[tuple[str, str]],
    first: list[np.ndarray],
    make: Callable[[], Iterator[list[np.ndarray]]],
    passes: int,
) -> Data: ...
def files(
    path: str,
    inputs: list[tuple[str, str]],
    labels: list[tuple[str, str]],
    part: str,
    image: tuple[int, int, int] | None = None,
) -> Data: ...
def plan(live: LiveModel, asked: dict[str, Any], data: Data | None = None, validation: Data | None = None) -> dict[str, Any]: ...
def fit(
    live: LiveModel,
    asked: dict[str, Any],
    data: Data,
    epochs: int,
    told: Any,
    wants: dict[str, bool],
    validation: Data | None = None,
    checkpoints: str | None = None,
) -> tuple[str, str | None, int]: ...
def evaluate(live: LiveModel, asked: dict[str, Any], data: Data) -> list[tuple[str, float]]: ...
def predict(live: LiveModel, asked: dict[str, Any], data: Data, take: Callable[[Any], None]) -> int: ...
def page(document: str) -> str: ...
def command(words: list[str]) -> int: ...
def explain(report: bytes, name: str) -> tuple[str, str, str]: ...
