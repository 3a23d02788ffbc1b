// An optimizer's step over state in bf16, and over parameters in f32 or bf16 (T), rounded by draws of a counter; a thread two blocks of four draws. With
// WHOLE all of it lies so that eight numbers are read and written at once; without, a shard begins and ends anywhere in a block.

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
template <bool IS_NUMBER> DEV bf16 rounded(float x, u32 dither) {
    u32 bits = bits_of(x), magnitude = bits & 0x7fffffffu;
    u32 quiet = bits | (magnitude > 0x7f800000u ? 0x400000u : 0u);
    bf16 r;
    r.bits = (u16)((!IS_NUMBER && magnitude >= 0x7f800000u ? quiet : bits + dither) >> 16);
    return r;
}

// A parameter is rounded only where it is kept in bf16.
template <bool IS_NUMBER> DEV void keep(float &at, float x, u32) { at = x; }
template <bool IS_NUMBER> DEV void keep(bf16 &at, float x, u32 dither) { at = rounded<IS_NUMBER>(x, dither); }

// Numbers of a thread: those of two blocks of four draws.
#define OF_THREAD 8

KERNEL(bf16_update, P) {
    Shares s = shares_of(p.moved);
    u64 seed = (u64)p.key[0], step = (u64)p.key[1];
    i64 end = p.first + p.moved.n, share0 = p.first / OF_THREAD;
    EACH(b, (end + OF_THREAD - 1) / OF_THREAD - share0) {
        i64 share = share0 + b, i = share * OF_THREAD - p.first;
        Pack<T, OF_THREAD> value = {}, grad = {};
        Pack<bf16, OF_THREAD> m = {}, v = {};
#if WHOLE
        value = load_pack<T, OF_THREAD>(p.moved.value, i);
        grad = load_pack<T, OF_THREAD>(p.moved.grad, i);
        m = load_pack<bf16, OF_THREAD>(p.m, i);
#if RULE == 0
        v = load_pack<bf16, OF_THREAD>(p.v, i);
#endif
#else
#pragma unroll
        for (int k = 0; k < OF_THREAD; k++) {
            if (i + k < 0 || i + k >= p.moved.n) continue;
            value.v[k] = p.moved.value[i + k];
            grad.v[k] = p.moved.grad[i + k];
            m.v[k] = p.m[i + k];
#if RULE == 0
            v.v[k] = p.v[i + k];
#endif
        }
#endif
#pragma unroll
        for (int block = 0; block < OF_THREAD / 4; block++) {
            u32 w[4];
            philox(seed, step, 0, (u32)p.stream, (u32)(share * (OF_THREAD / 4) + block), w);
            float to[4], mean[4], square[4], all = 0.0f;
#pragma unroll
            for (int draw = 0; draw < 4; draw++) {
                int k = block * 4 + draw;
                mean[draw] = widen(m.v[k]), square[draw] = widen(v.v[k]);
                to[draw] = moved_to(s, widen(value.v[k]), widen(grad.v[k]), mean[draw], square[draw]);
                all += fabsf(mean[draw]) + fabsf(square[draw]) + fabsf(to[draw]);
            }
            // A sum that is a number has none but numbers in it, which are rounded without a look at what else there may be.
            if (all < INF_F) {
#pragma unroll
                for (int draw = 0; draw < 4; draw++) {
                    int k = block * 4 + draw;
                    keep<true>(value.v[k], to[draw], w[draw] * 0x9e3779b9u >> 16);
                    m.v[k] = rounded<true>(mean[draw], w[draw] & 0xffffu);
                    v.v[k] = rounded<true>(square[draw], w[draw] >> 16);
                }
            } else {
#pragma unroll
                for (int draw = 0; draw < 4; draw++) {
                    int k = block * 4 + draw;
                    keep<false>(value.v[k], to[draw], w[draw] * 0x9e3779b9u >> 16);
                    m.v[k] = rounded<false>(mean[draw], w[draw] & 0xffffu);
                    v.v[k] = rounded<false>(square[draw], w[draw] >> 16);
                }
            }
        }
#if WHOLE
        store_pack<T, OF_THREAD>(p.moved.out, i, value);
        store_pack<bf16, OF_THREAD>(p.new_m, i, m);
#if RULE == 0
        store_pack<bf16, OF_THREAD>(p.new_v, i, v);
#endif
#else
#pragma unroll
        for (int k = 0; k < OF_THREAD; k++) {
            if (i + k < 0 || i + k >= p.moved.n) continue;
            p.moved.out[i + k] = value.v[k];
            p.new_m[i + k] = m.v[k];
#if RULE == 0
            p.new_v[i + k] = v.v[k];
#endif
        }
#endif
    }
}
