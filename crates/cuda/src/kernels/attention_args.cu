// What all kernels of attention are told. Operands that one of them has no use for are null.

struct P {
    const T *q;
    const T *k;
    const T *v;
    const T *mask;
    const T *o;
    const A *lse;
    const T *d_o;
    T *to0;
    T *to1;
    A *sums;
    i64 batch;
    i64 tq;
    i64 tk;
    i64 heads;
    i64 kv_heads;
    i64 causal;
    i64 mask_batch;
    i64 mask_head;
    i64 mask_query;
    double scale;
};
