// What all kernels of attention are told, and which keys a query sees. Operands that one of them has no use for are null.
//
// EARLY is 1 where keys are hidden that stand before others that are seen: by the first key of each query (`starts`) or by a window, which
// is tk where there is none. CAPPED is 1 where scores are capped.

struct P {
    const T *q, *k, *v, *mask, *o;
    const A *lse;
    const T *d_o;
    T *to0, *to1;
    A *sums;
    const int *starts;
    i64 batch, tq, tk, heads, kv_heads, causal, mask_batch, mask_head, mask_query, window;
    double scale, cap;
};
// Keys before which query i sees.
DEV int visible(const P &p, int i) {
    int all = (int)p.tk, n = i + 1 + all - (int)p.tq;
    return !p.causal || n > all ? all : n < 0 ? 0 : n;
}
// The first key that query i sees, if it sees any; past the last query, one that nobody has.
DEV int first_seen(const P &p, i64 b, int i) {
    int all = (int)p.tk, n = i + 1 + all - (int)p.tq - (int)p.window;
    if (i >= (int)p.tq) return all;
    int start = p.starts ? p.starts[b * p.tq + i] : 0;
    return start > n ? start : n;
}
// The first block of `keys` keys that any of the queries i0 .. i0 + queries sees; all threads of a block call it.
DEV int first_block(const P &p, i64 b, int i0, int queries, int keys) {
#if EARLY
    int least = (int)p.tk;
    for (int r = threadIdx.x; r < queries; r += blockDim.x) {
        int first = first_seen(p, b, i0 + r);
        least = first < least ? first : least;
    }
    least = in_block<Smallest>(least);
    return least > 0 ? least / keys : 0;
#else
    return 0;
#endif
}
// One behind the last of the queries first .. tq that sees any of the keys before `end`; all threads of a block call it.
DEV int behind_last(const P &p, i64 b, int first, int end) {
    int tq = (int)p.tq;
#if EARLY
    int last = 0;
    for (int i = first + (int)threadIdx.x; i < tq; i += blockDim.x)
        if (first_seen(p, b, i) < end) last = i + 1;
    return in_block<Largest>(last);
#else
    return tq;
#endif
}

