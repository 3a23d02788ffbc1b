// An optimizer's step over state in bf16, and over parameters in f32 or bf16 (T), rounded by draws of a counter; a thread a block of four draws.

struct P {
    Moved moved;
    const i64 *key;
    const bf16 *m;
    const bf16 *v;
    bf16 *new_m;
    bf16 *new_v;
    i64 first;
    i64 stream;
    // Whether all of it lies so that four numbers can be read and written at once.
    i64 by_four;
};

// The upper half of a number's bits, one more as often as its lower half is of 2^16; what is no number stays none.
DEV bf16 rounded(float x, u32 dither) {
    u32 bits = bits_of(x), magnitude = bits & 0x7fffffffu;
    u32 quiet = bits | (magnitude > 0x7f800000u ? 0x400000u : 0u);
    bf16 r;
    r.bits = (u16)((magnitude >= 0x7f800000u ? quiet : bits + dither) >> 16);
    return r;
}

// A parameter is rounded only where it is kept in bf16.
DEV void keep(float &at, float x, u32) { at = x; }
DEV void keep(bf16 &at, float x, u32 dither) { at = rounded(x, dither); }

KERNEL(bf16_update, P) {
    Shares s = shares_of(p.moved);
    u64 seed = (u64)p.key[0], step = (u64)p.key[1];
    i64 end = p.first + p.moved.n, block0 = p.first / 4;
    EACH(b, (end + 3) / 4 - block0) {
        i64 block = block0 + b;
        // A shard begins and ends anywhere in a block.
        i64 i = block * 4 - p.first;
        bool whole = p.by_four && i >= 0 && i + 4 <= p.moved.n;
        Pack<T, 4> value = {}, grad = {};
        Pack<bf16, 4> m = {}, v = {};
        if (whole) {
            value = load_pack<T, 4>(p.moved.value, i);
            grad = load_pack<T, 4>(p.moved.grad, i);
            m = load_pack<bf16, 4>(p.m, i);
#if RULE == 0
            v = load_pack<bf16, 4>(p.v, i);
#endif
        } else {
            for (int k = 0; k < 4; k++) {
                if (i + k < 0 || i + k >= p.moved.n) continue;
                value.v[k] = p.moved.value[i + k];
                grad.v[k] = p.moved.grad[i + k];
                m.v[k] = p.m[i + k];
#if RULE == 0
                v.v[k] = p.v[i + k];
#endif
            }
        }
        u32 w[4];
        philox(seed, step, 0, (u32)p.stream, (u32)block, w);
        for (int k = 0; k < 4; k++) {
            float mean = widen(m.v[k]), square = widen(v.v[k]);
            keep(value.v[k], moved_to(s, widen(value.v[k]), widen(grad.v[k]), mean, square), w[k] * 0x9e3779b9u >> 16);
            m.v[k] = rounded(mean, w[k] & 0xffffu);
            v.v[k] = rounded(square, w[k] >> 16);
        }
        if (whole) {
            store_pack<T, 4>(p.moved.out, i, value);
            store_pack<bf16, 4>(p.new_m, i, m);
#if RULE == 0
            store_pack<bf16, 4>(p.new_v, i, v);
#endif
        } else {
            for (int k = 0; k < 4; k++) {
                if (i + k < 0 || i + k >= p.moved.n) continue;
                p.moved.out[i + k] = value.v[k];
                p.new_m[i + k] = m.v[k];
#if RULE == 0
                p.new_v[i + k] = v.v[k];
#endif
            }
        }
    }
}
