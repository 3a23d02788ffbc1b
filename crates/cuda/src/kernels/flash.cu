// Attention on tensor cores, forward and backward; scores live in registers alone.
//
// A block has four warps. D and DV, the features of keys and values, are multiples of 16. The gradients of queries and those of keys and
// values are computed apart: scores are computed twice, and no sum depends on which block is first.

#define THREADS 128
#define KEYS 64
#define SD PITCH(D)
#define SV PITCH(DV)
#define LOG2E 1.4426950408889634f

// Scores are kept as they come from the products, times UNIT a score of the formula; where they are capped, as scores.
#if CAPPED
#define UNIT 1.0f
// cap · tanh(scale · x / cap). Its error is small beside the cap, though not beside a small result.
DEV float capped(const P &p, float x) {
    float cap = (float)p.cap, twice = x * ((float)p.scale / cap * 2.0f * LOG2E);
    return cap - 2.0f * cap / (1.0f + power_of_two(twice));
}
DEV float slope_of(const P &p, float capped) {
    float t = capped / (float)p.cap;
    return 1.0f - t * t;
}
#else
#define UNIT ((float)p.scale)
#endif
// ROWS rows of a sequence [batch, length, heads, WIDTH] on their way into a tile, rows beyond the end as zeros.
template <int ROWS, int WIDTH>
DEV void rows_later(T *to, const T *x, i64 b, int start, int length, i64 heads, i64 h) {
    const T *from = x + ((b * length) * heads + h) * WIDTH;
    for (int e = threadIdx.x; e < ROWS * (WIDTH / 8); e += THREADS) {
        int r = e / (WIDTH / 8), c = e % (WIDTH / 8) * 8;
        bool there = start + r < length;
        copy_later(to + r * PITCH(WIDTH) + c, there ? from + (start + r) * heads * WIDTH + c : x, there);
    }
}
DEV float over_row(float x, bool most) {
    for (int d = 1; d < 4; d *= 2) {
        float y = __shfl_xor_sync(0xffffffffu, x, d);
        x = most ? fmaxf(x, y) : x + y;
    }
    return x;
}
DEV void clear(float *x, int n) {
#pragma unroll
    for (int i = 0; i < n; i++) x[i] = 0.0f;
}
// Sums of 16 rows as rows of a sequence, times a factor a row.
template <int WIDTH>
DEV void rows_out(T *to, float (*sum)[4], i64 b, int start, int length, i64 heads, i64 h, float low, float high) {
    int lane = threadIdx.x % 32, row = start + lane / 4;
#pragma unroll
    for (int n = 0; n < WIDTH / 8; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int i = row + 8 * half;
            float f = half ? high : low;
            if (i < length)
                *(u32 *)(to + ((b * length + i) * heads + h) * WIDTH + n * 8 + lane % 4 * 2) =
                    both(sum[n][2 * half] * f, sum[n][2 * half + 1] * f);
        }
}

// Block n of keys and of values on its way into its half of the two that there is room for.
DEV void keys_later(const P &p, T *k, T *v, i64 b, int n, i64 hk) {
    rows_later<KEYS, D>(k + n % 2 * KEYS * SD, p.k, b, n * KEYS, (int)p.tk, p.kv_heads, hk);
    rows_later<KEYS, DV>(v + n % 2 * KEYS * SV, p.v, b, n * KEYS, (int)p.tk, p.kv_heads, hk);
}
// The first block, together with what was on its way before.
DEV void keys_first(const P &p, T *k, T *v, i64 b, int n, int blocks, i64 hk) {
    if (n < blocks) keys_later(p, k, v, b, n, hk);
    end_of_group();
}
// Waits for block n, while the next one is on its way.
DEV void keys_now(const P &p, T *k, T *v, i64 b, int n, int blocks, i64 hk) {
    keys_first(p, k, v, b, n + 1, blocks, hk);
    wait_for_groups<1>();
    __syncthreads();
}
// The logarithm of a query's sum, to base two, and its delta. Rows without any key, and those beyond the end, have no probabilities.
DEV void sums_of(const P &p, i64 b, i64 h, int i, float &lse, float &delta) {
    bool there = i < (int)p.tq;
    i64 at = (b * p.heads + h) * p.tq + i;
    float x = there ? p.lse[at] : -INF_F;
    lse = x == -INF_F ? INF_F : x * LOG2E;
    delta = there ? p.sums[at] : 0.0f;
}
// sum += x yᵀ, for 16 rows of x from `first` on and COLUMNS rows of y, WIDTH features each.
template <int WIDTH, int COLUMNS>
DEV void add_products(float (*sum)[4], const T *x, int first, const T *y) {
#pragma unroll
    for (int c = 0; c < WIDTH; c += 16) {
        u32 left[4], right[4];
        load_left(left, x, PITCH(WIDTH), first, c);
#pragma unroll
        for (int j = 0; j < COLUMNS / 8; j += 2) {
            load_right(right, y, PITCH(WIDTH), j * 8, c);
            product(sum[j], left, right);
            product(sum[j + 1], left, right + 2);
        }
    }
}
// Scores of 16 queries (or keys) and COLUMNS keys (or queries), and what the gradients of their outputs say of the values.
template <int COLUMNS>
DEV void scores_of(float (*s)[4], float (*ds)[4], const T *x, const T *gx, int first, const T *y, const T *gy) {
    clear(s[0], COLUMNS / 2);
    clear(ds[0], COLUMNS / 2);
    add_products<D, COLUMNS>(s, x, first, y);
    add_products<DV, COLUMNS>(ds, gx, first, gy);
}
// Sixteen columns of sums as the left side of a product.
DEV void as_left(u32 *left, float (*x)[4]) {
#pragma unroll
    for (int e = 0; e < 4; e++) left[e] = both(x[e / 2][e % 2 * 2], x[e / 2][e % 2 * 2 + 1]);
}
// sum += left y, for 16 rows of y from `row` on.
template <int WIDTH>
DEV void add_rows(float (*sum)[4], const u32 *left, const T *y, int row) {
    u32 right[4];
#pragma unroll
    for (int c = 0; c < WIDTH / 8; c += 2) {
        load_right_turned(right, y, PITCH(WIDTH), c * 8, row);
        product(sum[c], left, right);
        product(sum[c + 1], left, right + 2);
    }
}
// The same, as sums that are yet to be added up: rows of [batch, heads, length, WIDTH].
template <int WIDTH> DEV void sums_out(float *to, float (*sum)[4], i64 row_of_head, int start, int length, float f) {
    int lane = threadIdx.x % 32, row = start + lane / 4;
#pragma unroll
    for (int n = 0; n < WIDTH / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            if (row + e / 2 * 8 < length)
                to[((row_of_head + row + e / 2 * 8) * WIDTH) + n * 8 + lane % 4 * 2 + e % 2] = sum[n][e] * f;
}

// QUERIES / 64 times 16 queries a warp.
#define QUERIES (D > 64 || DV > 64 ? 64 : 128)
#define TALL (QUERIES / 64)
KERNEL(forward, P) {
    DYNAMIC_SHARED(T, shared);
    T *q = shared, *k = q + QUERIES * SD, *v = k + 2 * KEYS * SD;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    i64 h = blockIdx.y, b = blockIdx.z, hk = h / (p.heads / p.kv_heads);
    // The last queries see most keys: they come first.
    int tq = (int)p.tq, i0 = (int)(gridDim.x - 1 - blockIdx.x) * QUERIES, mine = i0 + warp * 16 * TALL;
    float scale = UNIT * LOG2E;
    int last = i0 + QUERIES - 1 < tq - 1 ? i0 + QUERIES - 1 : tq - 1;
    int blocks = (visible(p, last) + KEYS - 1) / KEYS, begin = first_block(p, b, i0, QUERIES, KEYS);
#if EARLY
    int early[TALL][2];
#pragma unroll
    for (int m = 0; m < TALL; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) early[m][half] = first_seen(p, b, mine + m * 16 + lane / 4 + 8 * half);
#endif
    float o[TALL][DV / 8][4], most[TALL][2], total[TALL][2];
#pragma unroll
    for (int m = 0; m < TALL; m++) {
        clear(o[m][0], DV / 2);
        most[m][0] = most[m][1] = -INF_F;
        total[m][0] = total[m][1] = 0.0f;
    }
    rows_later<QUERIES, D>(q, p.q, b, i0, tq, p.heads, h);
    keys_first(p, k, v, b, begin, blocks, hk);
    for (int n = begin; n < blocks; n++) {
        int j0 = n * KEYS;
        const T *kn = k + n % 2 * KEYS * SD, *vn = v + n % 2 * KEYS * SV;
        keys_now(p, k, v, b, n, blocks, hk);
        float s[TALL][KEYS / 8][4];
#pragma unroll
        for (int m = 0; m < TALL; m++) clear(s[m][0], KEYS / 2);
#pragma unroll
        for (int c = 0; c < D; c += 16) {
            u32 left[TALL][4];
#pragma unroll
            for (int m = 0; m < TALL; m++) load_left(left[m], q, SD, (warp * TALL + m) * 16, c);
#pragma unroll
            for (int j = 0; j < KEYS / 8; j += 2) {
                u32 right[4];
                load_right(right, kn, SD, j * 8, c);
#pragma unroll
                for (int m = 0; m < TALL; m++) {
                    product(s[m][j], left[m], right);
                    product(s[m][j + 1], left[m], right + 2);
                }
            }
        }
#if CAPPED
#pragma unroll
        for (int m = 0; m < TALL; m++)
#pragma unroll
            for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) s[m][j][e] = capped(p, s[m][j][e]);
#endif
        bool some_unseen = visible(p, i0) < j0 + KEYS;
#pragma unroll
        for (int m = 0; m < TALL; m++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                int seen = visible(p, mine + m * 16 + lane / 4 + 8 * half) - j0 - lane % 4 * 2;
#if EARLY
                int hidden = early[m][half] - j0 - lane % 4 * 2;
#endif
                float top = most[m][half];
#pragma unroll
                for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
                    for (int e = 2 * half; e < 2 * half + 2; e++) {
                        if (some_unseen && j * 8 + e % 2 >= seen) s[m][j][e] = -INF_F;
#if EARLY
                        if (j * 8 + e % 2 < hidden) s[m][j][e] = -INF_F;
#endif
                        top = fmaxf(top, s[m][j][e]);
                    }
                top = over_row(top, true);
                // A row that has seen nothing yet has no largest score to take off.
                float off = top == -INF_F ? 0.0f : top * scale, sum = 0.0f;
                float shrink = power_of_two(most[m][half] * scale - off);
#pragma unroll
                for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
                    for (int e = 2 * half; e < 2 * half + 2; e++) {
                        float x = power_of_two(s[m][j][e] * scale - off);
                        s[m][j][e] = x;
                        sum += x;
                    }
                most[m][half] = top;
                total[m][half] = total[m][half] * shrink + sum;
#pragma unroll
                for (int c = 0; c < DV / 8; c++) {
                    o[m][c][2 * half] *= shrink;
                    o[m][c][2 * half + 1] *= shrink;
                }
            }
#pragma unroll
        for (int j = 0; j < KEYS / 8; j += 2) {
            u32 left[TALL][4];
#pragma unroll
            for (int m = 0; m < TALL; m++) as_left(left[m], s[m] + j);
#pragma unroll
            for (int c = 0; c < DV / 8; c += 2) {
                u32 right[4];
                load_right_turned(right, vn, SV, c * 8, j * 8);
#pragma unroll
                for (int m = 0; m < TALL; m++) {
                    product(o[m][c], left[m], right);
                    product(o[m][c + 1], left[m], right + 2);
                }
            }
        }
        __syncthreads();
    }
#pragma unroll
    for (int m = 0; m < TALL; m++) {
        float f[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float l = over_row(total[m][half], false);
            int i = mine + m * 16 + lane / 4 + 8 * half;
            f[half] = l == 0.0f ? 0.0f : 1.0f / l;
            if (lane % 4 == 0 && i < tq)
                p.sums[(b * p.heads + h) * tq + i] = l == 0.0f ? -INF_F : most[m][half] * UNIT + logf(l);
        }
        rows_out<DV>(p.to0, o[m], b, mine + m * 16, tq, p.heads, h, f[0], f[1]);
    }
}

// δ = Σ o ∘ do of every query; eight threads have a query.
KERNEL(deltas, P) {
    i64 n = p.batch * p.heads * p.tq, all = (n + 15) / 16 * 16;
    for (i64 e = ((i64)blockIdx.x * THREADS + threadIdx.x) / 8; e < all; e += (i64)gridDim.x * THREADS / 8) {
        i64 i = e % p.tq, h = e / p.tq % p.heads, b = e / p.tq / p.heads, at = ((b * p.tq + i) * p.heads + h) * DV;
        float s = 0.0f;
        if (e < n)
            for (int c = threadIdx.x % 8 * 2; c < DV; c += 16) {
                s += widen(p.o[at + c]) * widen(p.d_o[at + c]);
                s += widen(p.o[at + c + 1]) * widen(p.d_o[at + c + 1]);
            }
        for (int d = 1; d < 8; d *= 2) s += __shfl_xor_sync(0xffffffffu, s, d);
        if (threadIdx.x % 8 == 0 && e < n) p.sums[e] = s;
    }
}

// The gradients of a query's scores, over those of its outputs; the first key of this thread is `column`. WHOLE where no key is behind its query.
template <bool WHOLE>
DEV void slopes_of_queries(const P &p, float (*s)[4], float (*ds)[4], int column, const float *lse, const float *delta,
                           const int *seen, const int *early) {
    float scale = UNIT * LOG2E;
#pragma unroll
    for (int j = 0; j < KEYS / 8; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int key = column + j * 8 + e % 2;
            bool sees = WHOLE || key < seen[e / 2];
#if EARLY
            sees = sees && key >= early[e / 2];
#endif
#if CAPPED
            s[j][e] = capped(p, s[j][e]);
#endif
            float prob = sees ? power_of_two(s[j][e] * scale - lse[e / 2]) : 0.0f;
            ds[j][e] = prob * (ds[j][e] - delta[e / 2]);
#if CAPPED
            ds[j][e] *= slope_of(p, s[j][e]);
#endif
        }
}

// 64 queries a block, 16 a warp.
KERNEL(grad_queries, P) {
    DYNAMIC_SHARED(T, shared);
    T *q = shared, *g = q + 64 * SD, *k = g + 64 * SV, *v = k + 2 * KEYS * SD;
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    i64 h = blockIdx.y, b = blockIdx.z, hk = h / (p.heads / p.kv_heads);
    int tq = (int)p.tq, i0 = (int)(gridDim.x - 1 - blockIdx.x) * 64, mine = i0 + warp * 16 + lane / 4;
    int last = i0 + 63 < tq - 1 ? i0 + 63 : tq - 1;
    int blocks = (visible(p, last) + KEYS - 1) / KEYS, begin = first_block(p, b, i0, 64, KEYS);
    float lse[2], delta[2], dq[D / 8][4];
    int seen[2], early[2] = {0, 0};
#if EARLY
    early[0] = first_seen(p, b, mine);
    early[1] = first_seen(p, b, mine + 8);
#endif
    clear(dq[0], D / 2);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        sums_of(p, b, h, mine + 8 * half, lse[half], delta[half]);
        seen[half] = visible(p, mine + 8 * half);
    }
    rows_later<64, D>(q, p.q, b, i0, tq, p.heads, h);
    rows_later<64, DV>(g, p.d_o, b, i0, tq, p.heads, h);
    keys_first(p, k, v, b, begin, blocks, hk);
    for (int n = begin; n < blocks; n++) {
        int j0 = n * KEYS;
        const T *kn = k + n % 2 * KEYS * SD, *vn = v + n % 2 * KEYS * SV;
        keys_now(p, k, v, b, n, blocks, hk);
        float s[KEYS / 8][4], ds[KEYS / 8][4];
        scores_of<KEYS>(s, ds, q, g, warp * 16, kn, vn);
        // Only where the diagonal passes is there anything to ask of single keys.
        int column = j0 + lane % 4 * 2;
        if (visible(p, i0) >= j0 + KEYS) slopes_of_queries<true>(p, s, ds, column, lse, delta, seen, early);
        else slopes_of_queries<false>(p, s, ds, column, lse, delta, seen, early);
#pragma unroll
        for (int j = 0; j < KEYS / 8; j += 2) {
            u32 left[4];
            as_left(left, ds + j);
            add_rows<D>(dq, left, kn, j * 8);
        }
        __syncthreads();
    }
    rows_out<D>(p.to0, dq, b, i0 + warp * 16, tq, p.heads, h, (float)p.scale, (float)p.scale);
}

// Behind the deltas, sums of the gradients of keys, then of values, by head of queries.
#define SUMS(p) ((p).sums + ((p).batch * (p).heads * (p).tq + 63) / 64 * 64)

// 64 keys a block, 16 a warp; QUERY_ROWS queries at a time. Where APART is 1, a block has one head of queries, and not all that share the
// keys: where there are few keys a card would wait for the blocks with most queries.
#define QUERY_ROWS (D > 64 || DV > 64 ? 32 : 64)
// Probabilities over scores and the gradients of scores over those of outputs, of keys `mine` and the one eight behind, and QUERY_ROWS queries from i0
// on. WHOLE where all of the queries see all of the block's keys.
template <bool WHOLE>
DEV void slopes_of_keys(const P &p, float (*s)[4], float (*ds)[4], int mine, int i0, const float *lse, const float *delta,
                        const int *early) {
    float scale = UNIT * LOG2E;
    int first = threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < QUERY_ROWS / 8; i++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int column = first + i * 8 + e % 2;
            bool sees = WHOLE || mine + e / 2 * 8 < visible(p, i0 + column);
#if EARLY
            sees = sees && mine + e / 2 * 8 >= early[column];
#endif
#if CAPPED
            s[i][e] = capped(p, s[i][e]);
            ds[i][e] = (ds[i][e] - delta[column]) * slope_of(p, s[i][e]);
#else
            ds[i][e] = ds[i][e] - delta[column];
#endif
            float prob = sees ? power_of_two(s[i][e] * scale - lse[column]) : 0.0f;
            s[i][e] = prob;
            ds[i][e] *= prob;
        }
}

KERNEL(grad_keys, P) {
    DYNAMIC_SHARED(T, shared);
    T *k = shared, *v = k + 64 * SD, *q = v + 64 * SV, *g = q + 2 * QUERY_ROWS * SD;
    float *lse = (float *)(g + 2 * QUERY_ROWS * SV), *delta = lse + 2 * QUERY_ROWS;
    // Only where early keys are hidden is there room for it, and is it read.
    int *early = (int *)(delta + 2 * QUERY_ROWS);
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    i64 b = blockIdx.z, group = p.heads / p.kv_heads, hk = APART ? blockIdx.y / group : blockIdx.y;
    i64 first_head = APART ? blockIdx.y : hk * group, heads = APART ? 1 : group;
    int tq = (int)p.tq, tk = (int)p.tk, j0 = (int)blockIdx.x * 64, mine = j0 + warp * 16 + lane / 4;
    float dk[D / 8][4], dv[DV / 8][4];
    clear(dk[0], D / 2);
    clear(dv[0], DV / 2);
    // The first query that sees any of these keys, in whole blocks of queries.
    int first = p.causal ? j0 - (tk - tq) : 0;
    first = first < 0 ? 0 : first / QUERY_ROWS * QUERY_ROWS;
    int end = behind_last(p, b, first, j0 + 64);
    int blocks = first < end ? (end - first + QUERY_ROWS - 1) / QUERY_ROWS : 0, rounds = blocks * (int)heads;
    rows_later<64, D>(k, p.k, b, j0, tk, p.kv_heads, hk);
    rows_later<64, DV>(v, p.v, b, j0, tk, p.kv_heads, hk);
    for (int n = -1; n < rounds; n++) {
        // The next block of queries comes while this one is worked on.
        int then = n + 1;
        if (then < rounds) {
            i64 h = first_head + then / blocks;
            int i = first + then % blocks * QUERY_ROWS, half = then % 2;
            rows_later<QUERY_ROWS, D>(q + half * QUERY_ROWS * SD, p.q, b, i, tq, p.heads, h);
            rows_later<QUERY_ROWS, DV>(g + half * QUERY_ROWS * SV, p.d_o, b, i, tq, p.heads, h);
            if (threadIdx.x < QUERY_ROWS) {
                int row = i + (int)threadIdx.x, to = half * QUERY_ROWS + threadIdx.x;
                sums_of(p, b, h, row, lse[to], delta[to]);
#if EARLY
                early[to] = first_seen(p, b, row);
#endif
            }
        }
        end_of_group();
        if (n < 0) continue;
        wait_for_groups<1>();
        __syncthreads();
        int i0 = first + n % blocks * QUERY_ROWS, half = n % 2 * QUERY_ROWS;
        const T *qn = q + half * SD, *gn = g + half * SV;
        float s[QUERY_ROWS / 8][4], ds[QUERY_ROWS / 8][4];
        scores_of<QUERY_ROWS>(s, ds, k, v, warp * 16, qn, gn);
        if (visible(p, i0) >= j0 + 64) slopes_of_keys<true>(p, s, ds, mine, i0, lse + half, delta + half, early + half);
        else slopes_of_keys<false>(p, s, ds, mine, i0, lse + half, delta + half, early + half);
#pragma unroll
        for (int i = 0; i < QUERY_ROWS / 8; i += 2) {
            u32 probs[4], grads[4];
            as_left(probs, s + i);
            as_left(grads, ds + i);
            add_rows<DV>(dv, probs, gn, i * 8);
            add_rows<D>(dk, grads, qn, i * 8);
        }
        __syncthreads();
    }
#if APART
    i64 row = (b * p.heads + first_head) * tk;
    sums_out<D>(SUMS(p), dk, row, j0 + warp * 16, tk, (float)p.scale);
    sums_out<DV>(SUMS(p) + p.batch * p.heads * tk * D, dv, row, j0 + warp * 16, tk, 1.0f);
#else
    rows_out<D>(p.to0, dk, b, j0 + warp * 16, tk, p.kv_heads, hk, (float)p.scale, (float)p.scale);
    rows_out<DV>(p.to1, dv, b, j0 + warp * 16, tk, p.kv_heads, hk, 1.0f, 1.0f);
#endif
}
#if APART
// The gradients of keys and values, from the sums of all heads that share them, in their order.
KERNEL(join_heads, P) {
    i64 group = p.heads / p.kv_heads, wide = D + DV, count = p.batch * p.tk * p.kv_heads * wide;
    EACH(i, count) {
        i64 c = i % wide, hk = i / wide % p.kv_heads, j = i / wide / p.kv_heads % p.tk, b = i / wide / p.kv_heads / p.tk;
        bool is_key = c < D;
        i64 width = is_key ? D : DV, at = is_key ? c : c - D;
        const float *from = SUMS(p) + (is_key ? 0 : p.batch * p.heads * p.tk * D);
        float sum = 0.0f;
        for (i64 h = hk * group; h < (hk + 1) * group; h++) sum += from[((b * p.heads + h) * p.tk + j) * width + at];
        (is_key ? p.to0 : p.to1)[((b * p.tk + j) * p.kv_heads + hk) * width + at] = narrow<T>(sum);
    }
}
#endif
