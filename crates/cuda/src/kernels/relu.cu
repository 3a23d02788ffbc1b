// Relu with one bit an element; a thread makes or reads one byte of bits.

struct P {
    i64 n;
    const T *x;
    T *y;
    u8 *mask;
};
KERNEL(relu_mask, P) {
    EACH(b, (p.n + 7) / 8) {
        u32 bits = 0;
        for (int k = 0; k < 8; k++) {
            i64 i = b * 8 + k;
            if (i >= p.n) break;
            A x = widen(p.x[i]);
            bits |= (u32)(x > (A)0) << k;
            p.y[i] = narrow<T>(larger(x, (A)0));
        }
        p.mask[b] = (u8)bits;
    }
}
KERNEL(relu_mask_grad, P) {
    EACH(i, p.n) {
        A dy = widen(p.x[i]);
        p.y[i] = narrow<T>((p.mask[i / 8] >> (i % 8)) & 1 ? dy : (A)0);
    }
}
