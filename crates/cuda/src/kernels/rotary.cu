// Rotary positions: VEC pairs a thread.

struct P {
    const T *x, *sin, *cos;
    T *y;
    i64 count, pairs, features, heads, period, rest, back;
};
struct alignas(sizeof(T) * VEC) Group {
    T x[VEC];
};
KERNEL(turn, P) {
    i64 groups = p.pairs / VEC;
    EACH(e, p.count) {
        i64 head = e / groups, f = e % groups * VEC, angles = head / p.heads % p.period * p.pairs + f, at = head * p.features + f;
        Group a = *(const Group *)(p.x + at), b = *(const Group *)(p.x + at + p.pairs), left, right;
        Group s = *(const Group *)(p.sin + angles), c = *(const Group *)(p.cos + angles);
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            A u = (A)widen(a.x[i]), v = (A)widen(b.x[i]), sine = (A)widen(s.x[i]), cosine = (A)widen(c.x[i]);
            sine = p.back ? -sine : sine;
            left.x[i] = narrow<T>(u * cosine - v * sine);
            right.x[i] = narrow<T>(v * cosine + u * sine);
        }
        *(Group *)(p.y + at) = left;
        *(Group *)(p.y + at + p.pairs) = right;
    }
}
// Features that are not turned.
KERNEL(rest, P) {
    i64 turned = 2 * p.pairs;
    EACH(e, p.rest) {
        i64 at = e / (p.features - turned) * p.features + turned + e % (p.features - turned);
        p.y[at] = p.x[at];
    }
}
