// A product of matrices with any strides and element types: TA, TB and TC. Where cuBLASLt cannot be used.

struct P {
    const TA *a;
    const TB *b;
    TC *c;
    const TC *bias;
    i64 m, n, k, a_row, a_column, a_batch, b_row, b_column, b_batch, c_row, c_batch, accumulate;
    const TC *onto;
    double scale, s0, s1;
};
struct Left {
    static const bool DEEP = A_DEEP;
    const TA *x;
    i64 row, column;
    DEV A at(i64 r, i64 k) { return (A)widen(x[r * row + k * column]); }
};
struct Right {
    static const bool DEEP = B_DEEP;
    const TB *x;
    i64 row, column;
    DEV A at(i64 k, i64 c) { return (A)widen(x[k * row + c * column]); }
};
struct Out {
    const P *params;
    TC *y;
    const TC *onto;
    DEV void put(i64 r, i64 c, A v) {
        const P &p = *params;
        v *= (A)p.scale;
        if (p.accumulate) v += (A)widen(onto[r * p.c_row + c]);
        if (p.bias) v += (A)widen(p.bias[c]);
        y[r * p.c_row + c] = narrow<TC>(ACT(v));
    }
};
KERNEL(product, P) {
    i64 z = blockIdx.y;
    Left left = {p.a + z * p.a_batch, p.a_row, p.a_column};
    Right right = {p.b + z * p.b_batch, p.b_row, p.b_column};
    Out out = {&p, p.c + z * p.c_batch, p.onto + z * p.c_batch};
    tile_product(left, right, out, p.m, p.n, 0, p.k);
}
