//! Turns a graph into a better graph that computes the same bits.
