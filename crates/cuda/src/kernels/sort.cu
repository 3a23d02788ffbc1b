// The order of elements along an axis, as pairs of key and place that no two of are equal. Keys are unsigned and in the order of the
// elements. Lines of up to TILE elements are sorted in shared memory; longer ones tile by tile, whose runs are then merged.

#if WIDE_KEY
struct Pair {
    u64 key, place;
};
DEV bool before(const Pair &a, const Pair &b) { return a.key < b.key || (a.key == b.key && a.place < b.place); }
DEV Pair pair(u64 key, i64 place) {
    Pair r;
    r.key = key;
    r.place = (u64)place;
    return r;
}
DEV i64 place_of(const Pair &a) { return (i64)a.place; }
#define LAST pair(~0ull, -1)
#else
typedef u64 Pair;
DEV bool before(Pair a, Pair b) { return a < b; }
DEV Pair pair(u64 key, i64 place) { return key << 32 | (u64)place; }
DEV i64 place_of(Pair a) { return (i64)(a & 0xffffffffull); }
#define LAST (~0ull)
#endif

// Zeros are alike, and what is no number comes last.
DEV u64 key_of(float x) {
    if (x != x) return 0xffffffffull;
    u32 u = bits_of(x + 0.0f);
    return u >> 31 ? ~u : u | 0x80000000u;
}
DEV u64 key_of(double x) {
    if (x != x) return ~0ull;
    union {
        double d;
        u64 u;
    } v;
    v.d = x + 0.0;
    return v.u >> 63 ? ~v.u : v.u | 1ull << 63;
}
DEV u64 key_of(i64 x) { return (u64)x ^ 1ull << 63; }
DEV u64 key_of(int x) { return (u64)((u32)x ^ 1u << 31); }
#if WIDE_KEY
#define TURNED(key) (~(key))
#else
#define TURNED(key) ((u64)(u32)~(u32)(key))
#endif

struct P {
    const T *x;
    I *y;
    Pair *from, *to;
    i64 lines, length, inner, wanted, descending, run;
};
DEV Pair pair_at(const P &p, i64 line, i64 k) {
    u64 key = key_of(widen(p.x[(line / p.inner * p.length + k) * p.inner + line % p.inner]));
    return pair(p.descending ? TURNED(key) : key, k);
}
DEV void put(const P &p, i64 line, i64 k, const Pair &a) {
    p.y[(line / p.inner * p.wanted + k) * p.inner + line % p.inner] = (I)place_of(a);
}
// Sorts `n`, a power of two.
DEV void sort_shared(Pair *a, int n) {
    for (int size = 2; size <= n; size *= 2)
        for (int step = size / 2; step > 0; step /= 2) {
            __syncthreads();
            for (int i = threadIdx.x; i < n / 2; i += blockDim.x) {
                int low = i / step * step * 2 + i % step, high = low + step;
                bool up = (low & size) == 0;
                if (before(a[high], a[low]) == up) {
                    Pair t = a[low];
                    a[low] = a[high];
                    a[high] = t;
                }
            }
        }
    __syncthreads();
}
DEV int power_from(i64 length) {
    int n = 2;
    while (n < length) n *= 2;
    return n;
}
// A block a line.
KERNEL(short_lines, P) {
    __shared__ Pair a[TILE];
    int n = power_from(p.length);
    i64 line = blockIdx.x;
    for (int k = threadIdx.x; k < n; k += blockDim.x) a[k] = k < p.length ? pair_at(p, line, k) : LAST;
    sort_shared(a, n);
    for (i64 k = threadIdx.x; k < p.wanted; k += blockDim.x) put(p, line, k, a[k]);
}
// A block a tile: x along a line, y over lines.
KERNEL(tiles, P) {
    __shared__ Pair a[TILE];
    i64 line = blockIdx.x / p.run, start = blockIdx.x % p.run * TILE;
    for (int k = threadIdx.x; k < TILE; k += blockDim.x) a[k] = start + k < p.length ? pair_at(p, line, start + k) : LAST;
    sort_shared(a, TILE);
    for (int k = threadIdx.x; k < TILE; k += blockDim.x)
        if (start + k < p.length) p.to[line * p.length + start + k] = a[k];
}
// A thread an element: its place among two runs is its place in its own and the number of smaller ones in the other.
KERNEL(merge, P) {
    EACH(i, p.lines * p.length) {
        i64 k = i % p.length, start = k / (2 * p.run) * 2 * p.run, middle = start + p.run;
        const Pair *line = p.from + i / p.length * p.length;
        Pair own = line[k];
        bool left = k < middle;
        i64 low = left ? middle : start, high = left ? middle + p.run : middle, first = low;
        if (high > p.length) high = p.length;
        if (low > high) low = first = high;
        while (low < high) {
            i64 m = (low + high) / 2;
            if (before(line[m], own)) low = m + 1;
            else high = m;
        }
        i64 to = k + (low - first) - (left ? 0 : p.run);
        p.to[i / p.length * p.length + to] = own;
    }
}
KERNEL(places, P) {
    EACH(i, p.lines * p.wanted) put(p, i / p.wanted, i % p.wanted, p.from[i / p.wanted * p.length + i % p.wanted]);
}
