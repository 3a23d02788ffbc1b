// A tile of a weight of few bits as numbers of T: FORM is 0 for int8, 1 for NF4; N numbers of a row a thread.
//
// Products and sums are not contracted, so that numbers are those of the host.

struct P {
    const u8 *codes, *blocks;
    const A *scales, *mean;
    T *out;
    i64 columns, row, column, rows, width;
};

KERNEL(unpack, P) {
#if FORM == 1
    __shared__ float values[256], levels[16];
    const float table[16] = {
        -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f, -0.28444138169288635f, -0.18477343022823334f,
        -0.09105003625154495f, 0.0f, 0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f,
        0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f};
    values[threadIdx.x] = value_of(threadIdx.x, true);
    if (threadIdx.x < 16) levels[threadIdx.x] = table[threadIdx.x];
    __syncthreads();
#endif
    i64 across = p.width / N;
    EACH(e, p.rows * across) {
        i64 r = e / across, c = e % across * N, at = (p.row + r) * p.columns + p.column + c;
        Pack<T, N> out;
#if FORM == 1
        // A block has 64 numbers: those of a thread are of one, where N is 8.
        i64 block = at / 64;
        float most = values[p.blocks[block]] * (float)p.scales[block / 256] + (float)p.mean[0];
#if N == 8
        u32 four = *(const u32 *)(p.codes + at / 2);
#endif
        for (int i = 0; i < N; i++) {
#if N == 8
            u32 byte = four >> (i / 2 * 8) & 255;
#else
            u32 byte = p.codes[at / 2];
#endif
            u32 code = (at + i) % 2 == 0 ? byte >> 4 : byte & 15;
            out.v[i] = narrow<T>(levels[code] * most);
        }
#else
        float scale = (float)p.scales[p.row + r] / 127.0f;
#if N == 8
        u64 eight = *(const u64 *)(p.codes + at);
#endif
        for (int i = 0; i < N; i++) {
#if N == 8
            i8 code = (i8)(eight >> (i * 8) & 255);
#else
            i8 code = (i8)p.codes[at];
#endif
            out.v[i] = narrow<T>((float)code * scale);
        }
#endif
        store_pack<T, N>(p.out, r * p.width + c, out);
    }
}
