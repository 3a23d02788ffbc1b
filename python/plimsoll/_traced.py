"""Layers and models of the user's own, followed into the layers and operations of Keras that they call.

A configuration has no code, so that of a class of the user's own says nothing of what it computes. While the class is there, its ``call`` can be run on
Keras's symbolic tensors instead: what comes out is a functional model of Keras's own layers and operations, over the same variables.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import threading
from typing import Any, Callable, Iterator

import numpy as np

from plimsoll.errors import PlimsollError

# Where a layer keeps lists of its variables, which stay as they are.
_LISTS = ("_trainable_variables", "_non_trainable_variables", "_tracker", "_layers", "_metrics", "_seed_generators", "_losses", "_loss_ids")
# Layers are called through one method of Keras, which is another one for as long as a model is followed.
FOLLOWING = threading.RLock()


def is_own(layer: Any) -> bool:
    """Whether a layer computes by code of the user's: its class is not Keras's, or is there to hold a function."""
    import keras

    return type(layer).__module__.split(".")[0] != "keras" or isinstance(layer, keras.layers.Lambda)


def is_needed(model: Any) -> bool:
    """Whether a model is of a class of the user's own, or has such layers."""
    return any(is_own(layer) for layer in model._flatten_layers())


def _is_graph(layer: Any) -> bool:
    """Whether Keras itself knows which layers a model calls."""
    import keras
    from keras.src.models.functional import Functional

    return isinstance(layer, (Functional, keras.Sequential)) and not _has_own(layer, "call")


def _has_own(layer: Any, method: str) -> bool:
    of = next(kind for kind in type(layer).__mro__ if method in vars(kind))
    return of.__module__.split(".")[0] != "keras"


def _tensor_classes() -> tuple[type, type]:
    import keras

    class PlimsollWeight(keras.layers.Layer):
        """A variable as a tensor."""

        def __init__(self, variable: Any, policy: Any, name: str) -> None:
            super().__init__(name=name, dtype=policy, trainable=variable.trainable, autocast=False)
            self.value = variable
            self.built = True

        def compute_output_spec(self, inputs: Any) -> Any:
            return keras.KerasTensor(tuple(self.value.shape), dtype=self.compute_dtype)

        def call(self, inputs: Any) -> Any:
            return self.value

        def get_config(self) -> dict[str, Any]:
            said = {"shape": [int(n) for n in self.value.shape], "kept": not self.value._trainable}
            for kind in ("regularizer", "constraint"):
                own = getattr(self.value, kind, None)
                said[f"value_{kind}"] = None if own is None else keras.saving.serialize_keras_object(own)
            return {**super().get_config(), **said}

    class PlimsollConstant(keras.layers.Layer):
        """A tensor whose value is known."""

        def __init__(self) -> None:
            super().__init__(autocast=False)
            self.built = True

        def compute_output_spec(self, inputs: Any, value: Any) -> Any:
            return keras.KerasTensor(tuple(value.shape), dtype=keras.backend.standardize_dtype(value.dtype))

        def call(self, inputs: Any, value: Any) -> Any:
            return value

    for kind in (PlimsollWeight, PlimsollConstant):
        kind.__module__, kind.__qualname__ = "plimsoll", kind.__name__
    return PlimsollWeight, PlimsollConstant


class _Follower:
    """Runs the calls of a model's own layers on symbolic tensors."""

    def __init__(self, model: Any, training: bool | None) -> None:
        import keras

        self._keras, self._training = keras, training
        self._weight, self._constant = _tensor_classes()
        self._symbolic: dict[int, Any] = {}
        self._names: set[str] = set()
        self._anchor: Any = None
        self._depth = 0
        layers = list(model._flatten_layers())
        # Models of Keras's own are entered where there is something of the user's inside of them.
        self._entered = {id(layer) for layer in layers if is_own(layer) or (_is_graph(layer) and any(is_own(own) for own in layer._flatten_layers()))}
        self._entered.add(id(model))
        # Whether some call asks whether it is training.
        self.asks = False

    def whole(self, model: Any, inputs: Any) -> Any:
        """The functional model of Keras's own layers that computes what a model does."""
        keras = self._keras
        self._anchor = keras.tree.flatten(inputs)[0]
        with self._calls():
            outputs = self._enter(model, (inputs,), {})
        names = getattr(model, "output_names", None)
        leaves = keras.tree.flatten(outputs)
        if names and len(names) == len(leaves):
            # Losses and metrics may be given by the names of outputs.
            found = [leaf._keras_history.operation.name for leaf in leaves]
            leaves = [leaf if own == name else keras.layers.Identity(name=name)(leaf) for leaf, own, name in zip(leaves, found, names)]
            outputs = keras.tree.pack_sequence_as(outputs, leaves)
        _name_apart([leaf._keras_history.operation for leaf in keras.tree.flatten(outputs)], keras.tree.flatten(outputs))
        flat = keras.Model(inputs, outputs, name=model.name)
        self._check(model, flat)
        return flat

    def _check(self, model: Any, flat: Any) -> None:
        keras = self._keras
        for node in (node for nodes in flat._nodes_by_depth.values() for node in nodes):
            for leaf in keras.tree.flatten((node.arguments.args, node.arguments.kwargs)):
                if isinstance(leaf, keras.Variable):
                    raise PlimsollError(f"{model.name} reads the weight {leaf.path} in a way that is not followed here; keep it as an attribute of its layer")
        place = {id(variable): i for i, variable in enumerate(model.trainable_variables)}
        found = {id(variable) for variable in flat.trainable_variables}
        for variable in model.trainable_variables:
            if id(variable) not in found:
                raise PlimsollError(f"the weight {variable.path} of {model.name} is not used by its call; the optimizer has nothing to move it by")
        # The optimizer has its state in the order in which the user's model has its variables.
        last = len(place)
        firsts = {id(op): min((place.get(id(v), last) for v in getattr(op, "trainable_variables", [])), default=last) for op in flat._operations}
        flat._operations[:] = sorted(flat._operations, key=lambda op: -1 if isinstance(op, keras.layers.InputLayer) else firsts[id(op)])
        flat._layers = [op for op in flat._operations if isinstance(op, keras.layers.Layer)]
        if [id(v) for v in flat.trainable_variables] != [id(v) for v in model.trainable_variables]:
            raise PlimsollError(f"the weights of {model.name} are in an order that is not followed here; build it from layers of Keras")

    @contextlib.contextmanager
    def _calls(self) -> Iterator[None]:
        """Has calls of layers that are entered come here."""
        from keras.src.random.seed_generator import SeedGenerator

        layer_class, follower = self._keras.layers.Layer, self
        original, draw = layer_class.__call__, SeedGenerator.next

        def called(layer: Any, *args: Any, **kwargs: Any) -> Any:
            # Models may be called on other threads meanwhile.
            if threading.current_thread() is not own_thread:
                return original(layer, *args, **kwargs)
            if follower._depth == 0:
                if id(layer) in follower._entered:
                    return follower._enter(layer, args, kwargs)
                args, kwargs = follower._known(layer, args, kwargs)
            follower._depth += 1
            try:
                return original(layer, *args, **kwargs)
            finally:
                follower._depth -= 1

        def drawn(generator: Any, *args: Any, **kwargs: Any) -> Any:
            if follower._depth == 0 and threading.current_thread() is own_thread:
                raise PlimsollError("it draws random numbers with keras.random; use a layer such as Dropout or GaussianNoise in its place")
            return draw(generator, *args, **kwargs)

        own_thread = threading.current_thread()
        layer_class.__call__, SeedGenerator.next = called, drawn
        try:
            yield
        finally:
            layer_class.__call__, SeedGenerator.next = original, draw

    def _enter(self, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if _is_graph(layer):
            inputs = args[0] if args else kwargs.get("inputs")
            graph = getattr(layer, "_functional", None) or layer
            if not hasattr(graph, "_run_through_graph"):
                for own in layer.layers:
                    inputs = own(inputs)
                return inputs
            return graph._run_through_graph(inputs, operation_fn=self._operation)
        try:
            return self._call(layer, args, kwargs)
        except PlimsollError as error:
            said = str(error)
            if said.startswith("the call of "):
                raise
            raise PlimsollError(f"the call of {layer.name}, a {type(layer).__name__}, is not followed here: {said}") from error
        except Exception as error:
            lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
            raise PlimsollError(
                f"the call of {layer.name}, a {type(layer).__name__}, is not followed here: {lines[0].strip()} (it is run on symbolic tensors, and may use "
                "keras.ops and layers of Keras, and no values)"
            ) from error

    def _operation(self, operation: Any) -> Any:
        """A step of a graph. Whether a layer trains is said by the run, and not by the graph, which remembers how it was built."""
        if id(operation) not in self._entered:
            return operation
        return lambda *args, **kwargs: operation(*args, **{name: value for name, value in kwargs.items() if name != "training"})

    def _call(self, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        keras = self._keras
        if getattr(layer, "activity_regularizer", None) is not None:
            raise PlimsollError("its activity_regularizer is not followed; put an ActivityRegularization layer behind it")
        parameters = inspect.signature(layer.call).parameters
        takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
        masked = [leaf for leaf in keras.tree.flatten((args, kwargs)) if isinstance(leaf, keras.KerasTensor) and getattr(leaf, "_keras_mask", None) is not None]
        if "training" in parameters:
            self.asks = True
            if kwargs.get("training") is None:
                kwargs = {**kwargs, "training": self._training}
        elif not takes_any:
            kwargs = {name: value for name, value in kwargs.items() if name != "training"}
        if "mask" in parameters and kwargs.get("mask") is None and len(args) == 1:
            kwargs = {**kwargs, "mask": keras.tree.map_structure(lambda leaf: getattr(leaf, "_keras_mask", None), args[0])}
        if masked and layer.supports_masking:
            raise PlimsollError("it hands on the mask of its input (supports_masking); masks go through layers of Keras only")

        def convert(leaf: Any) -> Any:
            is_float = isinstance(leaf, keras.KerasTensor) and "float" in keras.backend.standardize_dtype(leaf.dtype)
            if not is_float or not layer.autocast or keras.backend.standardize_dtype(leaf.dtype) == layer.compute_dtype:
                return leaf
            return keras.ops.cast(leaf, layer.compute_dtype)

        args, kwargs = keras.tree.map_structure(convert, args), keras.tree.map_structure(convert, kwargs)
        own = vars(layer)
        before = {name: value for name, value in own.items() if name not in _LISTS}
        try:
            for name, value in before.items():
                put = self._put(layer, value)
                if put is not value:
                    own[name] = put
            return layer.call(*args, **kwargs)
        finally:
            own.update(before)

    def _put(self, layer: Any, value: Any) -> Any:
        """What stands for an attribute while its layer is called: symbolic tensors in place of variables."""
        if isinstance(value, self._keras.Variable):
            return self._tensor(layer, value)
        if isinstance(value, (list, tuple)) and any(isinstance(item, self._keras.Variable) for item in value):
            return type(value)(self._put(layer, item) for item in value) if type(value) is tuple else [self._put(layer, item) for item in value]
        if isinstance(value, dict) and any(isinstance(item, self._keras.Variable) for item in value.values()):
            return {key: self._put(layer, item) for key, item in value.items()}
        return value

    def _known(self, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What a layer with weights is called on. Of values alone it would give values, in which nobody sees its weights: they become symbolic."""
        keras = self._keras
        if not layer.variables or any(isinstance(leaf, keras.KerasTensor) for leaf in keras.tree.flatten((args, kwargs))):
            return args, kwargs

        def symbolic(leaf: Any) -> Any:
            return self._made(lambda: self._constant()(self._anchor, value=leaf)) if keras.ops.is_tensor(leaf) or isinstance(leaf, np.ndarray) else leaf

        return keras.tree.map_structure(symbolic, args), keras.tree.map_structure(symbolic, kwargs)

    def _made(self, make: Callable[[], Any]) -> Any:
        """A tensor of ours, by a layer that is not entered."""
        self._depth += 1
        try:
            return make()
        finally:
            self._depth -= 1

    def _tensor(self, layer: Any, variable: Any) -> Any:
        known = self._symbolic.get(id(variable))
        if known is None:
            name, n = f"{layer.name}_{variable.name}", 1
            while name in self._names:
                name, n = f"{layer.name}_{variable.name}_{n}", n + 1
            self._names.add(name)
            known = self._made(lambda: self._weight(variable, layer.dtype_policy, name)(self._anchor))
            self._symbolic[id(variable)] = known
        return known


def _name_apart(first: list[Any], tensors: list[Any]) -> None:
    """Gives the operations that lead to tensors names of their own: Keras wants that in one model, and layers inside of others need not have them. Those that
    come first keep theirs."""
    import keras

    found, seen = {id(operation): operation for operation in first}, set()
    left = list(tensors)
    while left:
        history = left.pop()._keras_history
        node = history.operation._inbound_nodes[history.node_index]
        if id(node) not in seen:
            seen.add(id(node))
            found[id(history.operation)] = history.operation
            left.extend(node.input_tensors)
    # Layers are asked for by name, operations are not.
    ordered = sorted(found.values(), key=lambda operation: (operation not in first, not isinstance(operation, keras.layers.Layer)))
    taken, all_names = set(), {operation.name for operation in ordered}
    for operation in ordered:
        name, n = operation.name, 1
        while name in taken or (n > 1 and name in all_names):
            n += 1
            name = f"{operation.name}_{n}"
        operation.name = name
        taken.add(name)
        all_names.add(name)


def _inputs(model: Any, x: Any) -> Any:
    """Symbolic inputs for a model: those that it names, or like the data."""
    import keras

    graph = getattr(model, "_functional", None) or model
    struct = getattr(graph, "_inputs_struct", None)
    if struct is not None:
        return keras.tree.map_structure(lambda leaf: keras.Input(batch_shape=leaf.shape, dtype=leaf.dtype, name=leaf.name), struct)

    def like(shape: Any, dtype: Any) -> Any:
        name = keras.backend.standardize_dtype(dtype)
        return keras.Input(shape=tuple(shape), dtype=keras.config.floatx() if "float" in name else name)

    spec = getattr(x, "element_spec", None)
    if spec is not None:
        first = spec[0] if isinstance(spec, tuple) else spec
        return keras.tree.map_structure(lambda leaf: like(leaf.shape[1:], leaf.dtype), first)
    if x is not None and (isinstance(x, dict) or not hasattr(x, "__next__")):
        is_many = isinstance(x, dict) or (isinstance(x, (list, tuple)) and x and hasattr(x[0], "shape"))
        if is_many or hasattr(x, "shape"):
            return keras.tree.map_structure(lambda leaf: like(np.shape(leaf)[1:], getattr(leaf, "dtype", "float32")), x)
    raise PlimsollError(
        f"the model {model.name} has no inputs by name, and the data does not say their shape; give arrays or a tf.data.Dataset, or build the model from keras.Input"
    )


def _canonical(flat: Any) -> Any:
    """A model's configuration without the names of its operations, and without what tells layers that they train."""
    import keras

    config = keras.saving.serialize_keras_object(flat)["config"]
    names = {layer["name"]: f"#{i}" for i, layer in enumerate(config["layers"])}

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items() if key != "training"}
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return names.get(value, value) if isinstance(value, str) else value

    return json.dumps(plain(config), default=str)


def _nodes_of(model: Any) -> Iterator[Any]:
    """Every layer that remembers where it was called."""
    for layer in model._flatten_layers():
        yield layer
        graph = getattr(layer, "_functional", None) or layer
        yield from getattr(graph, "_operations", ())


@contextlib.contextmanager
def following(model: Any, x: Any) -> Iterator[Any]:
    """The model as one of Keras's own layers alone; itself where it is that already. It is whole until the block ends, when the layers forget that they were
    called for it.

    Raises:
        PlimsollError: a layer of the user's own computes in a way that cannot be followed.
    """
    if not is_needed(model):
        yield model
        return
    with FOLLOWING:
        if not model.built:
            inputs = _inputs(model, x)
            model(inputs)
        kept = {id(layer): (layer, list(layer._inbound_nodes), list(layer._outbound_nodes), layer.name) for layer in _nodes_of(model)}
        try:
            follower = _Follower(model, None)
            flat = follower.whole(model, _inputs(model, x))
            if follower.asks:
                training = _Follower(model, True).whole(model, _inputs(model, x))
                if _canonical(flat) != _canonical(training):
                    raise PlimsollError(
                        f"a layer of {model.name} computes something else while it trains (its call reads `training`); hand `training` on to layers of Keras instead"
                    )
            yield flat
        finally:
            for layer, inbound, outbound, name in kept.values():
                layer._inbound_nodes[:], layer._outbound_nodes[:] = inbound, outbound
                layer.name = name
