// The index of the largest element along an axis, the first of equals.

struct P {
    const T *x;
    i64 *y;
    i64 outputs;
    i64 length;
    i64 inner;
};
KERNEL(argmax, P) {
    EACH(o, p.outputs) {
        const T *x = p.x + o / p.inner * p.length * p.inner + o % p.inner;
        i64 best = 0;
        auto most = widen(x[0]);
        for (i64 k = 1; k < p.length; k++) {
            auto v = widen(x[k * p.inner]);
            if (v > most) {
                most = v;
                best = k;
            }
        }
        p.y[o] = best;
    }
}
