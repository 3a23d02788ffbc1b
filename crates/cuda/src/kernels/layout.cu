// Elements that are made or moved but not computed. T is an unsigned type of the elements' size.

#ifdef RANK
struct Copy {
    i64 n;
    const T *x;
    T *y;
    i64 rank;
    i64 length[8];
    i64 from[8];
    i64 to[8];
};
KERNEL(move, Copy) {
    for (Index i = (Index)blockIdx.x * blockDim.x + threadIdx.x; i < p.n; i += (Index)gridDim.x * blockDim.x) {
        Index r = i;
        i64 from = 0, to = 0;
#pragma unroll
        for (int a = RANK - 1; a >= 0; a--) {
            Index l = (Index)p.length[a], k = a == 0 ? r : r % l;
            r /= l;
            from += k * p.from[a];
            to += k * p.to[a];
        }
        p.y[to] = p.x[from];
    }
}
#elif defined(TURNED)
// A matrix a block of 32 by 32 at a time, so that both sides pass memory in order.
struct Turn {
    i64 rows;
    i64 columns;
    i64 across;
    const T *x;
    T *y;
};
KERNEL(turn, Turn) {
    __shared__ T tile[32][33];
    i64 tiles = (p.columns + 31) / 32, r0 = blockIdx.x / tiles * 32, c0 = blockIdx.x % tiles * 32;
    int tx = threadIdx.x % 32, ty = threadIdx.x / 32;
    const T *x = p.x + (i64)blockIdx.y * p.rows * p.columns;
    T *y = p.y + (i64)blockIdx.y * p.rows * p.columns;
    for (int k = ty; k < 32; k += 8)
        if (r0 + k < p.rows && c0 + tx < p.columns) tile[k][tx] = x[(r0 + k) * p.columns + c0 + tx];
    __syncthreads();
    for (int k = ty; k < 32; k += 8)
        if (c0 + k < p.columns && r0 + tx < p.rows) y[(c0 + k) * p.rows + r0 + tx] = tile[tx][k];
}
#elif defined(ROWS)
// Rows to where rows lie that are as long, or further apart.
struct Rows {
    i64 width, blocks, from_row, to_row;
    const T *x;
    T *y;
};
KERNEL(rows, Rows) {
    i64 row = blockIdx.x / p.blocks, first = blockIdx.x % p.blocks * 2048 + threadIdx.x;
    const T *x = p.x + row * p.from_row;
    T *y = p.y + row * p.to_row;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        i64 c = first + i * 256;
        if (c < p.width) y[c] = x[c];
    }
}
#else
struct Fill {
    i64 n;
    T *y;
    u64 bits;
};
KERNEL(fill, Fill) {
    EACH(i, p.n) p.y[i] = (T)p.bits;
}
#endif
