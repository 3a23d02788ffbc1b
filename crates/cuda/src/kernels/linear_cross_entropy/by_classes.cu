// A linear layer with cross-entropy: a piece of the logits at a time, a block a sample. I is the type of labels.

struct P {
    A *logits;
    T *slopes;
    const void *labels;
    A *top, *total, *loss, *lse;
    const A *dloss;
    A *sums;
    T *dx;
    i64 rows, width, start, classes, count;
    i64 is_first, is_last, is_capped;
    double cap;
    i64 *flag;
    i64 code;
};
DEV A capped(const P &p, A x) { return p.is_capped ? (A)p.cap * m_tanh(x / (A)p.cap) : x; }
DEV i64 label_of(const P &p, i64 row, bool tells) {
    return checked_label((i64)((const I *)p.labels)[row], row, p.classes, p.flag, p.code, tells);
}
KERNEL(add_piece, P) {
    i64 row = blockIdx.x;
    const A *x = p.logits + row * p.width;
    A m = Limit<A>::lowest(), s = (A)0;
    for (i64 k = threadIdx.x; k < p.width; k += blockDim.x) {
        A v = capped(p, x[k]), top = v > m ? v : m;
        s = moved(s, m, top) + m_exp(v - base_of(top));
        m = top;
    }
    A top = in_block<Largest>(m);
    s = in_block<Sum>(moved(s, m, top));
    if (threadIdx.x != 0) return;
    i64 label = label_of(p, row, p.is_first != 0);
    if (label >= p.start && label < p.start + p.width) p.loss[row] = capped(p, x[label - p.start]);
    if (label < 0) p.loss[row] = (A)0;
    if (!p.is_first) {
        A before = p.top[row], all = before > top ? before : top;
        s = moved(s, top, all) + moved(p.total[row], before, all);
        top = all;
    }
    p.top[row] = top;
    p.total[row] = s;
    if (!p.is_last) return;
    A log = m_log(s);
    p.loss[row] = log + (top - p.loss[row]);
    p.lse[row] = top + log;
}
KERNEL(differentiate, P) {
    i64 row = blockIdx.x, label = label_of(p, row, threadIdx.x == 0 && p.is_first != 0);
    const A *x = p.logits + row * p.width;
    T *out = p.slopes + row * p.width;
    A lse = p.lse[row], g = p.dloss[row];
    for (i64 k = threadIdx.x; k < p.width; k += blockDim.x) {
        A v = x[k], slope = g;
        if (p.is_capped) {
            A t = m_tanh(v / (A)p.cap);
            v = t * (A)p.cap;
            slope *= (A)1 - t * t;
        }
        out[k] = narrow<T>((m_exp(v - lse) - (A)(p.start + k == label)) * slope);
    }
}
KERNEL(narrow_sums, P) {
    EACH(i, p.count) p.dx[i] = narrow<T>(p.sums[i]);
}
