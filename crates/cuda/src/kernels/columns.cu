// The columns of a matrix: how they are shared out among threads, and how sums of them are joined.
//
// A thread has N columns side by side; a block has ACROSS threads side by side and DOWN below each other, which take turns at the
// rows of a piece. Pieces are a matter of shape alone, and everything is added in order.

#define DOWN (256 / ACROSS)
struct Columns {
    i64 rows;
    i64 columns;
    i64 pieces;
    // Of this thread.
    i64 c;
    i64 start;
    i64 end;
    DEV Columns(i64 rows, i64 columns, i64 pieces) : rows(rows), columns(columns), pieces(pieces) {
        i64 chunk = (rows + pieces - 1) / pieces, last = ((i64)blockIdx.y + 1) * chunk;
        c = ((i64)blockIdx.x * ACROSS + threadIdx.x % ACROSS) * N;
        start = blockIdx.y * chunk + threadIdx.x / ACROSS;
        end = c >= columns ? 0 : last < rows ? last : rows;
    }
};
// Adds up what the threads of a block have of one kind of sum, of `kinds` kinds, and keeps it.
template <class A> DEV void keep_columns(const Columns &m, A *partial, int kind, int kinds, const A *sum) {
    __shared__ A all[DOWN][ACROSS * N];
    int across = threadIdx.x % ACROSS * N, down = threadIdx.x / ACROSS;
    __syncthreads();
    for (int e = 0; e < N; e++) all[down][across + e] = sum[e];
    __syncthreads();
    for (int at = threadIdx.x; at < ACROSS * N; at += 256) {
        i64 c = (i64)blockIdx.x * ACROSS * N + at;
        if (c >= m.columns) continue;
        A s = all[0][at];
        for (int d = 1; d < DOWN; d++) s += all[d][at];
        partial[((i64)blockIdx.y * kinds + kind) * m.columns + c] = s;
    }
}
// The sum of all pieces for a column; a block of 256 has 32 columns, and the first 32 threads have the result.
template <class A> DEV A join_columns(const A *partial, i64 columns, i64 pieces, int kind, int kinds) {
    __shared__ A some[8][33];
    int t = threadIdx.x % 32, down = threadIdx.x / 32;
    i64 c = (i64)blockIdx.x * 32 + t;
    A s = (A)0;
    if (c < columns)
        for (i64 piece = down; piece < pieces; piece += 8) s += partial[(piece * kinds + kind) * columns + c];
    __syncthreads();
    some[down][t] = s;
    __syncthreads();
    for (int d = 1; d < 8 && down == 0; d++) s += some[d][t];
    return s;
}
