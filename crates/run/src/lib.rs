//! Tensors, tape, functions.
