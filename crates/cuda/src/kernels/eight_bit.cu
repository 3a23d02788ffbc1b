// An optimizer's step over state of one byte a number; a block of threads a block of 256 numbers, which share a scale.

struct P {
    Moved moved;
    const u8 *m;
    const float *m_scale;
    const u8 *v;
    const float *v_scale;
    u8 *new_m;
    float *new_m_scale;
    u8 *new_v;
    float *new_v_scale;
};

// Values and the bounds between them, made anew by every block of threads: 256 of each.
DEV void prepare(float *values, float *bounds, bool is_signed) {
    int t = threadIdx.x;
    values[t] = value_of(t, is_signed);
    __syncthreads();
    double between = t < 255 ? ((double)values[t] + (double)values[t + 1]) / 2.0 : 2.0;
    bounds[t] = !is_signed && t == 0 ? 0.0f : (float)between;
    __syncthreads();
}

// The number of bounds that are less than x.
DEV int code_of(const float *bounds, float x) {
    int code = 0;
    for (int half = 128; half > 0; half /= 2)
        if (bounds[code + half - 1] < x) code += half;
    return code;
}

// Writes one state of a block of numbers: its scale, the largest magnitude, and the nearest code of each.
DEV void write_state(const P &p, i64 block, i64 i, float x, const float *bounds, u8 *codes, float *scales) {
    // As whole numbers, magnitudes are in the same order, and what is no number is above all.
    int bits = i < p.moved.n ? (int)(bits_of(x) & 0x7fffffffu) : 0;
    float scale = float_of((u32)in_block<Largest>(bits));
    if (threadIdx.x == 0) scales[block] = scale;
    if (i < p.moved.n) codes[i] = (u8)code_of(bounds, scale > 0.0f ? x / scale : 0.0f);
}

KERNEL(eight_bit_update, P) {
    __shared__ float values[256], bounds[256];
#if RULE == 0
    __shared__ float squares[256], square_bounds[256];
    prepare(squares, square_bounds, false);
#endif
    prepare(values, bounds, true);
    Shares s = shares_of(p.moved);
    i64 blocks = (p.moved.n + 255) / 256;
    for (i64 block = blockIdx.x; block < blocks; block += gridDim.x) {
        i64 i = block * 256 + threadIdx.x;
        float m = 0.0f, v = 0.0f;
        if (i < p.moved.n) {
            m = values[p.m[i]] * p.m_scale[block];
#if RULE == 0
            v = squares[p.v[i]] * p.v_scale[block];
#endif
            p.moved.out[i] = moved_to(s, p.moved.value[i], p.moved.grad[i], m, v);
        }
        write_state(p, block, i, m, bounds, p.new_m, p.new_m_scale);
#if RULE == 0
        write_state(p, block, i, v, square_bounds, p.new_v, p.new_v_scale);
#endif
    }
}
