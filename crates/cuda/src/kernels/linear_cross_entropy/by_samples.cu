// A linear layer with cross-entropy: all logits of some samples at a time, a block a sample. I is the type of labels, VEC how many logits a thread takes
// at a time.

struct P {
    const A *logits;
    const void *labels;
    A *loss, *lse;
    const A *dloss;
    // The gradients of all logits, a piece of the classes after the other, each where the layer's gradient of its classes will be.
    T *slopes;
    i64 first, rows, classes, width, piece;
    i64 makes_losses, is_capped;
    double cap;
    i64 *flag;
    i64 code;
};
DEV A capped(const P &p, A x) { return p.is_capped ? (A)p.cap * m_tanh(x / (A)p.cap) : x; }

KERNEL(samples, P) {
    i64 row = p.first + blockIdx.x, step = (i64)blockDim.x * VEC;
    const A *x = p.logits + (i64)blockIdx.x * p.classes;
    i64 label = checked_label((i64)((const I *)p.labels)[row], row, p.classes, p.flag, p.code, threadIdx.x == 0);
    A lse;
    if (p.makes_losses) {
        A m = Limit<A>::lowest(), s = (A)0;
        for (i64 k = (i64)threadIdx.x * VEC; k < p.classes; k += step) {
            Logits v = *(const Logits *)(x + k);
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                A l = capped(p, v.x[i]);
                if (l > m) {
                    s = moved(s, m, l);
                    m = l;
                }
                s += m_exp(l - base_of(m));
            }
        }
        A top = in_block<Largest>(m), log = m_log(in_block<Sum>(moved(s, m, top)));
        lse = top + log;
        if (threadIdx.x == 0) {
            p.loss[row] = label < 0 ? (A)0 : log + (top - capped(p, x[label]));
            if (p.lse) p.lse[row] = lse;
        }
    } else {
        lse = p.lse[row];
    }
    if (!p.slopes) return;
    A g = p.dloss[row];
    for (i64 start = 0; start < p.classes; start += p.piece) {
        i64 n = p.piece < p.classes - start ? p.piece : p.classes - start;
        T *out = p.slopes + start * p.width + row * n;
        for (i64 k = (i64)threadIdx.x * VEC; k < n; k += step) {
            Logits v = *(const Logits *)(x + start + k);
            Slopes y;
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                A l = v.x[i], slope = g;
                if (p.is_capped) {
                    A t = m_tanh(l / (A)p.cap);
                    l = t * (A)p.cap;
                    slope *= (A)1 - t * t;
                }
                y.x[i] = narrow<T>((m_exp(l - lse) - (A)(start + k + i == label)) * slope);
            }
            *(Slopes *)(out + k) = y;
        }
    }
}

struct Moves {
    const T *from;
    T *to;
    const A *sums;
    T *dx;
    i64 count;
};
// What a product reads from here while its result is written over where it was.
KERNEL(stage, Moves) {
    i64 packs = p.count / 8;
    EACH(i, packs) store_pack<T, 8>(p.to, i * 8, load_pack<T, 8>(p.from, i * 8));
    EACH(i, p.count - packs * 8) p.to[packs * 8 + i] = p.from[packs * 8 + i];
}
KERNEL(narrow_sums, Moves) {
    EACH(i, p.count) p.dx[i] = narrow<T>(p.sums[i]);
}
