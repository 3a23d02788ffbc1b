// What kernels on tensor cores are made of: products of 16 × 16 by 16 × 8 for a warp, and the ways to their operands.
//
// T is bf16 or f16, MMA its name in PTX. Lane 4g + t of a warp holds of the left operand rows g and g + 8, of the right one column g, and
// of the sums rows g and g + 8 at columns 2t and 2t + 1. Tiles in shared memory have rows of PITCH(width) elements, so that eight
// rows of one column lie in different banks.

#define PITCH(width) ((width) + 8)

#ifndef PLIMSOLL_HOST
DEV u32 shared_at(const void *x) { return (u32)__cvta_generic_to_shared(x); }
// Sixteen bytes into shared memory, later; zeros where there is nothing.
DEV void copy_later(void *to, const void *from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_at(to)), "l"(from), "r"(there ? 16 : 0));
}
DEV void end_of_group() { asm volatile("cp.async.commit_group;"); }
// Waits until at most N groups of copies are left.
template <int N> DEV void wait_for_groups() { asm volatile("cp.async.wait_group %0;" ::"n"(N)); }
template <bool TURNED> DEV void load_tiles(u32 *r, const T *row) {
    u32 at = shared_at(row);
    if (TURNED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at));
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                     : "r"(at));
}
// c += a · b.
DEV void product(float *c, const u32 *a, const u32 *b) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." MMA "." MMA ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// Two numbers, rounded, side by side.
DEV u32 both(float low, float high) {
    u32 r;
    asm("cvt.rn." MMA "x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
#else
DEV void copy_later(void *to, const void *from, bool there) {
    if (there) memcpy(to, from, 16);
    else memset(to, 0, 16);
}
DEV void end_of_group() {}
template <int N> DEV void wait_for_groups() {}
static u64 tensor_slot[1024][6];
template <bool TURNED> DEV void load_tiles(u32 *r, const T *row) {
    int me = threadIdx.x, lane = me % 32, warp = me - lane;
    tensor_slot[me][0] = (u64)row;
    __syncthreads();
    for (int i = 0; i < 4; i++) {
        u32 pair = 0;
        for (int e = 0; e < 2; e++) {
            int across = lane / 4, along = 2 * (lane % 4) + e;
            const T *from = (const T *)tensor_slot[warp + i * 8 + (TURNED ? along : across)][0];
            pair |= (u32)from[TURNED ? across : along].bits << 16 * e;
        }
        r[i] = pair;
    }
    __syncthreads();
}
DEV float half_of(u64 pair, int e) {
    T x;
    x.bits = (u16)(pair >> 16 * e);
    return widen(x);
}
DEV void product(float *c, const u32 *a, const u32 *b) {
    int me = threadIdx.x, lane = me % 32, warp = me - lane, g = lane / 4, t = lane % 4;
    for (int i = 0; i < 4; i++) tensor_slot[me][i] = a[i];
    for (int i = 0; i < 2; i++) tensor_slot[me][4 + i] = b[i];
    __syncthreads();
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < 16; k++) {
            int far = k / 8, at = k % 8 / 2, column = 2 * t + i % 2;
            c[i] += half_of(tensor_slot[warp + 4 * g + at][2 * far + i / 2], k % 2) *
                    half_of(tensor_slot[warp + 4 * column + at][4 + far], k % 2);
        }
    __syncthreads();
}
DEV u32 both(float low, float high) { return (u32)narrow<T>(low).bits | (u32)narrow<T>(high).bits << 16; }
#endif

// A left operand of 16 rows and 16 columns.
DEV void load_left(u32 *r, const T *tile, int pitch, int row, int column) {
    int l = threadIdx.x % 32;
    load_tiles<false>(r, tile + (row + l % 16) * pitch + column + l / 16 * 8);
}
// Right operands of 16 terms for two times eight columns, from a tile whose rows are the columns.
DEV void load_right(u32 *r, const T *tile, int pitch, int column, int term) {
    int l = threadIdx.x % 32;
    load_tiles<false>(r, tile + (column + l % 8 + l / 16 * 8) * pitch + term + l / 8 % 2 * 8);
}
// The same from a tile whose rows are the terms.
DEV void load_right_turned(u32 *r, const T *tile, int pitch, int column, int term) {
    int l = threadIdx.x % 32;
    load_tiles<true>(r, tile + (term + l % 16) * pitch + column + l / 16 * 8);
}
