"""A live Keras model as what its file would be: its configuration, and its variables by the paths that they would have there."""

from __future__ import annotations

import contextlib
import functools
import json
import warnings
from typing import Any, Callable, Iterator

import numpy as np

from plimsoll import _native, _own_losses, _traced
from plimsoll.errors import PlimsollError


class _Entry:
    """Takes the variables of one layer."""

    def __init__(self, found: dict[str, Any], path: str) -> None:
        self.found, self.path = found, f"{path}/vars" if path else "vars"

    def __setitem__(self, key: str, value: Any) -> None:
        self.found[f"{self.path}/{key}"] = value

    def __bool__(self) -> bool:
        return True


@functools.cache
def _writer() -> tuple[type, Any]:
    """A store of Keras's that writes nothing down but where things would be, and the function that walks a model with it. Made once: a class is only
    given back when Python looks for circles."""
    try:
        from keras.src.saving import saving_lib

        base, walk = saving_lib.H5IOStore, saving_lib._save_state
    except (ImportError, AttributeError) as error:
        import keras

        raise PlimsollError(
            f"Keras {keras.__version__} names the weights of its files in a way that is not known here; save the model and train "
            "the file with the plimsoll command"
        ) from error

    class Paths(base):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            self.found: dict[str, Any] = {}

        def __bool__(self) -> bool:
            return True

        def __del__(self) -> None:
            pass

        def make(self, path: str, metadata: Any = None) -> _Entry:
            return _Entry(self.found, path)

        def close(self) -> None:
            pass

    return Paths, walk


def _found(model: Any) -> dict[str, Any]:
    """The variables of a model by path, as Keras's own writer names them. The optimizer's are not among them."""
    kind, walk = _writer()
    store = kind()
    # The optimizer copies its variables into a store; they are listed without that.
    visited = {id(own) for own in _optimizers(model)}
    adapted = [layer for layer in model._flatten_layers() if getattr(layer, "lora_enabled", False)]
    # A file has the sum of a kernel and what is added to it, which is no variable; here they are apart.
    with _said(adapted, "lora_enabled", lambda layer: False):
        walk(model, weights_store=store, assets_store=None, inner_path="", visited_saveables=visited)
    paths = {id(variable): path for path, variable in store.found.items()}
    for layer in adapted:
        name = "embeddings" if hasattr(layer, "lora_embeddings_a") else "kernel"
        folder = paths[id(getattr(layer, f"_{name}"))].rpartition("/")[0]
        own = sum(path.rpartition("/")[0] == folder for path in store.found)
        for i, matrix in enumerate(("a", "b")):
            store.found[f"{folder}/{own + i}"] = getattr(layer, f"lora_{name}_{matrix}")
    for layer in _stateful(model):
        folder = paths[id(layer.cell.kernel)].rpartition("/cell/")[0]
        store.found.update({f"{folder}/states/vars/{i}": state for i, state in enumerate(layer.states)})
    return store.found


def _stateful(model: Any) -> list[Any]:
    """Recurrent layers that keep their state from batch to batch, in variables that are in no file."""
    import keras

    def is_one(layer: Any) -> bool:
        is_plain = isinstance(layer, keras.layers.RNN) and isinstance(getattr(layer, "states", None), list) and hasattr(layer.cell, "kernel")
        return is_plain and layer.stateful and all(isinstance(state, keras.Variable) and len(state.shape) == 2 for state in layer.states)

    # Not those inside of wrappers, which run them by themselves.
    models = [own for own in model._flatten_layers() if isinstance(own, keras.Model)]
    return [layer for own in models for layer in own.layers if is_one(layer)]


def _say_kept(config: Any, kept: dict[str, int]) -> None:
    """Has the configuration of stateful layers say of how many samples they keep the state."""
    if isinstance(config, dict):
        own = config.get("config")
        if isinstance(own, dict) and own.get("stateful") and own.get("name") in kept:
            own["plimsoll_kept"] = kept[own["name"]]
        for value in config.values():
            _say_kept(value, kept)
    elif isinstance(config, list):
        for value in config:
            _say_kept(value, kept)


@contextlib.contextmanager
def _said(layers: list[Any], attribute: str, value: Callable[[Any], Any]) -> Iterator[None]:
    """Lets layers say something else of themselves for a while."""
    before = [getattr(layer, attribute) for layer in layers]
    try:
        for layer in layers:
            setattr(layer, attribute, value(layer))
        yield
    finally:
        for layer, own in zip(layers, before):
            setattr(layer, attribute, own)


def _optimizers(model: Any) -> list[Any]:
    """The optimizer, and the one inside of it where it only scales the loss."""
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        return []
    inner = getattr(optimizer, "inner_optimizer", None)
    return [optimizer] if inner is None else [optimizer, inner]


def _parts(model: Any) -> list[Any]:
    """The optimizers that an optimizer hands parameters to; none where it moves them itself."""
    return list(getattr(getattr(model, "optimizer", None), "_inner_optimizers", None) or [])


def _assigned(model: Any, store: Store) -> list[dict[str, Any]]:
    """Each of those optimizers, with the paths of its parameters."""
    import keras

    optimizer = model.optimizer
    paths = {id(variable): path for path, variable in store.variables.items()}
    found = [{"optimizer": keras.saving.serialize_keras_object(part), "paths": []} for part in _parts(model)]
    for variable in model.trainable_variables:
        found[optimizer._var_to_optimizer_idx[optimizer._var_key(variable)]]["paths"].append(paths[id(variable)])
    return found


class Store:
    """The variables of a Keras model, read and written one at a time through NumPy: of any backend."""

    def __init__(self, model: Any, read: Any, *, optimizer: bool) -> None:
        """``read`` is the model whose layers name the variables, which are those of ``model``."""
        import keras

        self._keras = keras
        self.variables = _found(read)
        if optimizer:
            for own, folder in zip(_optimizers(model), ("optimizer", "optimizer/inner_optimizer")):
                for i, variable in enumerate(own.variables):
                    self.variables[f"{folder}/vars/{i}"] = variable
        rates = [getattr(own, "_learning_rate", None) for own in [*_optimizers(model), *_parts(model)]]
        self._rates = {path for path, variable in self.variables.items() if any(variable is rate for rate in rates)}

    def listed(self) -> list[tuple[str, str, list[int]]]:
        """Every variable with its type and shape."""
        return [
            (path, self._keras.backend.standardize_dtype(variable.dtype), [int(n) for n in variable.shape])
            for path, variable in self.variables.items()
        ]

    def read(self, path: str) -> np.ndarray:
        """The value of a variable."""
        value = np.asarray(self._keras.ops.convert_to_numpy(self.variables[path]))
        return np.ascontiguousarray(value)

    def write(self, path: str, dtype: str, shape: list[int], value: bytes) -> None:
        """Gives a variable another value. The learning rate is Keras's own to say."""
        if path in self._rates:
            return
        variable = self.variables[path]
        if not hasattr(variable, "assign"):
            raise PlimsollError(f"the weight {path} of the Keras model cannot be set; it is no variable of its layer")
        if dtype == "bfloat16":
            import ml_dtypes

            element: Any = ml_dtypes.bfloat16
        else:
            element = dtype
        variable.assign(np.frombuffer(value, dtype=element).reshape(shape))

    def is_rate(self, path: str) -> bool:
        """Whether a variable is the learning rate."""
        return path in self._rates


def _whole(model: Any, config: dict[str, Any]) -> dict[str, Any]:
    """The configuration with what Keras leaves out of it: of some losses and metrics it does not store every argument (an axis)."""
    compiled = config.get("compile_config")
    given = getattr(getattr(model, "_compile_config", None), "config", None)
    if isinstance(compiled, dict) and isinstance(given, dict):
        for key in ("loss", "metrics", "weighted_metrics"):
            _complete(given.get(key), compiled.get(key))
    return config


def _complete(own: Any, stored: Any) -> None:
    if isinstance(own, (list, tuple)) and isinstance(stored, (list, tuple)):
        for one, other in zip(own, stored):
            _complete(one, other)
    elif isinstance(own, dict) and isinstance(stored, dict):
        for name, one in own.items():
            _complete(one, stored.get(name))
    elif isinstance(stored, dict) and isinstance(stored.get("config"), dict):
        arguments = getattr(own, "_fn_kwargs", None)
        for name, value in (arguments or {}).items():
            if name not in stored["config"] and isinstance(value, (bool, int, float, str, list, tuple)):
                stored["config"][name] = list(value) if isinstance(value, tuple) else value


def _build_activations(model: Any) -> None:
    """Makes the weights of layers that are activations of others, which Keras itself only makes when they first run."""
    import keras

    for layer in model._flatten_layers():
        last = getattr(layer, "activation", None)
        if not isinstance(last, keras.layers.Layer) or last.built:
            continue
        try:
            shape = layer.output.shape
        except (AttributeError, ValueError):
            raise PlimsollError(
                f"the activation {last.name} of the layer {layer.name} has no weights yet; call the model once, or put {last.name} after the layer"
            ) from None
        last.build(shape)


def check(model: Any) -> None:
    """Refuses what is no model of Keras, or one that cannot be read.

    Raises:
        TypeError: it is something else.
        PlimsollError: it computes by methods of its own, which are not in its configuration, or has no weights yet.
    """
    import keras

    if not isinstance(model, keras.Model):
        raise TypeError(f"a Keras model belongs here, not {type(model).__name__}")
    for method in ("train_step", "test_step", "predict_step", "compute_loss", "compute_metrics"):
        of = next(kind for kind in type(model).__mro__ if method in vars(kind))
        if not of.__module__.startswith("keras."):
            raise PlimsollError(f"the class {of.__name__} of the model {model.name} has its own {method}, which is not followed here")
    if not model.built and not _traced.is_own(model):
        raise PlimsollError(f"the model {model.name} has no weights yet; give it an Input, or call build() or the model itself once")


def live(
    model: Any, read: Any, *, y: Any, trained: bool, inputs: list[tuple[int, ...]] | None, precision: str | None
) -> _native.LiveModel:
    """A Keras model for the engine; where it is to be trained, with its optimizer's state. ``read`` is the same model in layers of Keras's own; ``y`` are labels,
    whose shape a loss of the user's own may ask for."""
    import keras

    check(model)
    _build_activations(read)
    if trained:
        if getattr(model, "optimizer", None) is None:
            raise PlimsollError(f"the model {model.name} was compiled without an optimizer; call model.compile() with one first")
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
    store = Store(model, read, optimizer=trained)
    # What an adapted layer has found is not in its configuration.
    adapted = [
        layer for layer in read._flatten_layers()
        if isinstance(layer, keras.layers.IntegerLookup) and layer.input_vocabulary is None and layer.vocabulary_size() > 0
    ]
    words = _said(adapted, "input_vocabulary", lambda layer: [int(word) for word in layer.get_vocabulary(include_special_tokens=False)])
    with words, _own_losses.aside(model) as has_own, warnings.catch_warnings():
        # That a function could not be read from a file again: no file is written.
        warnings.simplefilter("ignore", UserWarning)
        whole = keras.saving.serialize_keras_object(read)
        if read is not model:
            _traced.say_training(whole, read)
        _say_kept(whole.get("config"), {layer.name: int(layer.states[0].shape[0]) for layer in _stateful(read)})
        if getattr(model, "compiled", False):
            whole["compile_config"] = model.get_compile_config()
    if isinstance(whole.get("compile_config"), dict):
        _own_losses.follow_metrics(model, read, whole["compile_config"], y)
    if has_own:
        whole["compile_config"]["loss"] = _own_losses.follow(model, read, y)
    whole = _whole(model, whole)
    if trained and _parts(model):
        whole["compile_config"]["optimizer"]["config"]["assigned"] = _assigned(model, store)
    config = json.dumps(whole)
    shapes = None if inputs is None else [list(shape) for shape in inputs]
    return _native.LiveModel(model.name, config, keras.__version__, store.listed(), store, shapes, precision)
