// An optimizer's step over state in bf16, rounded by draws of a counter; a thread a block of four draws.

struct P {
    Moved moved;
    const i64 *key;
    const bf16 *m;
    const bf16 *v;
    bf16 *new_m;
    bf16 *new_v;
    i64 first;
    i64 stream;
};

// The upper half of a number's bits, one more as often as its lower half is of 2^16; what is no number stays none.
DEV bf16 rounded(float x, u32 dither) {
    u32 bits = bits_of(x), magnitude = bits & 0x7fffffffu;
    u32 quiet = bits | (magnitude > 0x7f800000u ? 0x400000u : 0u);
    bf16 r;
    r.bits = (u16)((magnitude >= 0x7f800000u ? quiet : bits + dither) >> 16);
    return r;
}

KERNEL(bf16_update, P) {
    Shares s = shares_of(p.moved);
    u64 seed = (u64)p.key[0], step = (u64)p.key[1];
    i64 end = p.first + p.moved.n, block0 = p.first / 4;
    EACH(b, (end + 3) / 4 - block0) {
        i64 block = block0 + b;
        u32 w[4];
        philox(seed, step, 0, (u32)p.stream, (u32)block, w);
        for (int k = 0; k < 4; k++) {
            // A shard begins and ends anywhere in a block.
            i64 i = block * 4 + k - p.first;
            if (i < 0 || i >= p.moved.n) continue;
            float m = widen(p.m[i]), v = 0.0f;
#if RULE == 0
            v = widen(p.v[i]);
#endif
            moved_by(p.moved, s, i, m, v);
            p.new_m[i] = rounded(m, w[k] & 0xffffu);
#if RULE == 0
            p.new_v[i] = rounded(v, w[k] >> 16);
#endif
        }
    }
}
