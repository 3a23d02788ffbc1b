// Cross-entropy of logits; a block a sample. I is the type of labels.

struct P {
    const T *x;
    const void *target;
    const A *lse;
    const A *dloss;
    A *loss;
    A *sum;
    T *dx;
    i64 classes;
    i64 *flag;
    i64 code;
};
DEV A log_sum_exp(const T *x, i64 n) {
    A m = Limit<A>::lowest();
    for (i64 k = threadIdx.x; k < n; k += blockDim.x) m = larger(m, (A)widen(x[k]));
    m = in_block<Largest>(m);
    A s = (A)0;
    for (i64 k = threadIdx.x; k < n; k += blockDim.x) s += m_exp((A)widen(x[k]) - m);
    return m + m_log(in_block<Sum>(s));
}
DEV i64 label_of(const P &p, i64 row) {
    i64 label = (i64)((const I *)p.target)[row];
    if (label >= 0 && label < p.classes) return label;
    if (threadIdx.x == 0) raise(p.flag, p.code, row, label, p.classes);
    return -1;
}
KERNEL(cross_entropy, P) {
    i64 row = blockIdx.x;
    const T *x = p.x + row * p.classes;
    i64 label = label_of(p, row);
    A lse = log_sum_exp(x, p.classes);
    if (threadIdx.x != 0) return;
    p.loss[row] = lse - (label < 0 ? (A)0 : (A)widen(x[label]));
    p.sum[row] = lse;
}
KERNEL(cross_entropy_grad, P) {
    i64 row = blockIdx.x, start = row * p.classes, label = label_of(p, row);
    A lse = p.lse[row], g = p.dloss[row];
    for (i64 k = threadIdx.x; k < p.classes; k += blockDim.x)
        p.dx[start + k] = narrow<T>(g * (m_exp((A)widen(p.x[start + k]) - lse) - (A)(k == label)));
}
KERNEL(dense_cross_entropy, P) {
    i64 row = blockIdx.x;
    const T *x = p.x + row * p.classes, *t = (const T *)p.target + row * p.classes;
    A lse = log_sum_exp(x, p.classes), s = (A)0;
    for (i64 k = threadIdx.x; k < p.classes; k += blockDim.x) s += (A)widen(t[k]) * (lse - (A)widen(x[k]));
    s = in_block<Sum>(s);
    if (threadIdx.x != 0) return;
    p.loss[row] = s;
    p.sum[row] = lse;
}
KERNEL(dense_cross_entropy_grad, P) {
    i64 row = blockIdx.x, start = row * p.classes;
    const T *t = (const T *)p.target + start;
    A lse = p.lse[row], g = p.dloss[row], s = (A)0;
    for (i64 k = threadIdx.x; k < p.classes; k += blockDim.x) s += (A)widen(t[k]);
    s = in_block<Sum>(s);
    for (i64 k = threadIdx.x; k < p.classes; k += blockDim.x)
        p.dx[start + k] = narrow<T>(g * (m_exp((A)widen(p.x[start + k]) - lse) * s - (A)widen(t[k])));
}
