// Pooling over windows, channels last; a thread has N channels of one place of the result, side by side.
//
// Index is the type that places are counted in: 32 bits where that is enough, since a card divides those much faster. Windows of WY by WX
// elements lie SY and SX apart: numbers of the source, by which nothing is divided at all.

struct P {
    const T *x;
    u8 *index;
    T *y;
    i64 images, height, width, channels, out_height, out_width, pad[2], count_pad;
};
#define EACH_PIXEL(h, w)                                                                                               \
    Index count = (Index)(p.images * (h) * (w) * (p.channels / N)), packs = (Index)(p.channels / N);                  \
    for (Index i = (Index)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += (Index)gridDim.x * blockDim.x)
#define PIXEL(h, w)                                                                                                    \
    Index c = i % packs * N, q = i / packs;                                                                            \
    int px = (int)(q % (Index)(w)), py = (int)(q / (Index)(w) % (Index)(h));                                           \
    i64 n = q / (Index)(w) / (Index)(h);
// Where window o starts, and which of its places lie on elements.
DEV int low(int start) { return start < 0 ? -start : 0; }
DEV int high(int start, i64 length, int window) {
    int left = (int)length - start;
    return left < window ? left : window;
}
#define WINDOW int y0 = py * SY - (int)p.pad[0], x0 = px * SX - (int)p.pad[1];
#define EACH_OF_WINDOW                                                                                                 \
    for (int ky = low(y0); ky < high(y0, p.height, WY); ky++)                                                          \
        for (int kx = low(x0); kx < high(x0, p.width, WX); kx++)
#define LARGE(y, x) (((n * p.height + (y)) * p.width + (x)) * p.channels + c)
#define SMALL(y, x) (((n * p.out_height + (y)) * p.out_width + (x)) * p.channels + c)
KERNEL(max_pool, P) {
    EACH_PIXEL(p.out_height, p.out_width) {
        PIXEL(p.out_height, p.out_width);
        WINDOW;
        A best[N];
        Pack<u8, N> which;
        bool first = true;
        for (int e = 0; e < N; e++) {
            best[e] = (A)0;
            which.v[e] = 255;
        }
        EACH_OF_WINDOW {
            Pack<T, N> x = load_pack<T, N>(p.x, LARGE(y0 + ky, x0 + kx));
#pragma unroll
            for (int e = 0; e < N; e++) {
                A v = widen(x.v[e]);
                if (first || v > best[e] || is_nan(v)) {
                    best[e] = v;
                    which.v[e] = (u8)(ky * WX + kx);
                }
            }
            first = false;
        }
        Pack<T, N> y;
#pragma unroll
        for (int e = 0; e < N; e++) y.v[e] = narrow<T>(best[e]);
        store_pack<T, N>(p.y, SMALL(py, px), y);
        store_pack<u8, N>(p.index, SMALL(py, px), which);
    }
}
KERNEL(max_pool_gather, P) {
    EACH_PIXEL(p.out_height, p.out_width) {
        PIXEL(p.out_height, p.out_width);
        WINDOW;
        Pack<u8, N> which = load_pack<u8, N>(p.index, SMALL(py, px));
        Pack<T, N> to;
        for (int e = 0; e < N; e++) {
            int ky = which.v[e] / WX, kx = which.v[e] % WX, y = y0 + ky, x = x0 + kx;
            bool inside = ky < WY && y >= 0 && y < p.height && x >= 0 && x < p.width;
            to.v[e] = inside ? p.x[LARGE(y, x) + e] : narrow<T>((A)0);
        }
        store_pack<T, N>(p.y, SMALL(py, px), to);
    }
}
// The windows that read element i of an axis.
DEV int first_window(int place, int window, int stride) {
    int past = place + 1 - window;
    return past <= 0 ? 0 : (past + stride - 1) / stride;
}
DEV int last_window(int place, int stride, i64 outputs) {
    int w = place / stride;
    return w < (int)outputs - 1 ? w : (int)outputs - 1;
}
#define WINDOWS                                                                                                        \
    int ay = py + (int)p.pad[0], ax = px + (int)p.pad[1];                                                              \
    int oy0 = first_window(ay, WY, SY), oy1 = last_window(ay, SY, p.out_height);                                       \
    int ox0 = first_window(ax, WX, SX), ox1 = last_window(ax, SX, p.out_width);                                        \
    A s[N];                                                                                                            \
    for (int e = 0; e < N; e++) s[e] = (A)0;
// How many windows share an element is a number of the source too.
#define EACH_WINDOW                                                                                                    \
    for (int j = 0; j < (WY + SY - 1) / SY; j++)                                                                       \
        for (int k = 0; k < (WX + SX - 1) / SX; k++)                                                                   \
            if (int oy = oy0 + j, ox = ox0 + k; oy <= oy1 && ox <= ox1)
DEV void out(T *y, i64 at, const A *s) {
    Pack<T, N> to;
#pragma unroll
    for (int e = 0; e < N; e++) to.v[e] = narrow<T>(s[e]);
    store_pack<T, N>(y, at, to);
}
KERNEL(max_pool_grad, P) {
    EACH_PIXEL(p.height, p.width) {
        PIXEL(p.height, p.width);
        WINDOWS;
        EACH_WINDOW {
            int place = (ay - oy * SY) * WX + ax - ox * SX;
            Pack<u8, N> which = load_pack<u8, N>(p.index, SMALL(oy, ox));
            Pack<T, N> dy = load_pack<T, N>(p.x, SMALL(oy, ox));
#pragma unroll
            for (int e = 0; e < N; e++)
                if (which.v[e] == place) s[e] += (A)widen(dy.v[e]);
        }
        out(p.y, LARGE(py, px), s);
    }
}
DEV A share(const P &p, int oy, int ox) {
    if (p.count_pad) return (A)(WY * WX);
    int y0 = oy * SY - (int)p.pad[0], x0 = ox * SX - (int)p.pad[1];
    return (A)((high(y0, p.height, WY) - low(y0)) * (high(x0, p.width, WX) - low(x0)));
}
KERNEL(avg_pool, P) {
    EACH_PIXEL(p.out_height, p.out_width) {
        PIXEL(p.out_height, p.out_width);
        WINDOW;
        A s[N];
        for (int e = 0; e < N; e++) s[e] = (A)0;
        EACH_OF_WINDOW {
            Pack<T, N> x = load_pack<T, N>(p.x, LARGE(y0 + ky, x0 + kx));
#pragma unroll
            for (int e = 0; e < N; e++) s[e] += (A)widen(x.v[e]);
        }
        for (int e = 0; e < N; e++) s[e] /= share(p, py, px);
        out(p.y, SMALL(py, px), s);
    }
}
KERNEL(avg_pool_grad, P) {
    EACH_PIXEL(p.height, p.width) {
        PIXEL(p.height, p.width);
        WINDOWS;
        EACH_WINDOW {
            Pack<T, N> dy = load_pack<T, N>(p.x, SMALL(oy, ox));
            A f = share(p, oy, ox);
#pragma unroll
            for (int e = 0; e < N; e++) s[e] += (A)widen(dy.v[e]) / f;
        }
        out(p.y, LARGE(py, px), s);
    }
}
