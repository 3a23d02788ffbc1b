"""A layer that Keras knows and we do not: in a fixture that make_keras.py writes and check_keras.py opens."""
import keras
from keras import layers


@keras.saving.register_keras_serializable("mine")
class Odd(layers.Layer):
    def build(self, shape):
        self.scale = self.add_weight(shape=(shape[-1],), name="scale")
        self.flag = self.add_weight(shape=(), dtype="bool", name="flag", trainable=False, initializer="zeros")
        self.child = layers.Dense(1)
        self.child.build(shape)

    def call(self, x):
        return self.child(x * self.scale)
