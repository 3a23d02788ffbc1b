// A frozen linear layer with cross-entropy: all logits of a sample become its loss, then their own gradient, in their own place. I is the type of
// labels, VEC how many logits a thread takes at a time.

struct P {
    A *logits;
    const void *labels;
    A *loss;
    const A *parts;
    T *dx;
    i64 first, classes, count, pieces;
    i64 *flag;
    i64 code;
};

KERNEL(losses, P) {
    i64 row = blockIdx.x, step = (i64)blockDim.x * VEC;
    A *x = p.logits + row * p.classes;
    A m = Limit<A>::lowest(), s = (A)0;
    for (i64 k = (i64)threadIdx.x * VEC; k < p.classes; k += step) {
        Logits v = *(const Logits *)(x + k);
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            if (v.x[i] > m) {
                s = moved(s, m, v.x[i]);
                m = v.x[i];
            }
            s += m_exp(v.x[i] - base_of(m));
        }
    }
    A top = in_block<Largest>(m);
    A log = m_log(in_block<Sum>(moved(s, m, top))), lse = top + log;
    i64 label = checked_label((i64)((const I *)p.labels)[p.first + row], p.first + row, p.classes, p.flag, p.code,
                              threadIdx.x == 0);
    if (threadIdx.x == 0) p.loss[p.first + row] = label < 0 ? (A)0 : log + (top - x[label]);
    // Gradients are no longer than logits and lie from the row's beginning on: what is written was read by all before.
    T *out = (T *)x;
    for (i64 k0 = 0; k0 < p.classes; k0 += step) {
        i64 k = k0 + (i64)threadIdx.x * VEC;
        bool there = k < p.classes;
        Logits v;
        if (there) v = *(const Logits *)(x + k);
        __syncthreads();
        if (!there) continue;
        Slopes y;
#pragma unroll
        for (int i = 0; i < VEC; i++) y.x[i] = narrow<T>(m_exp(v.x[i] - lse) - (A)(k + i == label));
        *(Slopes *)(out + k) = y;
    }
}
// dx of a piece, from the sums over parts of the classes, in their order.
KERNEL(join, P) {
    EACH(i, p.count) {
        A sum = (A)0;
        for (i64 piece = 0; piece < p.pieces; piece++) sum += p.parts[piece * p.count + i];
        p.dx[i] = narrow<T>(sum);
    }
}
