// Sums and means of the columns of a dense matrix.

struct P {
    const T *x;
    T *y;
    A *partial;
    i64 rows;
    i64 columns;
    i64 pieces;
    i64 divide;
};
KERNEL(sums, P) {
    Columns m(p.rows, p.columns, p.pieces);
    A sum[N];
    for (int e = 0; e < N; e++) sum[e] = (A)0;
#pragma unroll 4
    for (i64 r = m.start; r < m.end; r += DOWN) {
        Pack<T, N> x = load_pack<T, N>(p.x, r * m.columns + m.c);
#pragma unroll
        for (int e = 0; e < N; e++) sum[e] += (A)widen(x.v[e]);
    }
    keep_columns(m, p.partial, 0, 1, sum);
}
KERNEL(join, P) {
    A sum = join_columns(p.partial, p.columns, p.pieces, 0, 1);
    i64 c = (i64)blockIdx.x * 32 + threadIdx.x;
    if (threadIdx.x >= 32 || c >= p.columns) return;
    p.y[c] = narrow<T>(p.divide ? sum / (A)p.rows : sum);
}
