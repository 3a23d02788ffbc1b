// Pooling over windows, channels last; a thread an element of the result.

struct P {
    const T *x;
    u8 *index;
    T *y;
    i64 images;
    i64 height;
    i64 width;
    i64 channels;
    i64 out_height;
    i64 out_width;
    i64 window[2];
    i64 stride[2];
    i64 pad[2];
    i64 count_pad;
};
// Where window o starts, and which of its places lie on elements.
DEV i64 low(i64 start) { return start < 0 ? -start : 0; }
DEV i64 high(i64 start, i64 length, i64 window) { return length - start < window ? length - start : window; }
#define PIXEL(i, h, w)                                                                                                 \
    i64 c = i % p.channels, q = i / p.channels, px = q % (w), py = q / (w) % (h), n = q / (w) / (h);
KERNEL(max_pool, P) {
    EACH(i, p.images * p.out_height * p.out_width * p.channels) {
        PIXEL(i, p.out_height, p.out_width);
        i64 y0 = py * p.stride[0] - p.pad[0], x0 = px * p.stride[1] - p.pad[1];
        A best = (A)0;
        int which = -1;
        for (i64 ky = low(y0); ky < high(y0, p.height, p.window[0]); ky++)
            for (i64 kx = low(x0); kx < high(x0, p.width, p.window[1]); kx++) {
                A v = widen(p.x[((n * p.height + y0 + ky) * p.width + x0 + kx) * p.channels + c]);
                if (which < 0 || v > best || is_nan(v)) {
                    best = v;
                    which = (int)(ky * p.window[1] + kx);
                }
            }
        p.y[i] = narrow<T>(best);
        p.index[i] = (u8)which;
    }
}
KERNEL(max_pool_gather, P) {
    EACH(i, p.images * p.out_height * p.out_width * p.channels) {
        PIXEL(i, p.out_height, p.out_width);
        i64 ky = p.index[i] / p.window[1], kx = p.index[i] % p.window[1];
        i64 y = py * p.stride[0] - p.pad[0] + ky, x = px * p.stride[1] - p.pad[1] + kx;
        bool inside = ky < p.window[0] && y >= 0 && y < p.height && x >= 0 && x < p.width;
        A v = inside ? (A)widen(p.x[((n * p.height + y) * p.width + x) * p.channels + c]) : (A)0;
        p.y[i] = narrow<T>(v);
    }
}
// The windows that read element i of an axis.
DEV i64 first_window(i64 place, i64 window, i64 stride) {
    return place + 1 <= window ? 0 : (place + 1 - window + stride - 1) / stride;
}
DEV i64 last_window(i64 place, i64 stride, i64 outputs) { return place / stride < outputs - 1 ? place / stride : outputs - 1; }
#define WINDOWS                                                                                                        \
    i64 ay = py + p.pad[0], ax = px + p.pad[1];                                                                        \
    i64 oy0 = first_window(ay, p.window[0], p.stride[0]), oy1 = last_window(ay, p.stride[0], p.out_height);            \
    i64 ox0 = first_window(ax, p.window[1], p.stride[1]), ox1 = last_window(ax, p.stride[1], p.out_width);
KERNEL(max_pool_grad, P) {
    EACH(i, p.images * p.height * p.width * p.channels) {
        PIXEL(i, p.height, p.width);
        WINDOWS;
        A s = (A)0;
        for (i64 oy = oy0; oy <= oy1; oy++)
            for (i64 ox = ox0; ox <= ox1; ox++) {
                i64 at = ((n * p.out_height + oy) * p.out_width + ox) * p.channels + c;
                i64 k = (ay - oy * p.stride[0]) * p.window[1] + ax - ox * p.stride[1];
                if (p.index[at] == k) s += (A)widen(p.x[at]);
            }
        p.y[i] = narrow<T>(s);
    }
}
DEV A share(const P &p, i64 oy, i64 ox) {
    if (p.count_pad) return (A)(p.window[0] * p.window[1]);
    i64 y0 = oy * p.stride[0] - p.pad[0], x0 = ox * p.stride[1] - p.pad[1];
    return (A)((high(y0, p.height, p.window[0]) - low(y0)) * (high(x0, p.width, p.window[1]) - low(x0)));
}
KERNEL(avg_pool, P) {
    EACH(i, p.images * p.out_height * p.out_width * p.channels) {
        PIXEL(i, p.out_height, p.out_width);
        i64 y0 = py * p.stride[0] - p.pad[0], x0 = px * p.stride[1] - p.pad[1];
        A s = (A)0;
        for (i64 ky = low(y0); ky < high(y0, p.height, p.window[0]); ky++)
            for (i64 kx = low(x0); kx < high(x0, p.width, p.window[1]); kx++)
                s += (A)widen(p.x[((n * p.height + y0 + ky) * p.width + x0 + kx) * p.channels + c]);
        p.y[i] = narrow<T>(s / share(p, py, px));
    }
}
KERNEL(avg_pool_grad, P) {
    EACH(i, p.images * p.height * p.width * p.channels) {
        PIXEL(i, p.height, p.width);
        WINDOWS;
        A s = (A)0;
        for (i64 oy = oy0; oy <= oy1; oy++)
            for (i64 ox = ox0; ox <= ox1; ox++)
                s += (A)widen(p.x[((n * p.out_height + oy) * p.out_width + ox) * p.channels + c]) / share(p, oy, ox);
        p.y[i] = narrow<T>(s);
    }
}
