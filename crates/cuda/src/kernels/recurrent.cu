// The pointwise parts of LSTM and GRU steps; the products are made elsewhere. A thread a sample and unit.

struct P {
    const A *sums;   // x w, and for LSTM + h u, of one step: [B, gates · H], rows `sums_row` apart
    const A *state;  // GRU: h u of one step, [B, 3H]
    const T *bias;
    const T *bias_u;
    const T *h;      // the state before, rows `h_row` apart
    const T *c;      // the cell before
    T *y;            // y at this step, rows `y_row` apart
    T *last_h;
    T *last_c;
    T *gates;        // saved at this step, [B, 4H]
    T *cells;        // saved at this step, [B, H]
    const T *dy;     // the gradient of y at this step, rows `y_row` apart
    A *dh;           // what the next step hands back, [B, H]
    A *dc;
    T *to_x;         // the gradient at x w + bias at this step, rows `to_row` apart: rounded, as products want both sides alike
    T *to_h;         // GRU: the gradient at h u + bias_u
    i64 batch;
    i64 units;
    i64 sums_row;
    i64 h_row;
    i64 y_row;
    i64 to_row;
};
#define UNIT                                                                                                           \
    i64 b = e / p.units, j = e % p.units, n = p.units;                                                                 \
    (void)n;
KERNEL(lstm_step, P) {
    EACH(e, p.batch * p.units) {
        UNIT;
        A v[4];
        for (int g = 0; g < 4; g++) {
            A s = p.sums[b * p.sums_row + g * n + j] + (A)widen(p.bias[g * n + j]);
            v[g] = g == 2 ? m_tanh(s) : m_sigmoid(s);
            p.gates[(b * 4 + g) * n + j] = narrow<T>(v[g]);
        }
        A c = v[1] * (A)widen(p.c[e]) + v[0] * v[2], h = v[3] * m_tanh(c);
        p.cells[e] = narrow<T>(c);
        p.y[b * p.y_row + j] = narrow<T>(h);
        if (p.last_h) {
            p.last_h[e] = narrow<T>(h);
            p.last_c[e] = narrow<T>(c);
        }
    }
}
KERNEL(lstm_back, P) {
    EACH(e, p.batch * p.units) {
        UNIT;
        A v[4];
        for (int g = 0; g < 4; g++) v[g] = (A)widen(p.gates[(b * 4 + g) * n + j]);
        A t = m_tanh((A)widen(p.cells[e])), dh = p.dh[e] + (A)widen(p.dy[b * p.y_row + j]);
        A dc = p.dc[e] + dh * v[3] * ((A)1 - t * t);
        T *to = p.to_x + b * p.to_row + j;
        to[0] = narrow<T>(dc * v[2] * v[0] * ((A)1 - v[0]));
        to[n] = narrow<T>(dc * (A)widen(p.c[e]) * v[1] * ((A)1 - v[1]));
        to[2 * n] = narrow<T>(dc * v[0] * ((A)1 - v[2] * v[2]));
        to[3 * n] = narrow<T>(dh * t * v[3] * ((A)1 - v[3]));
        p.dc[e] = dc * v[1];
        p.dh[e] = (A)0;
    }
}
KERNEL(gru_step, P) {
    EACH(e, p.batch * p.units) {
        UNIT;
        const A *x = p.sums + b * p.sums_row + j, *u = p.state + b * 3 * n + j;
        A s = u[2 * n] + (A)widen(p.bias_u[2 * n + j]);
        A r = m_sigmoid(x[0] + (A)widen(p.bias[j]) + u[0] + (A)widen(p.bias_u[j]));
        A z = m_sigmoid(x[n] + (A)widen(p.bias[n + j]) + u[n] + (A)widen(p.bias_u[n + j]));
        A now = m_tanh(x[2 * n] + (A)widen(p.bias[2 * n + j]) + r * s);
        A h = ((A)1 - z) * now + z * (A)widen(p.h[b * p.h_row + j]);
        T *saved = p.gates + b * 4 * n + j;
        saved[0] = narrow<T>(r);
        saved[n] = narrow<T>(z);
        saved[2 * n] = narrow<T>(now);
        saved[3 * n] = narrow<T>(s);
        p.y[b * p.y_row + j] = narrow<T>(h);
        if (p.last_h) p.last_h[e] = narrow<T>(h);
    }
}
KERNEL(gru_back, P) {
    EACH(e, p.batch * p.units) {
        UNIT;
        const T *saved = p.gates + b * 4 * n + j;
        A r = widen(saved[0]), z = widen(saved[n]), now = widen(saved[2 * n]), s = widen(saved[3 * n]);
        A dh = p.dh[e] + (A)widen(p.dy[b * p.y_row + j]), dn = dh * ((A)1 - z) * ((A)1 - now * now);
        T *x = p.to_x + b * p.to_row + j, *h = p.to_h + b * p.to_row + j;
        x[0] = h[0] = narrow<T>(dn * s * r * ((A)1 - r));
        x[n] = h[n] = narrow<T>(dh * ((A)widen(p.h[b * p.h_row + j]) - now) * z * ((A)1 - z));
        x[2 * n] = narrow<T>(dn);
        h[2 * n] = narrow<T>(dn * r);
        p.dh[e] = dh * z;
    }
}
KERNEL(widen_state, P) {
    EACH(e, p.batch * p.units) {
        p.dh[e] = (A)widen(p.h[e]);
        if (p.dc) p.dc[e] = (A)widen(p.c[e]);
    }
}
KERNEL(narrow_state, P) {
    EACH(e, p.batch * p.units) {
        p.last_h[e] = narrow<T>(p.dh[e]);
        if (p.dc) p.last_c[e] = narrow<T>(p.dc[e]);
    }
}
// The states before every step, [B, T, H]: the first one, then y without its last step.
KERNEL(states_before, P) {
    EACH(e, p.batch * p.y_row) {
        i64 b = e / p.y_row, r = e % p.y_row;
        p.y[e] = r < p.units ? p.h[b * p.units + r] : p.dy[e - p.units];
    }
}
// Sums of columns of [rows, columns] in order; a thread a column.
KERNEL(bias_grads, P) {
    EACH(c, p.to_row) {
        A a = (A)0, u = (A)0;
        for (i64 r = 0; r < p.batch; r++) {
            a += (A)widen(p.to_x[r * p.to_row + c]);
            if (p.to_h) u += (A)widen(p.to_h[r * p.to_row + c]);
        }
        p.last_h[c] = narrow<T>(a);
        if (p.to_h) p.last_c[c] = narrow<T>(u);
    }
}
