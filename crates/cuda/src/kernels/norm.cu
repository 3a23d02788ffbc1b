// The four norms as one: x is [samples, positions, groups, part]; a sample and a group share statistics, a group and a
// place in its part share a scale. Layer and RMS norm have one group and one position, batch norm has one sample and as
// many groups as channels. Y is the type of the result and of its gradient, T that of x and of dx, R that of dx once more where it is rounded.

struct P {
    const T *x;
    const A *gamma, *beta, *mean, *rstd;
    const Y *dy;
    T *y;
    A *out_mean, *out_var, *out_rstd, *dgamma, *dbeta, *partial;
    i64 samples, positions, groups, part, pieces;
    double eps;
    const T *added;
    R *rounded;
};
// An element of dx, with what is added to it.
DEV void put_dx(const P &p, i64 at, A dx) {
    if (p.added) dx = (A)widen(narrow<T>(dx)) + (A)widen(p.added[at]);
    p.y[at] = narrow<T>(dx);
    if (p.rounded) p.rounded[at] = narrow<R>(dx);
}

#if WAY == 0
// Any shape: a block a set of elements that share statistics.
#define SET                                                                                                            \
    i64 s = blockIdx.x / p.groups, g = blockIdx.x % p.groups, n = p.positions * p.part;                               \
    (void)s;
#define AT(j) (((s * p.positions + (j) / p.part) * p.groups + g) * p.part + (j) % p.part)
#define EACH_OF_SET(j) for (i64 j = threadIdx.x; j < n; j += blockDim.x)

KERNEL(forward, P) {
    SET;
    A mean = (A)0;
    if (p.beta) {
        EACH_OF_SET(j) mean += (A)widen(p.x[AT(j)]);
        mean = in_block<Sum>(mean) / (A)n;
    }
    A var = (A)0;
    EACH_OF_SET(j) {
        A d = (A)widen(p.x[AT(j)]) - mean;
        var += d * d;
    }
    var = in_block<Sum>(var) / (A)n;
    A rstd = (A)1 / m_sqrt(var + (A)p.eps);
    if (threadIdx.x == 0) {
        if (p.out_mean) p.out_mean[blockIdx.x] = mean;
        p.out_rstd[blockIdx.x] = rstd;
    }
    EACH_OF_SET(j) {
        i64 c = g * p.part + j % p.part;
        A v = ((A)widen(p.x[AT(j)]) - mean) * rstd * p.gamma[c] + (p.beta ? p.beta[c] : (A)0);
        ((Y *)p.y)[AT(j)] = narrow<Y>(v);
    }
}
KERNEL(backward, P) {
    SET;
    A mean = p.mean ? p.mean[blockIdx.x] : (A)0, rstd = p.rstd[blockIdx.x], a = (A)0, b = (A)0;
    EACH_OF_SET(j) {
        A v = (A)widen(p.dy[AT(j)]) * p.gamma[g * p.part + j % p.part];
        a += v;
        b += v * ((A)widen(p.x[AT(j)]) - mean) * rstd;
    }
    a = in_block<Sum>(a) / (A)n;
    b = in_block<Sum>(b) / (A)n;
    if (!p.mean) a = (A)0;
    EACH_OF_SET(j) {
        A v = (A)widen(p.dy[AT(j)]) * p.gamma[g * p.part + j % p.part];
        A x = ((A)widen(p.x[AT(j)]) - mean) * rstd;
        put_dx(p, AT(j), rstd * (v - a - x * b));
    }
}
KERNEL(scale_sums, P) {
    Columns m(p.samples * p.positions, p.groups * p.part, p.pieces);
    A sum[2][N];
    for (int e = 0; e < N; e++) sum[0][e] = sum[1][e] = (A)0;
    for (i64 r = m.start; r < m.end; r += DOWN)
        for (int e = 0; e < N; e++) {
            i64 at = r / p.positions * p.groups + (m.c + e) / p.part;
            A dy = widen(p.dy[r * m.columns + m.c + e]), mean = p.mean ? p.mean[at] : (A)0;
            sum[0][e] += dy * ((A)widen(p.x[r * m.columns + m.c + e]) - mean) * p.rstd[at];
            sum[1][e] += dy;
        }
    for (int k = 0; k < 2; k++) keep_columns(m, p.partial, k, 2, sum[k]);
}
#endif

#if WAY == 1
// Layer and RMS norm with rows of up to 32 · WARPS · PACKS · N elements: WARPS warps a row, which stays in registers.
#define LANES (32 * WARPS)
#define ROWS (8 / WARPS)
// Two sums over a row, the same on all of its lanes. Every thread of the block comes here.
DEV void in_row(A &a, A &b) {
    for (int d = 16; d > 0; d /= 2) {
        a += (A)__shfl_xor_sync(0xffffffffu, a, d);
        b += (A)__shfl_xor_sync(0xffffffffu, b, d);
    }
#if WARPS > 1
    __shared__ A parts[16];
    int warp = threadIdx.x / 32, first = warp / WARPS * WARPS;
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        parts[2 * warp] = a;
        parts[2 * warp + 1] = b;
    }
    __syncthreads();
    a = b = (A)0;
    for (int w = first; w < first + WARPS; w++) {
        a += parts[2 * w];
        b += parts[2 * w + 1];
    }
#endif
}
#define EACH_OF_ROW(k, e)                                                                                              \
    _Pragma("unroll") for (int k = 0; k < PACKS; k++) _Pragma("unroll") for (int e = 0; e < N; e++)
#define COLUMN(k) ((k * LANES + (int)threadIdx.x % LANES) * N)
// A row as it is stored, zeros where there is none.
template <class S> DEV void fetch(Pack<S, N> *v, const S *x, i64 part, bool there) {
#pragma unroll
    for (int k = 0; k < PACKS; k++) {
        bool inside = there && COLUMN(k) < part;
        if (inside) v[k] = load_pack<S, N>(x, COLUMN(k));
#pragma unroll
        for (int e = 0; e < N && !inside; e++) v[k].v[e] = narrow<S>((A)0);
    }
}
DEV void row_in(A (*v)[N], const T *x, i64 part, bool there) {
    Pack<T, N> stored[PACKS];
    fetch(stored, x, part, there);
    EACH_OF_ROW(k, e) v[k][e] = (A)widen(stored[k].v[e]);
}
KERNEL(forward, P) {
    i64 row = (i64)blockIdx.x * ROWS + threadIdx.x / LANES;
    bool there = row < p.samples;
    A v[PACKS][N], mean = (A)0, var = (A)0, none = (A)0;
    row_in(v, p.x + row * p.part, p.part, there);
    if (p.beta) {
        EACH_OF_ROW(k, e) mean += v[k][e];
        in_row(mean, none);
        mean /= (A)p.part;
    }
    EACH_OF_ROW(k, e) {
        A d = COLUMN(k) < p.part ? v[k][e] - mean : (A)0;
        var += d * d;
    }
    in_row(var, none);
    var /= (A)p.part;
    A rstd = (A)1 / m_sqrt(var + (A)p.eps);
    if (!there) return;
    if (threadIdx.x % LANES == 0) {
        if (p.out_mean) p.out_mean[row] = mean;
        p.out_rstd[row] = rstd;
    }
#pragma unroll
    for (int k = 0; k < PACKS; k++) {
        if (COLUMN(k) >= p.part) break;
        Pack<A, N> gamma = load_pack<A, N>(p.gamma, COLUMN(k)), beta;
        if (p.beta) beta = load_pack<A, N>(p.beta, COLUMN(k));
        Pack<Y, N> y;
#pragma unroll
        for (int e = 0; e < N; e++)
            y.v[e] = narrow<Y>((v[k][e] - mean) * rstd * gamma.v[e] + (p.beta ? beta.v[e] : (A)0));
        store_pack<Y, N>((Y *)p.y + row * p.part, COLUMN(k), y);
    }
}
// A piece of rows a block; each row's warps add up the scales' gradients of their rows, the block those of all.
KERNEL(backward, P) {
    DYNAMIC_SHARED(A, shared);
    i64 chunk = (p.samples + p.pieces - 1) / p.pieces, start = blockIdx.x * chunk, end = start + chunk;
    if (end > p.samples) end = p.samples;
    int group = threadIdx.x / LANES;
    A gamma[PACKS][N], dgamma[PACKS][N], dbeta[PACKS][N];
    EACH_OF_ROW(k, e) {
        dgamma[k][e] = dbeta[k][e] = (A)0;
        gamma[k][e] = COLUMN(k) < p.part ? p.gamma[COLUMN(k) + e] : (A)0;
    }
    // The next row is on its way while this one is worked on.
    Pack<T, N> next_x[PACKS];
    Pack<Y, N> next_dy[PACKS];
    fetch(next_x, p.x + (start + group) * p.part, p.part, start + group < end);
    fetch(next_dy, p.dy + (start + group) * p.part, p.part, start + group < end);
    // All warps go round equally often: they meet in sums and below.
    for (i64 first = start; first < end; first += ROWS) {
        i64 row = first + group;
        bool there = row < end;
        A x[PACKS][N], dy[PACKS][N], a = (A)0, b = (A)0;
        EACH_OF_ROW(k, e) {
            x[k][e] = (A)widen(next_x[k].v[e]);
            dy[k][e] = (A)widen(next_dy[k].v[e]);
        }
        fetch(next_x, p.x + (row + ROWS) * p.part, p.part, row + ROWS < end);
        fetch(next_dy, p.dy + (row + ROWS) * p.part, p.part, row + ROWS < end);
        Pack<T, N> added[PACKS];
        if (p.added) fetch(added, p.added + row * p.part, p.part, there);
        A mean = there && p.mean ? p.mean[row] : (A)0, rstd = there ? p.rstd[row] : (A)0;
        EACH_OF_ROW(k, e) {
            A n = (x[k][e] - mean) * rstd, v = dy[k][e] * gamma[k][e];
            x[k][e] = n;
            a += v;
            b += v * n;
            dgamma[k][e] += dy[k][e] * n;
            dbeta[k][e] += dy[k][e];
        }
        in_row(a, b);
        a /= (A)p.part;
        b /= (A)p.part;
        if (!p.mean) a = (A)0;
        if (!there) continue;
#pragma unroll
        for (int k = 0; k < PACKS; k++) {
            if (COLUMN(k) >= p.part) break;
            Pack<T, N> to;
            Pack<R, N> rounded;
#pragma unroll
            for (int e = 0; e < N; e++) {
                to.v[e] = narrow<T>(rstd * (dy[k][e] * gamma[k][e] - a - x[k][e] * b));
                if (p.added) to.v[e] = narrow<T>((A)widen(to.v[e]) + (A)widen(added[k].v[e]));
                rounded.v[e] = narrow<R>((A)widen(to.v[e]));
            }
            store_pack<T, N>(p.y + row * p.part, COLUMN(k), to);
            if (p.rounded) store_pack<R, N>(p.rounded + row * p.part, COLUMN(k), rounded);
        }
    }
    for (int kind = 0; kind < 2; kind++)
        for (int g = 0; g < ROWS; g++) {
            __syncthreads();
            if (group == g)
                EACH_OF_ROW(k, e)
                    if (COLUMN(k) < p.part) {
                        A own = kind ? dbeta[k][e] : dgamma[k][e], *sum = shared + kind * p.part + COLUMN(k) + e;
                        *sum = g ? *sum + own : own;
                    }
        }
    __syncthreads();
    for (i64 i = threadIdx.x; i < 2 * p.part; i += blockDim.x) p.partial[(i64)blockIdx.x * 2 * p.part + i] = shared[i];
}
#endif

#if WAY == 2
// Batch norm, with a relu behind it where RELU is 1: sums of columns. The first row is taken off, so that squares stay small beside a large mean.
KERNEL(moments, P) {
    Columns m(p.positions, p.groups, p.pieces);
    A sum[2][N], shift[N];
    for (int e = 0; e < N; e++) {
        sum[0][e] = sum[1][e] = (A)0;
        shift[e] = m.c < m.columns ? (A)widen(p.x[m.c + e]) : (A)0;
    }
#pragma unroll 4
    for (i64 r = m.start; r < m.end; r += DOWN) {
        Pack<T, N> x = load_pack<T, N>(p.x, r * m.columns + m.c);
#pragma unroll
        for (int e = 0; e < N; e++) {
            A d = (A)widen(x.v[e]) - shift[e];
            sum[0][e] += d;
            sum[1][e] += d * d;
        }
    }
    for (int k = 0; k < 2; k++) keep_columns(m, p.partial, k, 2, sum[k]);
}
KERNEL(statistics, P) {
    A a = join_columns(p.partial, p.groups, p.pieces, 0, 2), b = join_columns(p.partial, p.groups, p.pieces, 1, 2);
    i64 c = (i64)blockIdx.x * 32 + threadIdx.x;
    if (threadIdx.x >= 32 || c >= p.groups) return;
    a /= (A)p.positions;
    A var = larger(b / (A)p.positions - a * a, (A)0);
    p.out_mean[c] = (A)widen(p.x[c]) + a;
    p.out_var[c] = var;
    p.out_rstd[c] = (A)1 / m_sqrt(var + (A)p.eps);
}
// What is taken off x in a thread's columns, and what the rest is multiplied by and has added to it, where anything is.
struct Line {
    A mean[N], scale[N], beta[N];
    DEV Line(const P &p, const Columns &m, bool adds) {
        for (int e = 0; e < N; e++) {
            i64 c = m.c < m.columns ? m.c + e : 0;
            mean[e] = p.mean[c];
            scale[e] = p.rstd[c] * p.gamma[c];
            beta[e] = adds ? p.beta[c] : (A)0;
        }
    }
};
// x less its mean, and dy as far as a relu lets it through.
struct Slopes {
    A off[N], d[N];
    DEV Slopes(const P &p, const Line &line, i64 at) {
        Pack<T, N> x = load_pack<T, N>(p.x, at), dy = load_pack<T, N>(p.dy, at);
#pragma unroll
        for (int e = 0; e < N; e++) {
            off[e] = (A)widen(x.v[e]) - line.mean[e];
            d[e] = RELU && off[e] * line.scale[e] + line.beta[e] <= (A)0 ? (A)0 : (A)widen(dy.v[e]);
        }
    }
};
KERNEL(apply, P) {
    Columns m(p.positions, p.groups, p.pieces);
    Line line(p, m, true);
#pragma unroll 4
    for (i64 r = m.start; r < m.end; r += DOWN) {
        Pack<T, N> x = load_pack<T, N>(p.x, r * m.columns + m.c);
#pragma unroll
        for (int e = 0; e < N; e++) {
            A y = ((A)widen(x.v[e]) - line.mean[e]) * line.scale[e] + line.beta[e];
            x.v[e] = narrow<T>(RELU ? larger(y, (A)0) : y);
        }
        store_pack<T, N>(p.y, r * m.columns + m.c, x);
    }
}
KERNEL(scale_sums, P) {
    Columns m(p.positions, p.groups, p.pieces);
    Line line(p, m, RELU);
    A sum[2][N];
    for (int e = 0; e < N; e++) sum[0][e] = sum[1][e] = (A)0;
#pragma unroll 4
    for (i64 r = m.start; r < m.end; r += DOWN) {
        Slopes s(p, line, r * m.columns + m.c);
#pragma unroll
        for (int e = 0; e < N; e++) {
            sum[0][e] += s.d[e] * s.off[e];
            sum[1][e] += s.d[e];
        }
    }
    for (int e = 0; e < N; e++) sum[0][e] *= p.rstd[m.c < m.columns ? m.c + e : 0];
    for (int k = 0; k < 2; k++) keep_columns(m, p.partial, k, 2, sum[k]);
}
KERNEL(backward, P) {
    Columns m(p.positions, p.groups, p.pieces);
    // dx = scale · dy + slope · (x − mean) + offset, a line a column.
    Line line(p, m, RELU);
    A slope[N], offset[N];
    for (int e = 0; e < N; e++) {
        i64 c = m.c < m.columns ? m.c + e : 0;
        A count = (A)p.positions;
        slope[e] = -line.scale[e] * p.rstd[c] * p.dgamma[c] / count;
        offset[e] = -line.scale[e] * p.dbeta[c] / count;
    }
#pragma unroll 4
    for (i64 r = m.start; r < m.end; r += DOWN) {
        Slopes s(p, line, r * m.columns + m.c);
        Pack<T, N> dx;
#pragma unroll
        for (int e = 0; e < N; e++) dx.v[e] = narrow<T>(line.scale[e] * s.d[e] + slope[e] * s.off[e] + offset[e]);
        store_pack<T, N>(p.y, r * m.columns + m.c, dx);
    }
}
#endif

// The gradients of scales and offsets, from all pieces.
KERNEL(scales, P) {
    i64 columns = p.groups * p.part, c = (i64)blockIdx.x * 32 + threadIdx.x;
    A a = join_columns(p.partial, columns, p.pieces, 0, 2), b = join_columns(p.partial, columns, p.pieces, 1, 2);
    if (threadIdx.x >= 32 || c >= columns) return;
    p.dgamma[c] = a;
    if (p.dbeta) p.dbeta[c] = b;
}
