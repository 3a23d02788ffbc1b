// An axis flipped, or rolled by a number of places.

struct P {
    const T *x;
    T *y;
    i64 elements, length, inner, flip, shift;
};
KERNEL(reorder, P) {
    EACH(i, p.elements) {
        i64 b = i % p.inner, row = i / p.inner, k = row % p.length;
        i64 from = p.flip ? p.length - 1 - k : k < p.shift ? k + p.length - p.shift : k - p.shift;
        p.y[i] = p.x[(row - k + from) * p.inner + b];
    }
}
