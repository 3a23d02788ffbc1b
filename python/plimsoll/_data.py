"""Data as Keras takes it - arrays, generators, PyDatasets, tf.data, DataLoaders - as data of the engine."""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterable, Iterator

import numpy as np

from plimsoll import _native
from plimsoll._turns import Begun, Turns, is_batches, parts_of, ran_out

Field = tuple[str, str]


@dataclass
class Source:
    """Data that is ready for a run."""

    data: _native.Data
    batch_size: int
    #: Batches of a pass, where that is known.
    steps: int | None
    #: Samples of a pass, where that is known.
    samples: int | None
    #: Bytes that had to be copied: arrays that were not in C order, or no arrays.
    copied: int = 0
    #: Batches of each epoch, where those are not all alike.
    lengths: list[int] | None = None


@dataclass
class Wanted:
    """What a model takes: fields of samples, in order."""

    inputs: list[tuple[str, bool]]
    #: Shapes of the inputs, ``None`` for an axis that is open.
    input_shapes: list[tuple[int | None, ...]]
    outputs: list[tuple[str, list[int | None], bool]]
    labelled: list[int]

    @property
    def labels(self) -> list[tuple[str, list[int | None], bool]]:
        return [self.outputs[i] for i in self.labelled]

    def fields(self, labels: bool, weights: bool) -> list[Field]:
        fields = [(name, "indices" if whole else "numbers") for name, whole in self.inputs]
        if labels:
            fields += [(name, "label") for name, _, _ in self.labels]
        if weights:
            fields.append(("sample_weight", "label"))
        return fields


def _converted(value: Any, name: str) -> np.ndarray:
    """What is no array of NumPy as one, where it lies if that can be."""
    if hasattr(value, "__dlpack__"):
        try:
            return np.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError):
            pass
    try:
        return np.asarray(value)
    except (RuntimeError, TypeError, ValueError) as error:
        raise type(error)(f"{name} is a {type(value).__name__} that NumPy cannot read: {error}") from error


def as_array(value: Any, name: str) -> tuple[np.ndarray, int]:
    """A plain array in C order, and how many bytes had to be copied for it."""
    array: np.ndarray
    if value is None:
        raise ValueError(f"{name} is None; an array belongs there")
    if isinstance(value, (str, Path)):
        raise TypeError(f"{name} is the text {str(value)!r}; an array belongs there, or plimsoll.Dataset(path) where it is the path of data")
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise TypeError(f"{name} is a masked array, and what is masked cannot be left out; fill it first, as with x.filled(0)")
    if isinstance(value, np.ndarray):
        array = value.view(np.ndarray)
    else:
        array = _converted(value, name)
    if array.dtype.hasobject or array.dtype.kind in "USMmVc" and array.dtype.name != "bfloat16":
        of = "" if isinstance(value, (np.ndarray, list, tuple)) else f" is a {type(value).__name__} and"
        raise TypeError(f"{name}{of} has elements of {array.dtype}; numbers belong there")
    if array.ndim == 0:
        raise ValueError(f"{name} is a single number; an array with a row for every sample belongs there")
    taken = array
    if not array.flags.c_contiguous or not array.dtype.isnative:
        array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    is_shared = isinstance(value, np.ndarray) and array is taken
    if not is_shared and array.base is None:
        return array, array.nbytes
    return array, 0


def fitted(array: np.ndarray, shape: Iterable[int | None], name: str) -> np.ndarray:
    """An array whose rows have this shape; as in Keras, a last axis of length 1 may be missing or be too many."""
    want, have = tuple(shape), array.shape[1:]

    def like(have: tuple[int, ...]) -> bool:
        return len(have) == len(want) and all(w is None or w == h for w, h in zip(want, have))

    if like(have):
        return array
    if like((*have, 1)):
        return array.reshape((*array.shape, 1))
    if have and have[-1] == 1 and like(have[:-1]):
        return array.reshape(array.shape[:-1])
    raise ValueError(f"{name} has samples of shape {have}, and the model takes {want}")


def _classes(array: np.ndarray, shape: list[int | None], name: str) -> tuple[np.ndarray, int]:
    """Labels that are numbers of classes, and how many bytes had to be copied: Keras takes them as floats too."""
    if array.ndim > 1 and array.shape[1:] == tuple(shape) and array.shape[-1] > 1:
        raise ValueError(
            f"{name} has samples of shape {array.shape[1:]}, a number for every class, and the loss takes the number of the class; "
            'compile with "categorical_crossentropy", or give y.argmax(-1)'
        )
    array = fitted(array, shape[:-1], name)
    if array.dtype.kind != "f":
        return array, 0
    with np.errstate(invalid="ignore"):
        whole = array.astype(np.int64)
    if not np.array_equal(whole, array):
        raise ValueError(f"{name} has numbers with a fraction, or none at all (NaN), and the loss takes numbers of classes")
    return whole, whole.nbytes


def _parts(value: Any, names: list[str], what: str) -> list[Any]:
    """The arrays of a structure, in the order of these names."""
    if isinstance(value, dict):
        unknown = [key for key in value if key not in names]
        missing = [name for name in names if name not in value]
        if unknown or missing:
            raise ValueError(f"{what} has {', '.join(map(str, value))}; the model wants {', '.join(names)}")
        return [value[name] for name in names]
    # A list of numbers is an array, as in Keras; a list of arrays is one for each.
    is_array = lambda part: hasattr(part, "shape") and part.shape != ()
    if isinstance(value, (list, tuple)) and value and all(is_array(part) or isinstance(part, (list, tuple)) for part in value):
        if len(value) == len(names):
            return list(value)
        if len(names) > 1 or all(map(is_array, value)):
            raise ValueError(f"{what} is a list of {len(value)} arrays; the model wants {len(names)}: {', '.join(names)}")
    if len(names) != 1:
        raise ValueError(f"{what} is one array; the model wants {len(names)}: {', '.join(names)}")
    return [value]


def _labels(y: Any, wanted: Wanted) -> list[Any]:
    """The labels of the outputs that have a loss or a metric."""
    names, all_names = [name for name, _, _ in wanted.labels], [name for name, _, _ in wanted.outputs]
    if isinstance(y, dict):
        return _parts({key: value for key, value in y.items() if key in names or key not in all_names}, names, "y")
    if isinstance(y, (list, tuple)) and len(names) < len(all_names) == len(y):
        return [_parts(y, all_names, "y")[i] for i in wanted.labelled]
    return _parts(y, names, "y")


def _class_weights(class_weight: dict[int, float], labels: list[np.ndarray], wanted: Wanted) -> np.ndarray:
    """A weight for each sample, by its class."""
    if not isinstance(class_weight, dict):
        raise TypeError(f"class_weight is {class_weight!r}; a dictionary from classes to weights belongs there")
    if len(labels) != 1:
        raise ValueError("class_weight is for models with one output; give sample_weight")
    y = labels[0]
    _, shape, _ = wanted.labels[0]
    is_one_hot = y.ndim > 1 and y.shape[1:] == tuple(shape) and y.shape[-1] > 1
    classes = y.argmax(axis=-1) if is_one_hot else np.rint(y.reshape(len(y), -1)[:, 0]).astype(np.int64)
    if classes.ndim != 1:
        raise ValueError("class_weight is for one class a sample; give sample_weight")
    weights = np.ones(len(classes), np.float32)
    for number, weight in class_weight.items():
        if not isinstance(number, (int, float, np.number)) or number != int(number):
            raise ValueError(f"class_weight has the class {number!r}; classes are whole numbers")
        if not math.isfinite(weight):
            raise ValueError(f"class_weight[{number}] is {weight}; a finite number belongs there")
        weights[classes == int(number)] = weight
    return weights


def batch_arrays(
    wanted: Wanted, x: Any, y: Any, weight: Any, *, labels: bool, class_weight: dict[int, float] | None, weights: bool
) -> tuple[list[np.ndarray], int]:
    """The fields of samples as arrays with equally many rows."""
    arrays, copied = [], 0
    inputs = _parts(x, [name for name, _ in wanted.inputs], "x")
    for (name, _), shape, part in zip(wanted.inputs, wanted.input_shapes, inputs):
        array, more = as_array(part, f"x ({name})" if len(inputs) > 1 else "x")
        arrays.append(fitted(array, shape, f"x ({name})" if len(inputs) > 1 else "x"))
        copied += more
    found = []
    if labels:
        if y is None:
            raise ValueError("there are no labels; give y")
        for (name, shape, is_classes), part in zip(wanted.labels, _labels(y, wanted)):
            own = f"y ({name})" if len(wanted.labels) > 1 else "y"
            array, more = as_array(part, own)
            if is_classes:
                array, again = _classes(array, shape, own)
                more += again
            else:
                array = fitted(array, shape, own)
            found.append(array)
            copied += more
    arrays += found
    if weights:
        if weight is not None and class_weight is not None:
            raise ValueError("class_weight and sample_weight cannot both be given")
        if weight is not None:
            if isinstance(weight, dict) or isinstance(weight, (list, tuple)) and any(hasattr(part, "shape") for part in weight):
                raise ValueError("sample_weight is one weight a sample, for all outputs; weights for each output by itself are not taken")
            array, more = as_array(weight, "sample_weight")
            if array.ndim > 2 or array.ndim == 2 and array.shape[1] != 1:
                raise ValueError(f"sample_weight has shape {array.shape}; it is one weight a sample, weights for parts of samples are not taken")
            array = fitted(array, (), "sample_weight")
            if not np.isfinite(array).all():
                raise ValueError(f"sample_weight[{int(np.flatnonzero(~np.isfinite(array))[0])}] is not finite")
            copied += more
        elif class_weight is not None:
            array = _class_weights(class_weight, found, wanted)
            copied += array.nbytes
        else:
            array = np.ones(len(arrays[0]), np.float32)
            copied += array.nbytes
        arrays.append(array)
    rows = {len(array) for array in arrays}
    if len(rows) > 1:
        own = lambda kind, names: [f"{kind} ({name})" if len(names) > 1 else kind for name in names]
        named = own("x", [name for name, _ in wanted.inputs]) + (own("y", [name for name, _, _ in wanted.labels]) if labels else []) + ["sample_weight"]
        raise ValueError(f"{', '.join(f'{name} has {len(array)} samples' for name, array in zip(named, arrays))}; each needs as many as the others")
    if rows == {0}:
        raise ValueError("the data has no samples")
    return arrays, copied


def from_arrays(
    wanted: Wanted, x: Any, y: Any, weight: Any, *, batch_size: int | None, labels: bool,
    class_weight: dict[int, float] | None, weights: bool, steps: int | None = None, order: np.random.Generator | None = None,
    passes: int | None = None,
) -> Source:
    """Arrays, which are read where they lie.

    With fewer ``steps`` than batches, one pass ends there; over several ``passes`` each goes on where the one before ended, as in Keras,
    and ``order`` says how samples are shuffled then.
    """
    arrays, copied = batch_arrays(wanted, x, y, weight, labels=labels, class_weight=class_weight, weights=weights)
    fields, rows = wanted.fields(labels, weights), len(arrays[0])
    # A batch is never larger than the data, and need not be planned so.
    size = min(_batch_size(batch_size), rows)
    count = math.ceil(rows / size)
    if steps is not None and steps > count:
        ran_out(steps, count)
    if steps is not None and steps < count:
        if passes is None:
            rows = steps * size
            arrays, count = [array[:rows] for array in arrays], steps
        else:
            turns = Turns(_rows(arrays, size, order), count, steps, True)
            first = turns.peek()
            data = _native.batches(fields, first, turns.epoch, passes)
            return Source(data, size, steps, None, copied, turns.lengths(passes))
    data = _native.arrays([(name, kind, array) for (name, kind), array in zip(fields, arrays)])
    return Source(data, size, count, rows, copied)


def whole(value: Any, name: str, least: int) -> int:
    """A number of things, as an argument of this name says it."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}; a whole number belongs there") from None
    if number < least:
        raise ValueError(f"{name} is {number}; it must be at least {least}")
    return number


def limit(memory: str | int | None, name: str = "memory") -> str | None:
    """A memory limit as the engine reads it."""
    if memory is None:
        return None
    if isinstance(memory, str):
        if memory.strip().startswith("-"):
            raise ValueError(f"{name} is {memory!r}; a limit is more than nothing")
        return memory
    try:
        return str(whole(memory, name, 1))
    except TypeError:
        raise TypeError(f"{name} is {memory!r}; a text as in '2GiB' or a whole number of bytes belongs there") from None


def texts(**given: Any) -> None:
    """Refuses arguments that are no texts."""
    for name, word in given.items():
        if not isinstance(word, str):
            raise TypeError(f"{name} is {word!r}; a text belongs there")


def check_flag(value: Any, name: str) -> None:
    """Refuses an argument that is neither true nor false."""
    if value not in (True, False):
        raise ValueError(f"{name} is {value!r}; True or False belongs there")


def _batch_size(batch_size: int | None) -> int:
    return 32 if batch_size is None else whole(batch_size, "batch_size", 1)


def _rows(arrays: list[np.ndarray], size: int, order: np.random.Generator | None) -> Callable[[], Iterator[list[np.ndarray]]]:
    """Batches of arrays, in another order in every pass where one is given. The places of rows are made once, before the limit is counted."""
    count = len(arrays[0])
    places = None if order is None else np.arange(count)

    def begin() -> Iterator[list[np.ndarray]]:
        if order is not None and places is not None:
            order.shuffle(places)
        for at in range(0, count, size):
            rows: Any = slice(at, at + size) if places is None else places[at : at + size].copy()
            yield [array[rows] for array in arrays]

    return begin


@dataclass(frozen=True)
class Dataset:
    """Files that the engine reads by itself, sample by sample: a folder of classes with images, ``.npz``, ``.npy``, ``.csv``, TFRecord or
    Parquet files, archives of images, IDX files. Give it to :func:`plimsoll.fit` in the place of ``x``.

    Numbers are taken as they are stored, and pictures as bytes from 0 to 255, as ``keras.utils.image_dataset_from_directory`` gives them;
    the model's input says their size. Fields are found by the names of the model's inputs and outputs, or as ``x`` and ``y``.

    Args:
        path: where they are.
        part: ``"train"`` or ``"test"``, where a data set has several parts.
    """

    path: str | Path
    part: str = "train"


def from_files(wanted: Wanted, files: Dataset, *, batch_size: int | None, labels: bool) -> Source:
    """Files, of which the engine reads what it needs next."""
    size = _batch_size(batch_size)
    fields = wanted.fields(labels, False)
    n = len(wanted.inputs)
    shape = wanted.input_shapes[0]
    image = shape if n == 1 and len(shape) == 3 and None not in shape else None
    data = _native.files(str(files.path), fields[:n], fields[n:], files.part, image)  # type: ignore[arg-type]
    samples = data.samples()
    return Source(data, size, None if samples is None else math.ceil(samples / size), samples)


def split(arrays: Any, fraction: float) -> tuple[Any, Any]:
    """All but the last part of every array, and that part, as views: what Keras's ``validation_split`` does."""
    import keras

    def cut(part: str) -> Callable[[Any], Any]:
        def one(array: Any) -> Any:
            if array is None:
                return None
            array, _ = as_array(array, "x")
            at = int(math.floor(len(array) * (1.0 - fraction)))
            if not 0 < at < len(array):
                raise ValueError(
                    f"validation_split={fraction} of {len(array)} samples leaves none to {'train on' if at == 0 else 'validate with'}"
                )
            return array[:at] if part == "first" else array[at:]

        return one

    first = keras.tree.map_structure(cut("first"), arrays, none_is_leaf=True)
    last = keras.tree.map_structure(cut("last"), arrays, none_is_leaf=True)
    return first, last


def from_batches(
    wanted: Wanted, begun: Begun, *, labels: bool, class_weight: dict[int, float] | None, weights: bool | None
) -> tuple[Source, bool]:
    """Batches that come one after the other, and whether weights come with them. One batch is held at a time."""
    n_inputs, turns = len(wanted.inputs), begun.turns
    has_weight = begun.first(n_inputs, labels)[2] is not None
    weighted = (has_weight or class_weight is not None) if weights is None else weights
    if has_weight and not weighted:
        raise ValueError("batches bring sample weights, which are not taken here")

    def arrays(batch: Any) -> list[np.ndarray]:
        x, y, weight = parts_of(batch, n_inputs, labels)
        return batch_arrays(wanted, x, y, weight, labels=labels, class_weight=class_weight, weights=weighted)[0]

    try:
        first = arrays(turns.ahead[0])
    except (TypeError, ValueError) as error:
        if type(error) not in (TypeError, ValueError):
            raise
        raise type(error)(f"in the first batch: {error}") from error
    data = _native.batches(wanted.fields(labels, weighted), first, lambda: map(arrays, turns.epoch()), begun.passes)
    return Source(data, len(first[0]), begun.steps, None, 0, turns.lengths(begun.passes)), weighted
