// Squares of F by F pixels, of C channels each, as DEEP channels of one pixel, the rest zeros: then a convolution with a stride of F
// has a stride of one. T is an unsigned type of the elements' size.

struct alignas(16) Deep {
    T t[DEEP];
};
struct P {
    const T *x;
    T *y;
    // Images, their pixels, and the pixels of folded ones.
    i64 images;
    i64 height;
    i64 width;
    i64 rows;
    i64 columns;
    // Padding before the first pixel.
    i64 top;
    i64 left;
    // The window [down, across, C, filters], which is folded to [filters, tall, wide, DEEP].
    i64 filters;
    i64 down;
    i64 across;
};
KERNEL(fold_images, P) {
    EACH(i, p.images * p.rows * p.columns) {
        i64 w = i % p.columns * F - p.left, h = i / p.columns % p.rows * F - p.top, n = i / p.columns / p.rows;
        Deep to;
#pragma unroll
        for (int e = 0; e < DEEP; e++) to.t[e] = 0;
#pragma unroll
        for (int dy = 0; dy < F; dy++)
#pragma unroll
            for (int dx = 0; dx < F; dx++) {
                bool there = h + dy >= 0 && h + dy < p.height && w + dx >= 0 && w + dx < p.width;
                const T *from = p.x + (there ? ((n * p.height + h + dy) * p.width + w + dx) * C : 0);
#pragma unroll
                for (int c = 0; c < C; c++) to.t[(dy * F + dx) * C + c] = there ? from[c] : (T)0;
            }
        ((Deep *)p.y)[i] = to;
    }
}
KERNEL(fold_filter, P) {
    i64 tall = (p.down + F - 1) / F, wide = (p.across + F - 1) / F;
    EACH(i, p.filters * tall * wide * DEEP) {
        i64 e = i % DEEP, s = i / DEEP % wide, r = i / DEEP / wide % tall, k = i / DEEP / wide / tall;
        i64 y = r * F + e / C / F, x = s * F + e / C % F;
        bool there = e < F * F * C && y < p.down && x < p.across;
        p.y[i] = there ? p.x[((y * p.across + x) * C + e % C) * p.filters + k] : (T)0;
    }
}
KERNEL(unfold_filter, P) {
    i64 tall = (p.down + F - 1) / F, wide = (p.across + F - 1) / F;
    EACH(i, p.down * p.across * C * p.filters) {
        i64 k = i % p.filters, c = i / p.filters % C, x = i / p.filters / C % p.across, y = i / p.filters / C / p.across;
        i64 e = ((y % F) * F + x % F) * C + c;
        p.y[i] = p.x[((k * tall + y / F) * wide + x / F) * DEEP + e];
    }
}
