// Images at another size; a thread an element of the result. Places are computed in f64, as everywhere.

struct P {
    const T *x;
    T *y;
    i64 images;
    i64 channels;
    i64 old[2];
    i64 now[2];
    i64 bilinear;
    i64 align_corners;
};
struct Source {
    i64 first;
    i64 second;
    double weight;
};
DEV Source source(const P &p, int axis, i64 i) {
    i64 old = p.old[axis], now = p.now[axis];
    Source s;
    if (!p.bilinear) {
        s.first = s.second = i * old / now;
        s.weight = 0.0;
        return s;
    }
    double place = 0.0;
    if (p.align_corners) {
        if (now > 1) place = (double)i * (double)(old - 1) / (double)(now - 1);
    } else {
        place = ((double)i + 0.5) * (double)old / (double)now - 0.5;
        if (place < 0.0) place = 0.0;
    }
    s.first = (i64)place < old - 1 ? (i64)place : old - 1;
    s.second = s.first + 1 < old - 1 ? s.first + 1 : old - 1;
    s.weight = place - (double)s.first;
    return s;
}
KERNEL(resize, P) {
    EACH(i, p.images * p.now[0] * p.now[1] * p.channels) {
        i64 c = i % p.channels, q = i / p.channels, ox = q % p.now[1], oy = q / p.now[1] % p.now[0], n = q / p.now[1] / p.now[0];
        Source v = source(p, 0, oy), h = source(p, 1, ox);
        A wy = (A)v.weight, wx = (A)h.weight;
        const T *x = p.x + n * p.old[0] * p.old[1] * p.channels + c;
#define PIXEL(r, k) ((A)widen(x[((r) * p.old[1] + (k)) * p.channels]))
        if (!p.bilinear) {
            p.y[i] = narrow<T>(PIXEL(v.first, h.first));
            continue;
        }
        A top = PIXEL(v.first, h.first) * ((A)1 - wx) + PIXEL(v.first, h.second) * wx;
        A bottom = PIXEL(v.second, h.first) * ((A)1 - wx) + PIXEL(v.second, h.second) * wx;
        p.y[i] = narrow<T>(top * ((A)1 - wy) + bottom * wy);
    }
}
// The pixels of the result that read pixel j: sources ascend, so they are a range.
DEV void readers(const P &p, int axis, i64 j, i64 &start, i64 &end) {
    i64 low = 0, high = p.now[axis];
    while (low < high) {
        i64 middle = low + (high - low) / 2;
        if (source(p, axis, middle).second >= j)
            high = middle;
        else
            low = middle + 1;
    }
    start = low;
    high = p.now[axis];
    while (low < high) {
        i64 middle = low + (high - low) / 2;
        if (source(p, axis, middle).first > j)
            high = middle;
        else
            low = middle + 1;
    }
    end = low;
}
DEV A weight(const P &p, int axis, i64 i, i64 j) {
    Source s = source(p, axis, i);
    return (s.first == j ? (A)(1.0 - s.weight) : (A)0) + (s.second == j ? (A)s.weight : (A)0);
}
KERNEL(resize_grad, P) {
    EACH(i, p.images * p.old[0] * p.old[1] * p.channels) {
        i64 c = i % p.channels, q = i / p.channels, ix = q % p.old[1], iy = q / p.old[1] % p.old[0], n = q / p.old[1] / p.old[0];
        i64 y0, y1, x0, x1;
        readers(p, 0, iy, y0, y1);
        readers(p, 1, ix, x0, x1);
        A s = (A)0;
        for (i64 oy = y0; oy < y1; oy++) {
            A wy = weight(p, 0, oy, iy), row = (A)0;
            for (i64 ox = x0; ox < x1; ox++)
                row += weight(p, 1, ox, ix) * (A)widen(p.x[((n * p.now[0] + oy) * p.now[1] + ox) * p.channels + c]);
            s += wy * row;
        }
        p.y[i] = narrow<T>(s);
    }
}
