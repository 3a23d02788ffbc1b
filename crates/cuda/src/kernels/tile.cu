// A product of two matrices by tiles of 64 by 64: 256 threads, 4 by 4 results each. Where elements come from and where
// results go is the business of three structs, so that convolutions read their windows without storing them.

#define TILE 64
#define DEPTH 16
template <class Left, class Right, class Out>
DEV void tile_product(Left &left, Right &right, Out &out, i64 m, i64 n, i64 start, i64 end) {
    __shared__ A a[DEPTH][TILE + 4], b[DEPTH][TILE + 4];
    int t = threadIdx.x, tx = t % 16, ty = t / 16;
    i64 across = (n + TILE - 1) / TILE, row = (i64)blockIdx.x / across * TILE, column = (i64)blockIdx.x % across * TILE;
    A sum[4][4];
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) sum[i][j] = (A)0;
    for (i64 k0 = start; k0 < end; k0 += DEPTH) {
        for (int e = t; e < TILE * DEPTH; e += 256) {
            int r = Left::DEEP ? e / DEPTH : e % TILE, k = Left::DEEP ? e % DEPTH : e / TILE;
            a[k][r] = row + r < m && k0 + k < end ? left.at(row + r, k0 + k) : (A)0;
        }
        for (int e = t; e < TILE * DEPTH; e += 256) {
            int c = Right::DEEP ? e / DEPTH : e % TILE, k = Right::DEEP ? e % DEPTH : e / TILE;
            b[k][c] = column + c < n && k0 + k < end ? right.at(k0 + k, column + c) : (A)0;
        }
        __syncthreads();
        for (int k = 0; k < DEPTH; k++) {
            A x[4], y[4];
            for (int i = 0; i < 4; i++) x[i] = a[k][ty * 4 + i];
            for (int j = 0; j < 4; j++) y[j] = b[k][tx * 4 + j];
            for (int i = 0; i < 4; i++)
                for (int j = 0; j < 4; j++) sum[i][j] += x[i] * y[j];
        }
        __syncthreads();
    }
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) {
            i64 r = row + ty * 4 + i, c = column + tx * 4 + j;
            if (r < m && c < n) out.put(r, c, sum[i][j]);
        }
}
