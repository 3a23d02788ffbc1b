// The gradient of a product: products of all elements before one, in scratch, then of all after it.

struct P {
    const T *x, *dy;
    T *dx;
    A *before;
    i64 outputs, folded, kept_rank, kept_length[8], kept_stride[8], rank, length[8], stride[8];
};
DEV i64 place(i64 i, i64 rank, const i64 *length, const i64 *stride) {
    i64 at = 0;
    for (int a = (int)rank - 1; a >= 0; a--) {
        at += i % length[a] * stride[a];
        i /= length[a];
    }
    return at;
}
KERNEL(prod_grad, P) {
    EACH(o, p.outputs) {
        i64 base = place(o, p.kept_rank, p.kept_length, p.kept_stride);
        A v = widen(p.dy[o]);
        for (i64 i = 0; i < p.folded; i++) {
            i64 at = base + place(i, p.rank, p.length, p.stride);
            p.before[at] = v;
            v *= (A)widen(p.x[at]);
        }
        v = (A)1;
        for (i64 i = p.folded - 1; i >= 0; i--) {
            i64 at = base + place(i, p.rank, p.length, p.stride);
            A x = widen(p.x[at]);
            p.dx[at] = narrow<T>(p.before[at] * v);
            v *= x;
        }
    }
}
