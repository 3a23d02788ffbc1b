// Running sums and products. JOIN is Sum or Product; a line of `length` elements lies `inner` apart.

struct P {
    const T *x, *dy;
    T *y;
    A *before;
    i64 lines, length, inner, exclusive, reverse;
};
DEV i64 first(const P &p, i64 line) { return line / p.inner * p.length * p.inner + line % p.inner; }
DEV i64 place(const P &p, i64 k) { return (p.reverse ? p.length - 1 - k : k) * p.inner; }

// A thread a line: neighbours are read side by side.
KERNEL(lines, P) {
    EACH(line, p.lines) {
        i64 base = first(p, line);
        A total = JOIN::none<A>();
        for (i64 k = 0; k < p.length; k++) {
            i64 at = base + place(p, k);
            A joined = JOIN::join(total, (A)widen(p.x[at]));
            p.y[at] = narrow<T>(p.exclusive ? total : joined);
            total = joined;
        }
    }
}
// A block a line, a piece of as many elements as it has threads at a time.
KERNEL(pieces, P) {
    __shared__ A run[1024];
    int t = threadIdx.x, n = blockDim.x;
    i64 base = first(p, blockIdx.x);
    A total = JOIN::none<A>();
    for (i64 k0 = 0; k0 < p.length; k0 += n) {
        i64 k = k0 + t;
        A own = k < p.length ? (A)widen(p.x[base + place(p, k)]) : JOIN::none<A>();
        run[t] = own;
        __syncthreads();
        for (int step = 1; step < n; step *= 2) {
            A more = t >= step ? run[t - step] : JOIN::none<A>();
            __syncthreads();
            run[t] = JOIN::join(more, run[t]);
            __syncthreads();
        }
        A before = JOIN::join(total, t > 0 ? run[t - 1] : JOIN::none<A>()), upto = JOIN::join(total, run[t]);
        if (k < p.length) p.y[base + place(p, k)] = narrow<T>(p.exclusive ? before : upto);
        total = JOIN::join(total, run[n - 1]);
        __syncthreads();
    }
}
// dx of a running product: what is before a place, times the sum over later places of dy and of what lies between.
KERNEL(product_grad, P) {
    EACH(line, p.lines) {
        i64 base = first(p, line);
        A product = (A)1;
        for (i64 k = 0; k < p.length; k++) {
            i64 at = base + place(p, k);
            p.before[at] = product;
            product *= (A)widen(p.x[at]);
        }
        A sum = (A)0;
        for (i64 k = p.length - 1; k >= 0; k--) {
            i64 at = base + place(p, k);
            A own = (A)widen(p.dy[at]), value = (A)widen(p.x[at]), total = p.exclusive ? sum : own + sum;
            p.y[at] = narrow<T>(p.before[at] * total);
            sum = p.exclusive ? own + value * sum : value * total;
        }
    }
}
