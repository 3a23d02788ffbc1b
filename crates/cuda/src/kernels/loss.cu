// Cross-entropy of logits; a block a sample. I is the type of labels, N the classes that a thread takes at once; where rows do not begin
// at multiples of N, ANYWHERE is set.

struct P {
    const T *x;
    const void *target;
    const A *lse, *dloss;
    A *loss, *sum;
    T *dx;
    i64 rows, classes;
    i64 *flag;
    i64 code;
};
// The exponential of x - top. Logits of 16 bits have errors beside which that of the fast function is nothing, and with a large
// vocabulary the exact one takes longer than memory does.
DEV A below(A x, A top) {
#if SHORT
    return power_of_two((x - top) * 1.4426950408889634f);
#else
    return m_exp(x - top);
#endif
}
// A row that begins anywhere: elements before its first whole pack, whole packs, and elements behind them, of which each thread has one
// at most.
struct Ends {
    i64 head, body, tail;
    DEV Ends(i64 start, i64 n) {
        head = ANYWHERE ? (N - start % N) % N : 0;
        body = (n - head) / N * N;
        tail = n - head - body;
    }
    // The element of this thread, or -1.
    DEV i64 own() const {
        if (!ANYWHERE) return -1;
        if (threadIdx.x < head) return threadIdx.x;
        i64 k = threadIdx.x - head;
        return k < tail ? head + body + k : -1;
    }
};
// Differences from the lowest value are not numbers: where nothing is above it, zero stands for it.
DEV A base_of(A top) { return top == Limit<A>::lowest() ? (A)0 : top; }
// Rows are passed once: each thread keeps its largest value and the sum of exponentials below it. A not-a-number is not the largest,
// but the sum becomes one.
DEV A log_sum_exp(const T *all, i64 start, i64 n) {
    Ends ends(start, n);
    const T *x = all + start;
    i64 own = ends.own();
    A m = own < 0 ? Limit<A>::lowest() : (A)widen(x[own]), s = own < 0 ? (A)0 : below(m, base_of(m));
#pragma unroll 4
    for (i64 k = threadIdx.x * N; k < ends.body; k += blockDim.x * N) {
        Pack<T, N> v = load_pack<T, N>(x + ends.head, k);
        A top = m;
#pragma unroll
        for (int e = 0; e < N; e++) top = (A)widen(v.v[e]) > top ? (A)widen(v.v[e]) : top;
        A base = base_of(top);
        s *= below(m, base);
#pragma unroll
        for (int e = 0; e < N; e++) s += below((A)widen(v.v[e]), base);
        m = top;
    }
    A top = in_block<Largest>(m);
    s *= below(base_of(m), base_of(top));
    return top + m_log(in_block<Sum>(s));
}
DEV T slope(T x, A lse, A g, bool is_label) { return narrow<T>(g * (m_exp((A)widen(x) - lse) - (A)is_label)); }
DEV i64 label_of(const P &p, i64 row, bool tells) {
    return checked_label((i64)((const I *)p.target)[row], row, p.classes, p.flag, p.code, tells);
}
KERNEL(cross_entropy, P) {
    i64 row = blockIdx.x;
    const T *x = p.x + row * p.classes;
    i64 label = label_of(p, row, threadIdx.x == 0);
    A lse = log_sum_exp(p.x, row * p.classes, p.classes);
    if (threadIdx.x != 0) return;
    p.loss[row] = lse - (label < 0 ? (A)0 : (A)widen(x[label]));
    p.sum[row] = lse;
}
KERNEL(cross_entropy_grad, P) {
    i64 row = blockIdx.x, start = row * p.classes, label = label_of(p, row, threadIdx.x == 0);
    A lse = p.lse[row], g = p.dloss[row];
    Ends ends(start, p.classes);
    for (i64 k = ends.head + threadIdx.x * N; k < ends.head + ends.body; k += blockDim.x * N) {
        Pack<T, N> x = load_pack<T, N>(p.x, start + k);
#pragma unroll
        for (int e = 0; e < N; e++) x.v[e] = slope(x.v[e], lse, g, k + e == label);
        store_pack<T, N>(p.dx, start + k, x);
    }
    i64 own = ends.own();
    if (own >= 0) p.dx[start + own] = slope(p.x[start + own], lse, g, own == label);
}
// The same for few classes: a thread a sample.
KERNEL(few_cross_entropy, P) {
    EACH(row, p.rows) {
        const T *x = p.x + row * p.classes;
        i64 label = label_of(p, row, true);
        A m = Limit<A>::lowest(), s = (A)0;
        for (i64 k = 0; k < p.classes; k++) m = larger(m, (A)widen(x[k]));
        for (i64 k = 0; k < p.classes; k++) s += m_exp((A)widen(x[k]) - m);
        A lse = m + m_log(s);
        p.loss[row] = lse - (label < 0 ? (A)0 : (A)widen(x[label]));
        p.sum[row] = lse;
    }
}
KERNEL(few_cross_entropy_grad, P) {
    EACH(row, p.rows) {
        i64 start = row * p.classes, label = label_of(p, row, true);
        A lse = p.lse[row], g = p.dloss[row];
        for (i64 k = 0; k < p.classes; k++)
            p.dx[start + k] = slope(p.x[start + k], lse, g, k == label);
    }
}
KERNEL(dense_cross_entropy, P) {
    i64 row = blockIdx.x;
    const T *x = p.x + row * p.classes, *t = (const T *)p.target + row * p.classes;
    A lse = log_sum_exp(p.x, row * p.classes, p.classes), s = (A)0;
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
