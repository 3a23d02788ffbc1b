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
// The same of long rows: a block a row. Each thread has the first of the largest of its elements, or the row's first element.
KERNEL(argmax_rows, P) {
    const T *x = p.x + (i64)blockIdx.x * p.length;
    i64 best = 0;
    A most = (A)widen(x[0]);
#pragma unroll 8
    for (i64 k = threadIdx.x; k < p.length; k += blockDim.x) {
        A v = (A)widen(x[k]);
        if (v > most) {
            most = v;
            best = k;
        }
    }
    A top = in_block<Largest>(most);
    i64 first = in_block<Smallest>(most == top ? best : p.length);
    // Nothing is above a first element that is no number.
    if (threadIdx.x == 0) p.y[blockIdx.x] = first < p.length ? first : 0;
}
