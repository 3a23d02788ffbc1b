// Relu with one bit an element; a thread makes or reads one byte of bits. N is 8 where elements come in eights, else 1.

struct P {
    i64 n;
    const T *x;
    T *y;
    u8 *mask;
};
KERNEL(relu_mask, P) {
    EACH(b, (p.n + 7) / 8) {
        u32 bits = 0;
        for (int k = 0; k < 8; k += N) {
            i64 i = b * 8 + k;
            if (i >= p.n) break;
            Pack<T, N> x = load_pack<T, N>(p.x, i);
            for (int e = 0; e < N; e++) {
                A v = widen(x.v[e]);
                bits |= (u32)(v > (A)0) << (k + e);
                x.v[e] = narrow<T>(larger(v, (A)0));
            }
            store_pack<T, N>(p.y, i, x);
        }
        p.mask[b] = (u8)bits;
    }
}
KERNEL(relu_mask_grad, P) {
    EACH(b, (p.n + 7) / 8) {
        u32 bits = p.mask[b];
        for (int k = 0; k < 8; k += N) {
            i64 i = b * 8 + k;
            if (i >= p.n) break;
            Pack<T, N> x = load_pack<T, N>(p.x, i);
            for (int e = 0; e < N; e++)
                if (!((bits >> (k + e)) & 1)) x.v[e] = narrow<T>((A)0);
            store_pack<T, N>(p.y, i, x);
        }
    }
}
