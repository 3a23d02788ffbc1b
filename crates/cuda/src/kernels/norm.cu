// The four norms as one: x is [samples, positions, groups, part]; a sample and a group share statistics, a group and a
// place in its part share a scale. Layer and RMS norm have one group and one position, batch norm has one sample and as
// many groups as channels.

struct P {
    const T *x;
    const A *gamma;
    const A *beta;
    const A *mean;
    const A *rstd;
    const T *dy;
    T *y;
    A *out_mean;
    A *out_var;
    A *out_rstd;
    A *dgamma;
    A *dbeta;
    A *partial;
    i64 samples;
    i64 positions;
    i64 groups;
    i64 part;
    i64 pieces;
    double eps;
};
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
        p.y[AT(j)] = narrow<T>(v);
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
        p.y[AT(j)] = narrow<T>(rstd * (v - a - x * b));
    }
}

// Sums of columns: a block has 32 columns and 8 rows of threads; rows are cut into pieces that are added in order.
#define COLUMN                                                                                                         \
    i64 rows = p.samples * p.positions, columns = p.groups * p.part, c = (i64)blockIdx.x * 32 + threadIdx.x % 32;     \
    i64 chunk = (rows + p.pieces - 1) / p.pieces, start = blockIdx.y * chunk;                                          \
    i64 end = start + chunk < rows ? start + chunk : rows;                                                             \
    int lane = threadIdx.x / 32;                                                                                       \
    __shared__ A first[8][33], second[8][33];                                                                          \
    A a = (A)0, b = (A)0;
DEV void keep_column(const P &p, i64 columns, i64 c, int lane, A a, A b, A (*first)[33], A (*second)[33]) {
    int t = threadIdx.x % 32;
    first[lane][t] = a;
    second[lane][t] = b;
    __syncthreads();
    if (lane == 0 && c < columns) {
        for (int l = 1; l < 8; l++) {
            a += first[l][t];
            b += second[l][t];
        }
        p.partial[(2 * (i64)blockIdx.y) * columns + c] = a;
        p.partial[(2 * (i64)blockIdx.y + 1) * columns + c] = b;
    }
}
KERNEL(scale_sums, P) {
    COLUMN;
    if (c < columns)
        for (i64 r = start + lane; r < end; r += 8) {
            i64 at = r / p.positions * p.groups + c / p.part;
            A dy = widen(p.dy[r * columns + c]), mean = p.mean ? p.mean[at] : (A)0;
            a += dy * ((A)widen(p.x[r * columns + c]) - mean) * p.rstd[at];
            b += dy;
        }
    keep_column(p, columns, c, lane, a, b, first, second);
}
KERNEL(moments, P) {
    COLUMN;
    if (c < columns)
        for (i64 r = start + lane; r < end; r += 8) {
            A x = widen(p.x[r * columns + c]);
            A d = p.mean ? x - p.mean[c] : x;
            a += p.mean ? d * d : d;
        }
    keep_column(p, columns, c, lane, a, b, first, second);
}
DEV void join_pieces(const P &p, i64 columns, i64 c, A &a, A &b) {
    a = b = (A)0;
    for (i64 s = 0; s < p.pieces; s++) {
        a += p.partial[2 * s * columns + c];
        b += p.partial[(2 * s + 1) * columns + c];
    }
}
KERNEL(scales, P) {
    i64 columns = p.groups * p.part;
    EACH(c, columns) {
        A a, b;
        join_pieces(p, columns, c, a, b);
        p.dgamma[c] = a;
        if (p.dbeta) p.dbeta[c] = b;
    }
}
KERNEL(means, P) {
    EACH(c, p.groups) {
        A a, b;
        join_pieces(p, p.groups, c, a, b);
        p.out_mean[c] = a / (A)p.positions;
    }
}
KERNEL(variances, P) {
    EACH(c, p.groups) {
        A a, b;
        join_pieces(p, p.groups, c, a, b);
        a /= (A)p.positions;
        p.out_var[c] = a;
        p.out_rstd[c] = (A)1 / m_sqrt(a + (A)p.eps);
    }
}
KERNEL(apply_columns, P) {
    EACH(i, p.positions * p.groups) {
        i64 c = i % p.groups;
        p.y[i] = narrow<T>(((A)widen(p.x[i]) - p.mean[c]) * p.rstd[c] * p.gamma[c] + p.beta[c]);
    }
}
KERNEL(backward_columns, P) {
    EACH(i, p.positions * p.groups) {
        i64 c = i % p.groups;
        A n = ((A)widen(p.x[i]) - p.mean[c]) * p.rstd[c], count = (A)p.positions;
        p.y[i] = narrow<T>(p.rstd[c] * p.gamma[c] * ((A)widen(p.dy[i]) - p.dbeta[c] / count - n * p.dgamma[c] / count));
    }
}
