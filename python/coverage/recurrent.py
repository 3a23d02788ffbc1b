"""Cases of recurrent layers, their cells and layers around layers."""

from __future__ import annotations

import keras
from keras import layers as L

from case import SAMPLES, numbers
from layers import case, compiled, layer, masked, settings

for name in ("LSTM", "GRU", "SimpleRNN"):
    settings(
        name, (4, 5), {"units": 3}, {"units": 3, "return_sequences": True}, {"units": 3, "go_backwards": True}, {"units": 3, "use_bias": False},
        {"units": 3, "activation": "relu"}, {"units": 3, "unroll": True}, {"units": 3, "recurrent_regularizer": keras.regularizers.L2(0.01)},
        {"units": 3, "kernel_constraint": keras.constraints.MaxNorm(0.5)},
    )
    settings(name, (4, 5), {"units": 3, "dropout": 0.2, "recurrent_dropout": 0.2}, untrained="trained: the same distribution")
    case(name, "return_state", lambda name=name: (lambda i: compiled(keras.Model(i, list(getattr(L, name)(3, return_sequences=True, return_state=True)(i))), numbers(1, SAMPLES, 4, 5)))(keras.Input((4, 5))))
    case(name, "initial_state", lambda name=name: (lambda i, s: compiled(keras.Model([i, s], getattr(L, name)(3)(i, initial_state=[L.Dense(3)(s)] * (2 if name == "LSTM" else 1))), [numbers(1, SAMPLES, 4, 5), numbers(2, SAMPLES, 3)]))(keras.Input((4, 5)), keras.Input((3,))))
    case(name, "mask, all steps", masked(lambda x, name=name: L.GlobalAveragePooling1D()(getattr(L, name)(3, return_sequences=True)(x))))
    case(name, "stateful", lambda name=name: (lambda i: compiled(keras.Model(i, getattr(L, name)(3, stateful=True)(i)), numbers(1, SAMPLES, 4, 5)))(keras.Input(batch_shape=(4, 4, 5))), backend="tensorflow")
    cell = f"{name}Cell"
    layer(cell, "in RNN", lambda cell=cell: L.RNN(getattr(L, cell)(3)), 4, 5)
    layer(cell, "in RNN, all steps", lambda cell=cell: L.RNN(getattr(L, cell)(3), return_sequences=True, go_backwards=True), 4, 5)
settings("LSTM", (4, 5), {"units": 3, "recurrent_activation": "hard_sigmoid"}, {"units": 3, "unit_forget_bias": False})
settings("GRU", (4, 5), {"units": 3, "reset_after": False})
layer("RNN", "of a cell", lambda: L.RNN(L.LSTMCell(3)), 4, 5)
layer("RNN", "of a list", lambda: L.RNN([L.GRUCell(3), L.SimpleRNNCell(2)]), 4, 5)
case("RNN", "mask", masked(lambda x: L.RNN(L.GRUCell(3))(x)))
layer("StackedRNNCells", "in RNN", lambda: L.RNN(L.StackedRNNCells([L.LSTMCell(3), L.LSTMCell(2)])), 4, 5)
layer("StackedRNNCells", "in RNN, all steps", lambda: L.RNN(L.StackedRNNCells([L.GRUCell(3), L.GRUCell(2)]), return_sequences=True), 4, 5)

for mode in ("concat", "sum", "mul", "ave"):
    settings("Bidirectional", (4, 5), {"layer": L.LSTM(3), "merge_mode": mode}, {"layer": L.GRU(3, return_sequences=True), "merge_mode": mode})
settings("Bidirectional", (4, 5), {"layer": L.LSTM(3), "backward_layer": L.GRU(3, go_backwards=True)}, {"layer": L.RNN(L.LSTMCell(3))})
case("Bidirectional", "mask", masked(lambda x: L.Bidirectional(L.LSTM(3))(x)))
settings("TimeDistributed", (3, 5), {"layer": L.Dense(4)}, {"layer": L.LayerNormalization()})
settings("TimeDistributed", (3, 6, 6, 2), {"layer": L.Conv2D(4, 3)}, {"layer": L.BatchNormalization()}, {"layer": L.GlobalAveragePooling2D()})
layer("TimeDistributed", "of a model", lambda: L.TimeDistributed(keras.Sequential([keras.Input((5,)), L.Dense(4, activation="relu"), L.Dense(2)])), 3, 5)
layer("TimeDistributed", "of a model with a batch norm", lambda: L.TimeDistributed(keras.Sequential([keras.Input((6, 6, 2)), L.Conv2D(3, 3), L.BatchNormalization(), L.Flatten()])), 3, 6, 6, 2)
case("TimeDistributed", "mask", masked(lambda x: L.LSTM(3)(L.TimeDistributed(L.Dense(4))(x))))

for axes in (1, 2, 3):
    shape = (3, *([5] * axes), 2)
    settings(f"ConvLSTM{axes}D", shape, {"filters": 2, "kernel_size": 3}, {"filters": 2, "kernel_size": 3, "padding": "same", "return_sequences": True})
