// Softmax, its logarithm and their gradients; a block a line.

struct P {
    const T *x;
    const T *dy;
    T *y;
    i64 length;
    i64 inner;
};
#define LINE                                                                                                           \
    i64 base = (i64)blockIdx.x / p.inner * p.length * p.inner + blockIdx.x % p.inner;                                 \
    int t = threadIdx.x, step = blockDim.x;
#define AT(k) (base + (i64)(k) * p.inner)
DEV A log_sum(const P &p, i64 base, A &most) {
    int t = threadIdx.x, step = blockDim.x;
    A m = Limit<A>::lowest();
    for (i64 k = t; k < p.length; k += step) m = larger(m, (A)widen(p.x[AT(k)]));
    most = in_block<Largest>(m);
    A s = (A)0;
    for (i64 k = t; k < p.length; k += step) s += m_exp((A)widen(p.x[AT(k)]) - most);
    return in_block<Sum>(s);
}
KERNEL(softmax, P) {
    LINE;
    A most, sum = log_sum(p, base, most);
    for (i64 k = t; k < p.length; k += step) p.y[AT(k)] = narrow<T>(m_exp((A)widen(p.x[AT(k)]) - most) / sum);
}
KERNEL(log_softmax, P) {
    LINE;
    A most, sum = log_sum(p, base, most), lse = most + m_log(sum);
    for (i64 k = t; k < p.length; k += step) p.y[AT(k)] = narrow<T>((A)widen(p.x[AT(k)]) - lse);
}
KERNEL(softmax_grad, P) {
    LINE;
    A s = (A)0;
    for (i64 k = t; k < p.length; k += step) s += (A)widen(p.x[AT(k)]) * (A)widen(p.dy[AT(k)]);
    s = in_block<Sum>(s);
    for (i64 k = t; k < p.length; k += step)
        p.y[AT(k)] = narrow<T>((A)widen(p.x[AT(k)]) * ((A)widen(p.dy[AT(k)]) - s));
}
KERNEL(log_softmax_grad, P) {
    LINE;
    A s = (A)0;
    for (i64 k = t; k < p.length; k += step) s += (A)widen(p.dy[AT(k)]);
    s = in_block<Sum>(s);
    for (i64 k = t; k < p.length; k += step)
        p.y[AT(k)] = narrow<T>((A)widen(p.dy[AT(k)]) - m_exp((A)widen(p.x[AT(k)])) * s);
}
