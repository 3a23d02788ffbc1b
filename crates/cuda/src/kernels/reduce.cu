// Reductions over axes. JOIN is how two values become one; A the type they are joined in.
//
// An output's elements are cut into equal pieces, a matter of shape alone; pieces are joined in order.

struct P {
    const T *x;
    T *y;
    A *partial;
    i64 outputs, folded, pieces, divide, kept_rank, kept_length[8], kept_stride[8], rank, length[8], stride[8];
};
DEV i64 place(i64 i, i64 rank, const i64 *length, const i64 *stride) {
    if (rank == 1) return i * stride[0];
    i64 at = 0;
    for (int a = (int)rank - 1; a >= 0; a--) {
        at += i % length[a] * stride[a];
        i /= length[a];
    }
    return at;
}
DEV void finish(const P &p, i64 o, A v) {
    if (p.divide) v = v / (A)p.folded;
    p.y[o] = narrow<T>(v);
}
// A block an output and piece: for elements that lie side by side.
KERNEL(rows, P) {
    i64 o = blockIdx.x, piece = blockIdx.y, chunk = (p.folded + p.pieces - 1) / p.pieces;
    i64 start = piece * chunk, end = start + chunk < p.folded ? start + chunk : p.folded;
    const T *x = p.x + place(o, p.kept_rank, p.kept_length, p.kept_stride);
    A v = JOIN::none<A>();
    for (i64 i = start + threadIdx.x; i < end; i += blockDim.x)
        v = JOIN::join(v, (A)widen(x[place(i, p.rank, p.length, p.stride)]));
    v = in_block<JOIN>(v);
    if (threadIdx.x != 0) return;
    if (p.pieces > 1)
        p.partial[piece * p.outputs + o] = v;
    else
        finish(p, o, v);
}
// A thread an output and piece: for outputs that lie side by side.
KERNEL(columns, P) {
    i64 piece = blockIdx.y, chunk = (p.folded + p.pieces - 1) / p.pieces;
    i64 start = piece * chunk, end = start + chunk < p.folded ? start + chunk : p.folded;
    EACH(o, p.outputs) {
        const T *x = p.x + place(o, p.kept_rank, p.kept_length, p.kept_stride);
        A v = JOIN::none<A>();
        for (i64 i = start; i < end; i++) v = JOIN::join(v, (A)widen(x[place(i, p.rank, p.length, p.stride)]));
        if (p.pieces > 1)
            p.partial[piece * p.outputs + o] = v;
        else
            finish(p, o, v);
    }
}
KERNEL(pieces, P) {
    EACH(o, p.outputs) {
        A v = JOIN::none<A>();
        for (i64 s = 0; s < p.pieces; s++) v = JOIN::join(v, p.partial[s * p.outputs + o]);
        finish(p, o, v);
    }
}
