// Convolutions as products of matrices whose elements are read from the images, window by window.

struct P {
    const T *x, *w, *y;
    T *to;
    const T *bias;
    A *partial;
    i64 images, height, width, channels, out_height, out_width;
    i64 filters, window[2], stride[2], pad[2], dilation[2], groups, pieces;
    double s0, s1;
};
// x at (window, place in the window and channel): 0 in the padding.
struct Windows {
    static const bool DEEP = true;
    const P *p;
    i64 group;
    i64 row, n, y0, x0;
    DEV void move_to(i64 r) {
        row = r;
        i64 ox = r % p->out_width, q = r / p->out_width;
        n = q / p->out_height;
        y0 = q % p->out_height * p->stride[0] - p->pad[0];
        x0 = ox * p->stride[1] - p->pad[1];
    }
    DEV A read(i64 r, i64 k) {
        if (r != row) move_to(r);
        i64 depth = p->channels / p->groups, c = k % depth, q = k / depth;
        i64 y = y0 + q / p->window[1] * p->dilation[0], x = x0 + q % p->window[1] * p->dilation[1];
        if (y < 0 || y >= p->height || x < 0 || x >= p->width) return (A)0;
        return (A)widen(p->x[((n * p->height + y) * p->width + x) * p->channels + group * depth + c]);
    }
    DEV A at(i64 r, i64 k) { return read(r, k); }
};
// The columns of a group in rows of all filters: w, or dy.
struct ByFilter {
    static const bool DEEP = false;
    const P *p;
    const T *from;
    i64 group;
    DEV A at(i64 r, i64 c) { return (A)widen(from[r * p->filters + group * (p->filters / p->groups) + c]); }
};
// The columns of a group in rows of all `columns` of a result, with what comes after the sum.
struct Result {
    const P *params;
    i64 group, columns;
    DEV void put(i64 r, i64 c, A v) {
        const P &p = *params;
        i64 f = group * (columns / p.groups) + c;
        if (p.bias) v += (A)widen(p.bias[f]);
        p.to[r * columns + f] = narrow<T>(ACT(v));
    }
};
KERNEL(conv, P) {
    i64 g = blockIdx.y;
    Windows left = {&p, g, -1, 0, 0, 0};
    ByFilter right = {&p, p.w, g};
    Result out = {&p, g, p.filters};
    tile_product(left, right, out, p.images * p.out_height * p.out_width, p.filters / p.groups, 0,
                 p.window[0] * p.window[1] * (p.channels / p.groups));
}

// dy at (pixel of x, place in the window and filter): 0 where no window has that pixel at that place.
struct Spread {
    static const bool DEEP = true;
    const P *p;
    i64 group;
    DEV A at(i64 r, i64 k) {
        i64 depth = p->filters / p->groups, f = k % depth, q = k / depth;
        i64 ix = r % p->width, iy = r / p->width % p->height, n = r / p->width / p->height;
        i64 y = iy + p->pad[0] - q / p->window[1] * p->dilation[0], x = ix + p->pad[1] - q % p->window[1] * p->dilation[1];
        if (y < 0 || x < 0 || y % p->stride[0] != 0 || x % p->stride[1] != 0) return (A)0;
        y /= p->stride[0];
        x /= p->stride[1];
        if (y >= p->out_height || x >= p->out_width) return (A)0;
        return (A)widen(p->y[((n * p->out_height + y) * p->out_width + x) * p->filters + group * depth + f]);
    }
};
struct TurnedFilter {
    static const bool DEEP = true;
    const P *p;
    i64 group;
    DEV A at(i64 k, i64 c) {
        i64 out = p->filters / p->groups, in = p->channels / p->groups, f = k % out, q = k / out;
        return (A)widen(p->w[(q * in + c) * p->filters + group * out + f]);
    }
};
KERNEL(conv_grad_input, P) {
    i64 g = blockIdx.y;
    Spread left = {&p, g};
    TurnedFilter right = {&p, g};
    Result out = {&p, g, p.channels};
    tile_product(left, right, out, p.images * p.height * p.width, p.channels / p.groups, 0,
                 p.window[0] * p.window[1] * (p.filters / p.groups));
}

// The filter's gradient sums over all windows: in pieces, which are added in order.
struct TurnedWindows {
    static const bool DEEP = false;
    Windows windows;
    DEV A at(i64 k, i64 r) { return windows.read(r, k); }
};
struct Piece {
    const P *params;
    i64 group;
    i64 piece;
    DEV void put(i64 k, i64 c, A v) {
        const P &p = *params;
        i64 rows = p.window[0] * p.window[1] * (p.channels / p.groups), at = k * p.filters + group * (p.filters / p.groups) + c;
        if (p.pieces > 1)
            p.partial[piece * rows * p.filters + at] = v;
        else
            p.to[at] = narrow<T>(v);
    }
};
KERNEL(conv_grad_filter, P) {
    i64 g = blockIdx.y, piece = blockIdx.z, rows = p.images * p.out_height * p.out_width;
    i64 chunk = (rows + p.pieces - 1) / p.pieces, start = piece * chunk, end = start + chunk < rows ? start + chunk : rows;
    TurnedWindows left = {{&p, g, -1, 0, 0, 0}};
    ByFilter right = {&p, p.y, g};
    Piece out = {&p, g, piece};
    tile_product(left, right, out, p.window[0] * p.window[1] * (p.channels / p.groups), p.filters / p.groups, start, end);
}
KERNEL(add_pieces, P) {
    i64 n = p.window[0] * p.window[1] * (p.channels / p.groups) * p.filters;
    EACH(i, n) {
        A v = (A)0;
        for (i64 s = 0; s < p.pieces; s++) v += p.partial[s * n + i];
        p.to[i] = narrow<T>(v);
    }
}
// What a library's convolution leaves to do: `images` rows of `filters`.
KERNEL(finish, P) {
    EACH(i, p.images * p.filters) {
        A v = (A)widen(p.to[i]);
        if (p.bias) v += (A)widen(p.bias[i % p.filters]);
        p.to[i] = narrow<T>(ACT(v));
    }
}
