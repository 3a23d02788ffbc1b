// Attention by tiles of ROWS queries and ROWS keys, forward and backward; the matrix of scores is never stored.
//
// D and DV are the features of keys and values. 256 threads; each row of a tile belongs to SHARE of them, which hold its
// sums in registers.

#define THREADS 256
#define SHARE (THREADS / ROWS)
#define OWN(n) (((n) + SHARE - 1) / SHARE)

DEV bool sees(const P &p, i64 b, i64 i, i64 j) {
    if (i >= p.tq || j >= visible(p, (int)i)) return false;
#if EARLY
    if (j < first_seen(p, b, (int)i)) return false;
#endif
    return true;
}
// ROWS rows of a sequence [batch, length, heads, WIDTH] into shared memory, rows beyond the end as zeros.
template <int WIDTH> DEV void rows_in(A *to, const T *x, i64 b, i64 start, i64 length, i64 heads, i64 h) {
    for (int e = threadIdx.x; e < ROWS * WIDTH; e += THREADS) {
        int r = e / WIDTH, c = e % WIDTH;
        to[r * (WIDTH + 1) + c] =
            start + r < length ? (A)widen(x[((b * length + start + r) * heads + h) * WIDTH + c]) : (A)0;
    }
}
// ROWS keys and values, when nobody reads those before them any more.
DEV void keys_in(const P &p, A *k, A *v, i64 b, i64 j0, i64 hk) {
    __syncthreads();
    rows_in<D>(k, p.k, b, j0, p.tk, p.kv_heads, hk);
    rows_in<DV>(v, p.v, b, j0, p.tk, p.kv_heads, hk);
    __syncthreads();
}
template <int WIDTH> DEV A dot(const A *x, const A *y) {
    A s = (A)0;
    for (int c = 0; c < WIDTH; c++) s += x[c] * y[c];
    return s;
}
// A score and, where there is a cap, its derivative by scale · q·k.
DEV A score(const P &p, const A *q, const A *k, i64 b, i64 h, i64 i, i64 j, A &slope) {
    A s = (A)p.scale * dot<D>(q, k);
    slope = (A)1;
#if CAPPED
    A t = m_tanh(s / (A)p.cap);
    s = (A)p.cap * t;
    slope = (A)1 - t * t;
#endif
    if (p.mask) s += (A)widen(p.mask[b * p.mask_batch + h * p.mask_head + i * p.mask_query + j]);
    return s;
}

KERNEL(forward, P) {
    DYNAMIC_SHARED(A, shared);
    A *q = shared, *k = q + ROWS * (D + 1), *v = k + ROWS * (D + 1), *s = v + ROWS * (DV + 1);
    A *most = s + ROWS * (ROWS + 1), *total = most + ROWS, *shrink = total + ROWS;
    i64 h = blockIdx.y, b = blockIdx.z, i0 = (i64)blockIdx.x * ROWS, hk = h / (p.heads / p.kv_heads);
    int t = threadIdx.x, row = t / SHARE, lane = t % SHARE;
    rows_in<D>(q, p.q, b, i0, p.tq, p.heads, h);
    if (t < ROWS) {
        most[t] = Limit<A>::lowest();
        total[t] = (A)0;
    }
    A sum[OWN(DV)];
    for (int c = 0; c < OWN(DV); c++) sum[c] = (A)0;
    i64 last = i0 + ROWS - 1 < p.tq - 1 ? i0 + ROWS - 1 : p.tq - 1, seen = visible(p, (int)last);
    for (i64 j0 = (i64)first_block(p, b, (int)i0, ROWS, ROWS) * ROWS; j0 < seen; j0 += ROWS) {
        keys_in(p, k, v, b, j0, hk);
        for (int e = t; e < ROWS * ROWS; e += THREADS) {
            int r = e / ROWS, j = e % ROWS;
            A slope;
            s[r * (ROWS + 1) + j] = sees(p, b, i0 + r, j0 + j)
                                        ? score(p, q + r * (D + 1), k + j * (D + 1), b, h, i0 + r, j0 + j, slope)
                                        : Limit<A>::lowest();
        }
        __syncthreads();
        if (t < ROWS) {
            A m = most[t], l = (A)0;
            for (int j = 0; j < ROWS; j++) m = larger(m, s[t * (ROWS + 1) + j]);
            bool none = m == Limit<A>::lowest();
            for (int j = 0; j < ROWS; j++) {
                A e = none ? (A)0 : m_exp(s[t * (ROWS + 1) + j] - m);
                s[t * (ROWS + 1) + j] = e;
                l += e;
            }
            A c = none ? (A)1 : m_exp(most[t] - m);
            shrink[t] = c;
            total[t] = total[t] * c + l;
            most[t] = m;
        }
        __syncthreads();
        A f = shrink[row];
        for (int c = 0; c < OWN(DV); c++) {
            int at = lane + c * SHARE;
            if (at >= DV) break;
            A x = sum[c] * f;
            for (int j = 0; j < ROWS; j++) x += s[row * (ROWS + 1) + j] * v[j * (DV + 1) + at];
            sum[c] = x;
        }
    }
    __syncthreads();
    i64 i = i0 + row;
    if (i >= p.tq) return;
    A l = total[row];
    for (int c = 0; c < OWN(DV); c++) {
        int at = lane + c * SHARE;
        if (at < DV) p.to0[((b * p.tq + i) * p.heads + h) * DV + at] = narrow<T>(l == (A)0 ? (A)0 : sum[c] / l);
    }
    if (lane == 0) p.sums[(b * p.heads + h) * p.tq + i] = l == (A)0 ? Limit<A>::lowest() : most[row] + m_log(l);
}

// δ = Σ o ∘ do of every query.
KERNEL(deltas, P) {
    EACH(e, p.batch * p.heads * p.tq) {
        i64 i = e % p.tq, h = e / p.tq % p.heads, b = e / p.tq / p.heads, at = ((b * p.tq + i) * p.heads + h) * DV;
        A s = (A)0;
        for (int c = 0; c < DV; c++) s += (A)widen(p.o[at + c]) * (A)widen(p.d_o[at + c]);
        p.sums[e] = s;
    }
}
// The probability of a pair and, times the scale, the gradient of its score.
DEV void pair(const P &p, const A *q, const A *k, const A *v, const A *g, i64 b, i64 h, i64 i, i64 j, A &prob, A &ds) {
    prob = ds = (A)0;
    if (!sees(p, b, i, j)) return;
    A lse = p.lse[(b * p.heads + h) * p.tq + i], slope;
    if (lse == Limit<A>::lowest()) return;
    prob = m_exp(score(p, q, k, b, h, i, j, slope) - lse);
    ds = prob * (dot<DV>(g, v) - p.sums[(b * p.heads + h) * p.tq + i]) * slope * (A)p.scale;
}
// The gradients of the scores of ROWS queries and ROWS keys, and where there is room their probabilities.
DEV void pairs(const P &p, const A *q, const A *k, const A *v, const A *g, i64 b, i64 h, i64 i0, i64 j0, A *s, A *w) {
    for (int e = threadIdx.x; e < ROWS * ROWS; e += THREADS) {
        int r = e / ROWS, j = e % ROWS;
        A prob, ds;
        pair(p, q + r * (D + 1), k + j * (D + 1), v + j * (DV + 1), g + r * (DV + 1), b, h, i0 + r, j0 + j, prob, ds);
        s[r * (ROWS + 1) + j] = ds;
        if (w) w[r * (ROWS + 1) + j] = prob;
    }
}
// sum += s x of this thread's features, for numbers of s that lie `step` apart and ROWS rows of x.
template <int WIDTH> DEV void add_rows(A *sum, const A *s, int step, const A *x) {
    for (int c = 0; c < OWN(WIDTH); c++) {
        int at = threadIdx.x % SHARE + c * SHARE;
        if (at >= WIDTH) break;
        for (int j = 0; j < ROWS; j++) sum[c] += s[j * step] * x[j * (WIDTH + 1) + at];
    }
}
// This thread's sums into their places of a row.
template <int WIDTH> DEV void row_out(T *to, const A *sum) {
    for (int c = 0; c < OWN(WIDTH); c++) {
        int at = threadIdx.x % SHARE + c * SHARE;
        if (at < WIDTH) to[at] = narrow<T>(sum[c]);
    }
}
KERNEL(grad_queries, P) {
    DYNAMIC_SHARED(A, shared);
    A *q = shared, *k = q + ROWS * (D + 1), *v = k + ROWS * (D + 1), *g = v + ROWS * (DV + 1), *s = g + ROWS * (DV + 1);
    i64 h = blockIdx.y, b = blockIdx.z, i0 = (i64)blockIdx.x * ROWS, hk = h / (p.heads / p.kv_heads);
    int row = threadIdx.x / SHARE;
    rows_in<D>(q, p.q, b, i0, p.tq, p.heads, h);
    rows_in<DV>(g, p.d_o, b, i0, p.tq, p.heads, h);
    A sum[OWN(D)];
    for (int c = 0; c < OWN(D); c++) sum[c] = (A)0;
    i64 last = i0 + ROWS - 1 < p.tq - 1 ? i0 + ROWS - 1 : p.tq - 1, seen = visible(p, (int)last);
    for (i64 j0 = (i64)first_block(p, b, (int)i0, ROWS, ROWS) * ROWS; j0 < seen; j0 += ROWS) {
        keys_in(p, k, v, b, j0, hk);
        pairs(p, q, k, v, g, b, h, i0, j0, s, 0);
        __syncthreads();
        add_rows<D>(sum, s + row * (ROWS + 1), 1, k);
    }
    i64 i = i0 + row;
    if (i < p.tq) row_out<D>(p.to0 + ((b * p.tq + i) * p.heads + h) * D, sum);
}
KERNEL(grad_keys, P) {
    DYNAMIC_SHARED(A, shared);
    A *q = shared, *k = q + ROWS * (D + 1), *v = k + ROWS * (D + 1), *g = v + ROWS * (DV + 1), *s = g + ROWS * (DV + 1);
    A *w = s + ROWS * (ROWS + 1);
    i64 hk = blockIdx.y, b = blockIdx.z, j0 = (i64)blockIdx.x * ROWS, group = p.heads / p.kv_heads;
    int row = threadIdx.x / SHARE;
    rows_in<D>(k, p.k, b, j0, p.tk, p.kv_heads, hk);
    rows_in<DV>(v, p.v, b, j0, p.tk, p.kv_heads, hk);
    A dk[OWN(D)], dv[OWN(DV)];
    for (int c = 0; c < OWN(D); c++) dk[c] = (A)0;
    for (int c = 0; c < OWN(DV); c++) dv[c] = (A)0;
    i64 end = behind_last(p, b, 0, (int)j0 + ROWS);
    for (i64 h = hk * group; h < (hk + 1) * group; h++)
        for (i64 i0 = 0; i0 < end; i0 += ROWS) {
            i64 last = i0 + ROWS - 1 < p.tq - 1 ? i0 + ROWS - 1 : p.tq - 1;
            if (visible(p, (int)last) <= j0) continue;
            __syncthreads();
            rows_in<D>(q, p.q, b, i0, p.tq, p.heads, h);
            rows_in<DV>(g, p.d_o, b, i0, p.tq, p.heads, h);
            __syncthreads();
            pairs(p, q, k, v, g, b, h, i0, j0, s, w);
            __syncthreads();
            add_rows<D>(dk, s + row, ROWS + 1, q);
            add_rows<DV>(dv, w + row, ROWS + 1, g);
        }
    i64 j = j0 + row;
    if (j >= p.tk) return;
    row_out<D>(p.to0 + ((b * p.tk + j) * p.kv_heads + hk) * D, dk);
    row_out<DV>(p.to1 + ((b * p.tk + j) * p.kv_heads + hk) * DV, dv);
}
