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

from plimsoll import _traced_layers
from plimsoll.errors import PlimsollError

# Where a layer keeps lists of its variables, which stay as they are.
_LISTS = ("_trainable_variables", "_non_trainable_variables", "_tracker", "_layers", "_metrics", "_seed_generators", "_losses", "_loss_ids")
# What a graph of Keras's tells its layers of training: what the run says, whatever a layer before was told.
_AS_THE_RUN = object()
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


class _Reads(BaseException):
    """A call computes with a weight of a layer that it only calls otherwise: an embedding that is used again as the last kernel. It is followed anew, and that
    layer's own call too. No code of the user's is to catch it."""

    def __init__(self, variable: Any) -> None:
        super().__init__(variable)
        self.variable = variable


class _Follower:
    """Runs the calls of a model's own layers on symbolic tensors, as while it trains or as otherwise."""

    def __init__(self, model: Any, training: bool, reads: list[Any]) -> None:
        """``reads`` are weights that calls read of layers which are not entered."""
        import keras

        self._keras, self._training = keras, training
        # What layers are told that are not told anything: as in Keras, what the last layer was told.
        self._told = training
        # Whether calls say what they were told only where that stands against the run.
        self._is_one_of_two = False
        self._own = _traced_layers.classes()
        self._symbolic: dict[int, Any] = {}
        self._names: set[str] = set()
        self._anchor: Any = None
        self._depth = 0
        # What layers of the graph at hand are told.
        self._graph_told: Any = _AS_THE_RUN
        # What calls have added to the loss.
        self._added: list[Any] = []
        layers = list(model._flatten_layers())
        # Models of Keras's own are entered where there is something of the user's inside of them.
        self._entered = {id(layer) for layer in layers if is_own(layer) or (_is_graph(layer) and any(is_own(own) for own in layer._flatten_layers()))}
        self._entered.add(id(model))
        self._known_reads = {id(variable) for variable in reads}
        # Layers of Keras's own are entered where others read their weights, so that both read the same tensor.
        holders = [layer for layer in layers if id(layer) not in self._entered and any(id(value) in self._known_reads for value in vars(layer).values())]
        self._entered.update(map(id, holders))
        self._read = [(layer, name, value) for layer in holders for name, value in vars(layer).items() if isinstance(value, keras.Variable)]
        # Whether some call asks whether it is training, or tells a layer.
        self.asks = False

    def whole(self, model: Any, inputs: Any) -> Any:
        """The functional model of Keras's own layers that computes what a model does."""
        return self._whole(model, inputs, self._outputs(model, inputs))

    def _whole(self, model: Any, inputs: Any, outputs: Any) -> Any:
        keras = self._keras
        names = getattr(model, "output_names", None)
        leaves = keras.tree.flatten(outputs)
        if names and len(names) == len(leaves):
            # Losses and metrics may be given by the names of outputs.
            found = [leaf._keras_history.operation.name for leaf in leaves]
            leaves = [leaf if own == name else keras.layers.Identity(name=name)(leaf) for leaf, own, name in zip(leaves, found, names)]
            outputs = keras.tree.pack_sequence_as(outputs, leaves)
        _name_apart([leaf._keras_history.operation for leaf in keras.tree.flatten(outputs)], keras.tree.flatten(outputs))
        return keras.Model(inputs, outputs, name=model.name)

    def either(self, model: Any, inputs: Any) -> Any:
        """The same, with both that which it computes while it trains and that which it computes otherwise."""
        keras = self._keras
        found, self._is_one_of_two = [], True
        for self._training in (True, False):
            self._told = self._training
            found.append(self._outputs(model, inputs))
        if len({len(keras.tree.flatten(outputs)) for outputs in found}) > 1:
            raise PlimsollError(f"{model.name} has other outputs while it trains than otherwise")
        join = lambda trained, used: self._made(lambda: self._own.Either(self._name("either"))(trained, used))
        return self._whole(model, inputs, keras.tree.map_structure(join, *found))

    def _outputs(self, model: Any, inputs: Any) -> Any:
        """What a model makes of symbolic tensors; with what its calls add to the loss, which goes along with its first output."""
        keras = self._keras
        self._anchor = keras.tree.flatten(inputs)[0]
        self._added = []
        with self._calls():
            self._show(True)
            try:
                outputs = self._enter(model, (inputs,), {})
            finally:
                self._show(False)
        if not self._added:
            return outputs
        first, *others = keras.tree.flatten(outputs)
        first = self._made(lambda: self._own.Added(self._name("added"))(first, list(self._added)))
        return keras.tree.pack_sequence_as(outputs, [first, *others])

    def ordered(self, model: Any, flat: Any) -> Any:
        """The functional model with the weights in the order in which the user's has them."""
        keras = self._keras
        for node in (node for nodes in flat._nodes_by_depth.values() for node in nodes):
            for leaf in keras.tree.flatten((node.arguments.args, node.arguments.kwargs)):
                if isinstance(leaf, keras.Variable):
                    raise PlimsollError(f"{model.name} reads the weight {leaf.path} in a way that is not followed here; keep it as an attribute of its layer")
        held: dict[int, Any] = {}
        for own in (op for op in flat._operations if isinstance(op, keras.layers.Layer)):
            for variable in own.variables:
                if held.setdefault(id(variable), own) is not own:
                    raise PlimsollError(f"the weight {variable.path} of {model.name} is read in a way that is not followed here: by its layer and by another")
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
        return flat

    @contextlib.contextmanager
    def _calls(self) -> Iterator[None]:
        """Has calls of layers that are entered come here, and random numbers and additions to the loss that are asked for in them."""
        from keras.src import backend
        from keras.src.random.seed_generator import SeedGenerator

        layer_class, follower, own_thread = self._keras.layers.Layer, self, threading.current_thread()

        def is_here() -> bool:
            # Models may be called on other threads meanwhile.
            return follower._depth == 0 and threading.current_thread() is own_thread

        def called(layer: Any, *args: Any, **kwargs: Any) -> Any:
            if threading.current_thread() is not own_thread:
                return call(layer, *args, **kwargs)
            if follower._depth == 0:
                follower._tell(kwargs.pop("training", None))
                if id(layer) in follower._entered:
                    return follower._enter(layer, args, kwargs)
                told = follower._told
                if layer._call_has_training_arg and not (follower._is_one_of_two and told == follower._training):
                    kwargs["training"] = told
                    args = follower._seeded(args) if told and not follower._training else args
                args, kwargs = follower._known(layer, args, kwargs)
            follower._depth += 1
            try:
                return call(layer, *args, **kwargs)
            finally:
                follower._depth -= 1

        def value_of(variable: Any) -> Any:
            if is_here():
                if id(variable) in follower._known_reads:
                    raise PlimsollError(f"it reads the value of the weight {variable.path}")
                raise _Reads(variable)
            return value.fget(variable)

        def drawn(generator: Any, *args: Any, **kwargs: Any) -> Any:
            if is_here():
                raise PlimsollError("it asks a SeedGenerator for a seed; draw with keras.random.normal, uniform, randint or dropout")
            return draw(generator, *args, **kwargs)

        def added(layer: Any, loss: Any) -> None:
            if not is_here():
                add(layer, loss)
                return
            follower._added.extend(follower._keras.tree.flatten(loss))

        def random(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
            def function(*args: Any, **kwargs: Any) -> Any:
                return follower._random(name, *args, **kwargs) if is_here() else original(*args, **kwargs)

            return function

        call, add, draw = layer_class.__call__, layer_class.add_loss, SeedGenerator.next
        variables = self._keras.Variable
        value, is_own_value = variables.value, "value" in vars(variables)
        functions = {name: getattr(backend.random, name) for name in _traced_layers.RANDOM if hasattr(backend.random, name)}
        layer_class.__call__, layer_class.add_loss, SeedGenerator.next = called, added, drawn
        for name, original in functions.items():
            setattr(backend.random, name, random(name, original))
        variables.value = property(value_of)
        try:
            yield
        finally:
            if is_own_value:
                variables.value = value
            else:
                del variables.value
            layer_class.__call__, layer_class.add_loss, SeedGenerator.next = call, add, draw
            for name, original in functions.items():
                setattr(backend.random, name, original)

    def _show(self, is_symbolic: bool) -> None:
        """Has weights that calls read of other layers stand there as symbolic tensors, or as themselves."""
        for layer, name, variable in self._read:
            vars(layer)[name] = self._tensor(layer, variable) if is_symbolic else variable

    def _tell(self, training: Any) -> None:
        """Notes what a call is told of training. As in Keras, calls after it that are told nothing are told that too."""
        if training is _AS_THE_RUN:
            self._told = self._training
        elif training is not None:
            self._told, self.asks = bool(training), True

    def _random(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """What a function of keras.random gives, drawn anew in every step."""
        make = getattr(_traced_layers, f"_{name}", None)
        if make is None:
            raise PlimsollError(f"it draws random numbers with keras.random.{name}; normal, uniform, randint and dropout are followed")

        def numbers(kind: str, shape: Any, dtype: Any) -> Any:
            shape = tuple(None if n is None else int(n) for n in shape)
            if not shape or shape[0] != self._anchor.shape[0]:
                raise PlimsollError(
                    f"keras.random.{name} draws numbers of shape {shape} for all samples at once; draw some for each, with the batch as the first axis"
                )
            return self._made(lambda: self._own.Random(self._name(name), kind, shape[1:], dtype)(self._anchor))

        return make(numbers, *args, **kwargs)

    def _enter(self, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if _is_graph(layer):
            inputs = args[0] if args else kwargs.get("inputs")
            graph = getattr(layer, "_functional", None) or layer
            if not hasattr(graph, "_run_through_graph"):
                for own in layer.layers:
                    inputs = own(inputs)
                return inputs
            before, self._graph_told = self._graph_told, _AS_THE_RUN if self._told == self._training else self._told
            try:
                return graph._run_through_graph(inputs, operation_fn=self._operation)
            finally:
                self._graph_told = before
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
        takes = getattr(operation, "_call_has_training_arg", False)
        told = {"training": self._graph_told} if takes else {}
        return lambda *args, **kwargs: operation(*args, **{name: value for name, value in kwargs.items() if name != "training"}, **told)

    def _call(self, layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        keras = self._keras
        if getattr(layer, "activity_regularizer", None) is not None:
            raise PlimsollError("its activity_regularizer is not followed; put an ActivityRegularization layer behind it")
        parameters = inspect.signature(layer.call).parameters
        masked = [leaf for leaf in keras.tree.flatten((args, kwargs)) if isinstance(leaf, keras.KerasTensor) and getattr(leaf, "_keras_mask", None) is not None]
        if "training" in parameters:
            self.asks = True
            kwargs = {**kwargs, "training": self._told}
        if "mask" in parameters and kwargs.get("mask") is None and len(args) == 1:
            kwargs = {**kwargs, "mask": keras.tree.map_structure(lambda leaf: getattr(leaf, "_keras_mask", None), args[0])}
        if getattr(layer, "mask_zero", False):
            raise PlimsollError("its weights are read by another layer, and its mask (mask_zero) is not followed then")
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
            return self._made(lambda: self._own.Constant(self._name("constant"))(self._anchor, value=leaf)) if keras.ops.is_tensor(leaf) or isinstance(leaf, np.ndarray) else leaf

        return keras.tree.map_structure(symbolic, args), keras.tree.map_structure(symbolic, kwargs)

    def _seeded(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments of a layer that trains always, as dropout does that is to say how sure a model is: it draws where nothing is trained too."""
        keras = self._keras
        leaves = keras.tree.flatten(args)
        if not leaves or not isinstance(leaves[0], keras.KerasTensor):
            return args
        leaves[0] = self._made(lambda: self._own.Seed(self._name("seed"))(leaves[0]))
        return keras.tree.pack_sequence_as(args, leaves)

    def _made(self, make: Callable[[], Any]) -> Any:
        """A tensor of ours, by a layer that is not entered."""
        self._depth += 1
        try:
            return make()
        finally:
            self._depth -= 1

    def _name(self, wanted: str) -> str:
        """A name that is the same whenever this model is followed: what is drawn at random depends on it."""
        name, n = wanted, 1
        while name in self._names:
            name, n = f"{wanted}_{n}", n + 1
        self._names.add(name)
        return name

    def _tensor(self, layer: Any, variable: Any) -> Any:
        known = self._symbolic.get(id(variable))
        if known is None:
            name = self._name(f"{layer.name}_{variable.name}")
            known = self._made(lambda: self._own.Weight(variable, layer.dtype_policy, name)(self._anchor))
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

    if x is not None and (isinstance(x, dict) or not hasattr(x, "__next__")):
        is_many = isinstance(x, dict) or (isinstance(x, (list, tuple)) and x and hasattr(x[0], "shape"))
        if is_many or hasattr(x, "shape"):
            return keras.tree.map_structure(lambda leaf: like(np.shape(leaf)[1:], getattr(leaf, "dtype", "float32")), x)
    raise PlimsollError(
        f"the model {model.name} has no inputs by name, and the data does not say their shape; give x, or build the model from keras.Input"
    )


def _canonical(config: Any) -> str:
    """A model's configuration without the names of its operations, and without what calls are told of training."""
    names = {layer["name"]: f"#{i}" for i, layer in enumerate(config["layers"])}

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items() if key != "training"}
        if isinstance(value, (list, tuple)):
            return [plain(item) for item in value]
        return names.get(value, value) if isinstance(value, str) else value

    return json.dumps(plain(config), default=str)


def _config(flat: Any) -> dict[str, Any]:
    import keras

    return keras.saving.serialize_keras_object(flat)["config"]


def _calls_of(config: dict[str, Any]) -> list[dict[str, Any]]:
    """The arguments by name of every call in a configuration."""
    return [node["kwargs"] for layer in config["layers"] for node in layer.get("inbound_nodes", []) if isinstance(node, dict) and "kwargs" in node]


def say_training(whole: dict[str, Any], flat: Any) -> None:
    """Has the configuration of a model that was followed say which calls were told by its code whether they train, whatever the run does. Keras itself takes no
    notice of what a configuration says of it."""
    calls, others = _calls_of(whole["config"]), flat.plimsoll_otherwise
    for i, call in enumerate(calls):
        told = call.pop("training", None)
        # What is another thing while the model trains than otherwise is what the run says.
        if told is not None and (others is None or others[i].get("training") == told):
            call["plimsoll_training"] = told


def _nodes_of(model: Any) -> Iterator[Any]:
    """Every layer that remembers where it was called."""
    for layer in model._flatten_layers():
        yield layer
        graph = getattr(layer, "_functional", None) or layer
        yield from getattr(graph, "_operations", ())


def _both(model: Any, x: Any) -> Any:
    """A model followed as while it trains and as otherwise."""
    reads: list[Any] = []

    def followed(training: bool, how: str = "whole") -> tuple[_Follower, Any]:
        while True:
            follower = _Follower(model, training, reads)
            try:
                return follower, getattr(follower, how)(model, _inputs(model, x))
            except _Reads as found:
                reads.append(found.variable)

    follower, flat = followed(True)
    config = _config(flat)
    said = _canonical(config)
    if "__tensor__" in said or "__numpy__" in said:
        if _canonical(_config(followed(True)[1])) != said:
            raise PlimsollError(f"a layer of {model.name} computes with values that are others at every call; draw random numbers with keras.random")
    others = None
    if follower.asks:
        other, otherwise = followed(False)
        config = _config(otherwise)
        if _canonical(config) == said:
            others = _calls_of(_config(other.ordered(model, otherwise)))
        else:
            flat = followed(True, "either")[1]
    else:
        others = [{}] * len(_calls_of(config))
    flat = follower.ordered(model, flat)
    flat.plimsoll_otherwise = others
    return flat


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
            yield _both(model, x)
        finally:
            for layer, inbound, outbound, name in kept.values():
                layer._inbound_nodes[:], layer._outbound_nodes[:] = inbound, outbound
                layer.name = name
