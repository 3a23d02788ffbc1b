// Writing by index. Of the indices that name a place the last one writes to it: `last` holds its number, counted from 1.

struct P {
    const T *values;
    const I *index;
    T *y;
    int *last;
    i64 outer, length, indices, inner;
    i64 *flag;
    i64 code;
};
KERNEL(find_last, P) {
    EACH(i, p.indices) {
        i64 k = (i64)p.index[i];
        if (k >= 0 && k < p.length) atomic_most(&p.last[k], (int)i + 1);
        else raise(p.flag, p.code, i, k, p.length);
    }
}
KERNEL(put, P) {
    EACH(g, p.outer * p.indices * p.inner) {
        i64 b = g % p.inner, r = g / p.inner, i = r % p.indices, k = (i64)p.index[i];
        if (k >= 0 && k < p.length && p.last[k] == (int)i + 1)
            p.y[(r / p.indices * p.length + k) * p.inner + b] = p.values[g];
    }
}
