// An optimizer's step of one number, whatever its state is kept as.
//
// RULE is 0 for Adam, 1 for momentum, 2 for Nesterov's, 3 for Lion. Products and sums are not contracted, so that states are those of the host.

// The parameter and its gradient, of type T, and the numbers of the step; behind them a kernel's own.
struct Moved {
    i64 n;
    const T *value, *grad;
    const float *first, *second, *shrink;
    T *out;
    double c[4];
    double l2;
    i64 shrinks;
};

// What the whole step shares, read once by a thread.
struct Shares {
    float a, root, shrink, l2, c0, c1, c2, c3;
};
DEV Shares shares_of(const Moved &p) {
    Shares s;
    s.a = *p.first;
#if RULE == 0
    s.root = *p.second;
#else
    s.root = 1.0f;
#endif
    s.shrink = p.shrinks ? *p.shrink : 1.0f;
    s.l2 = (float)p.l2;
    s.c0 = (float)p.c[0], s.c1 = (float)p.c[1], s.c2 = (float)p.c[2], s.c3 = (float)p.c[3];
    return s;
}

// Where a number moves by its state, which moves too.
DEV float moved_to(const Shares &s, float value, float g, float &m, float &v) {
    if (s.l2 != 0.0f) g = g + value * s.l2;
    float step;
#if RULE == 0
    m = m + (g - m) * s.c0;
    v = v * s.c1 + (g * g) * s.c2;
    step = m / (sqrtf(v) / s.root + s.c3);
#elif RULE == 3
    float x = m * s.c0 + g * s.c1;
    step = (float)(x > 0.0f) - (float)(x < 0.0f);
    m = m * s.c2 + g * s.c3;
#else
    m = m * s.c0 + g;
    step = RULE == 2 ? g + m * s.c0 : m;
#endif
    return value * s.shrink - step * s.a;
}
