// Images read at places of a grid, and the gradients of both. Sums are the same in every run: a thread adds all that goes to a channel of
// an image, in the order of the grid.

struct P {
    const T *x;
    const A *grid;
    const T *dy;
    T *y;
    A *dgrid, *sum;
    i64 samples, height, width, places, channels, nearest, border, align;
};
// One axis at a place: two neighbours, -1 where there is none, their shares, and how fast those change.
struct Line {
    i64 pixel[2];
    A share[2], change[2];
};
DEV i64 number(A pixel, i64 n) { return pixel >= (A)0 && pixel < (A)n ? (i64)pixel : -1; }
DEV Line line_at(const P &p, A place, i64 length) {
    A n = (A)length, at, slope;
    if (p.align) {
        at = (place + (A)1) * (A)0.5 * (n - (A)1);
        slope = (n - (A)1) * (A)0.5;
    } else {
        at = ((place + (A)1) * n - (A)1) * (A)0.5;
        slope = n * (A)0.5;
    }
    if (p.border && at <= (A)0) {
        at = (A)0;
        slope = (A)0;
    } else if (p.border && at >= n - (A)1) {
        at = n - (A)1;
        slope = (A)0;
    }
    Line l;
    if (p.nearest) {
        A low = m_floor(at), part = at - low;
        // Halves go to the even pixel.
        bool up = part > (A)0.5 || (part == (A)0.5 && m_floor(low * (A)0.5) * (A)2 != low);
        l.pixel[0] = number(up ? low + (A)1 : low, length);
        l.pixel[1] = -1;
        l.share[0] = (A)1;
        l.share[1] = l.change[0] = l.change[1] = (A)0;
        return l;
    }
    A low = m_floor(at);
    l.pixel[0] = number(low, length);
    l.pixel[1] = number(low + (A)1, length);
    l.share[0] = (A)1 - (at - low);
    l.share[1] = at - low;
    l.change[0] = -slope;
    l.change[1] = slope;
    return l;
}
#define TAPS(i, j, down, across)                                                                                       \
    for (int i = 0; i < 2; i++)                                                                                        \
        for (int j = 0; j < 2; j++)                                                                                    \
            if (down.pixel[i] >= 0 && across.pixel[j] >= 0)
#define NOT_A_NUMBER ((A)NAN_F)
DEV bool is_place(const A *at) { return at[0] == at[0] && at[1] == at[1]; }

KERNEL(sample, P) {
    EACH(g, p.samples * p.places * p.channels) {
        i64 c = g % p.channels, q = g / p.channels, n = q / p.places;
        const A *at = p.grid + 2 * q;
        if (!is_place(at)) {
            p.y[g] = narrow<T>(NOT_A_NUMBER);
            continue;
        }
        Line across = line_at(p, at[0], p.width), down = line_at(p, at[1], p.height);
        A s = (A)0;
        TAPS(i, j, down, across)
        s += across.share[j] * down.share[i] *
             (A)widen(p.x[((n * p.height + down.pixel[i]) * p.width + across.pixel[j]) * p.channels + c]);
        p.y[g] = narrow<T>(s);
    }
}
KERNEL(image_grad, P) {
    EACH(g, p.samples * p.channels) {
        i64 c = g % p.channels, n = g / p.channels, pixels = p.height * p.width;
        A *sum = p.sum + n * pixels * p.channels + c;
        for (i64 k = 0; k < pixels; k++) sum[k * p.channels] = (A)0;
        for (i64 q = n * p.places; q < (n + 1) * p.places; q++) {
            const A *at = p.grid + 2 * q;
            if (!is_place(at)) continue;
            Line across = line_at(p, at[0], p.width), down = line_at(p, at[1], p.height);
            A slope = (A)widen(p.dy[q * p.channels + c]);
            TAPS(i, j, down, across)
            sum[(down.pixel[i] * p.width + across.pixel[j]) * p.channels] += across.share[j] * down.share[i] * slope;
        }
        T *dx = p.y + n * pixels * p.channels + c;
        for (i64 k = 0; k < pixels; k++) dx[k * p.channels] = narrow<T>(sum[k * p.channels]);
    }
}
KERNEL(grid_grad, P) {
    EACH(q, p.samples * p.places) {
        const A *at = p.grid + 2 * q;
        A right = (A)0, below = (A)0;
        if (is_place(at)) {
            Line across = line_at(p, at[0], p.width), down = line_at(p, at[1], p.height);
            TAPS(i, j, down, across) {
                const T *x = p.x + ((q / p.places * p.height + down.pixel[i]) * p.width + across.pixel[j]) * p.channels;
                A s = (A)0;
                for (i64 c = 0; c < p.channels; c++) s += (A)widen(p.dy[q * p.channels + c]) * (A)widen(x[c]);
                right += across.change[j] * down.share[i] * s;
                below += across.share[j] * down.change[i] * s;
            }
        } else {
            right = below = NOT_A_NUMBER;
        }
        p.dgrid[2 * q] = right;
        p.dgrid[2 * q + 1] = below;
    }
}
