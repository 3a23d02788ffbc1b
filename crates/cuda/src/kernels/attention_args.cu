// What all kernels of attention are told. Operands that one of them has no use for are null.

struct P {
    const T *q, *k, *v, *mask, *o;
    const A *lse;
    const T *d_o;
    T *to0, *to1;
    A *sums;
    i64 batch, tq, tk, heads, kv_heads, causal, mask_batch, mask_head, mask_query;
    double scale;
};
