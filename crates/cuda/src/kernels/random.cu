// Random values from Philox4x32-10; a thread a block of four elements of a sample.

struct P {
    const i64 *key;
    const T *x;
    T *y;
    i64 samples;
    i64 sample;
    i64 stream;
    i64 threshold;
    double a;
    double b;
};
DEV void words(const P &p, i64 index, u32 block, u32 *c) {
    philox((u64)p.key[0], (u64)p.key[1], (u64)p.key[2] + (u64)index, (u32)p.stream, block, c);
}
// A word's upper 24 bits as a number in [0, 1): exact in f32 and f64.
DEV A unit(u32 word) { return (A)(word >> 8) * (A)(1.0 / 16777216.0); }
#define BLOCKS                                                                                                         \
    i64 blocks = (p.sample + 3) / 4;                                                                                   \
    EACH(i, p.samples * blocks) {                                                                                      \
        i64 sample = i / blocks, first = i % blocks * 4, count = p.sample - first < 4 ? p.sample - first : 4;          \
        i64 at = sample * p.sample + first;                                                                            \
        u32 w[4];                                                                                                      \
        words(p, sample, (u32)(first / 4), w);
KERNEL(uniform, P) {
    BLOCKS;
    for (int k = 0; k < count; k++) p.y[at + k] = narrow<T>((A)p.a + (A)p.b * unit(w[k]));
}
}
// Four words as standard normal values, two of two.
DEV void normals(const u32 *w, A *v) {
    for (int k = 0; k < 4; k += 2) {
        A radius = m_sqrt((A)-2 * m_log((A)1 - unit(w[k]))), turn = (A)6.283185307179586476925 * unit(w[k + 1]);
        v[k] = radius * m_cos(turn);
        v[k + 1] = radius * m_sin(turn);
    }
}
KERNEL(normal, P) {
    BLOCKS;
    A v[4];
    normals(w, v);
    for (int k = 0; k < count; k++) p.y[at + k] = narrow<T>((A)p.a + (A)p.b * v[k]);
}
}
struct Truncated {
    const i64 *key;
    T *y;
    i64 samples;
    i64 sample;
    i64 streams[7];
    double std;
};
KERNEL(truncated_normal, Truncated) {
    i64 blocks = (p.sample + 3) / 4;
    A std = (A)p.std, bound = (A)2 * std;
    EACH(i, p.samples * blocks) {
        i64 sample = i / blocks, first = i % blocks * 4, count = p.sample - first < 4 ? p.sample - first : 4;
        i64 at = sample * p.sample + first;
        A v[4];
        // What lies beyond the bound is drawn again from the next stream.
        for (int draw = 0; draw < 7; draw++) {
            u32 w[4];
            bool beyond = draw == 0;
            for (int k = 0; draw > 0 && k < count; k++) beyond = beyond || v[k] > bound || v[k] < -bound;
            if (!beyond) break;
            philox((u64)p.key[0], (u64)p.key[1], (u64)p.key[2] + (u64)sample, (u32)p.streams[draw], (u32)(first / 4), w);
            A fresh[4];
            normals(w, fresh);
            for (int k = 0; k < 4; k++)
                if (draw == 0 || v[k] > bound || v[k] < -bound) v[k] = std * fresh[k];
        }
        for (int k = 0; k < count; k++) {
            A x = v[k] > bound ? bound : v[k];
            p.y[at + k] = narrow<T>(x < -bound ? -bound : x);
        }
    }
}
KERNEL(dropout, P) {
    BLOCKS;
    for (int k = 0; k < count; k++)
        p.y[at + k] = narrow<T>((i64)(w[k] >> 8) >= p.threshold ? (A)widen(p.x[at + k]) * (A)p.a : (A)0);
}
}
