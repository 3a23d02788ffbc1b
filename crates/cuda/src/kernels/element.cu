// The functions that steps of elementwise chains call; the kernel itself is written by element.rs, chain by chain.
// Compiled without contraction: a fused chain must round where its single ops round.

template <class A> DEV A u_neg(A x) { return -x; }
template <class A> DEV A u_abs(A x) { return x < (A)0 ? -x : x == (A)0 ? (A)0 : x; }
template <class A> DEV A u_sign(A x) { return (A)((x > (A)0) - (x < (A)0)); }
template <class A> DEV A u_floor(A x) { return m_floor(x); }
template <class A> DEV A u_exp(A x) { return m_exp(x); }
template <class A> DEV A u_log(A x) { return m_log(x); }
template <class A> DEV A u_sqrt(A x) { return m_sqrt(x); }
template <class A> DEV A u_rsqrt(A x) { return (A)1 / m_sqrt(x); }
template <class A> DEV A u_square(A x) { return x * x; }
template <class A> DEV A u_reciprocal(A x) { return (A)1 / x; }
template <class A> DEV A u_sin(A x) { return m_sin(x); }
template <class A> DEV A u_cos(A x) { return m_cos(x); }
template <class A> DEV A u_tanh(A x) { return m_tanh(x); }
template <class A> DEV A u_sigmoid(A x) { return m_sigmoid(x); }
template <class A> DEV A u_erf(A x) { return m_erf(x); }
template <class A> DEV A u_relu(A x) { return larger(x, (A)0); }
template <class A> DEV A u_leaky_relu(A x, A slope) { return x > (A)0 ? x : slope * x; }
template <class A> DEV A u_gelu(A x) { return (A)0.5 * x * ((A)1 + m_erf(x * (A)0.70710678118654752440)); }
template <class A> DEV A u_gelu_tanh(A x) {
    return (A)0.5 * x * ((A)1 + m_tanh((A)0.79788456080286536 * (x + (A)0.044715 * x * x * x)));
}
template <class A> DEV A u_silu(A x) { return x * m_sigmoid(x); }
template <class A> DEV A u_softplus(A x) { return larger(x, (A)0) + m_log1p(m_exp(-m_abs(x))); }
template <class A> DEV A u_clamp(A x, A low, A high) { return is_nan(x) ? x : x < low ? low : x > high ? high : x; }
template <class A> DEV A u_add_scalar(A x, A s) { return x + s; }
template <class A> DEV A u_mul_scalar(A x, A s) { return x * s; }
template <class A> DEV A u_rsub_scalar(A x, A s) { return s - x; }
template <class A> DEV A u_rdiv_scalar(A x, A s) { return s / x; }
template <class A> DEV A u_pow_scalar(A x, A s) { return m_pow(x, s); }
DEV int u_not(int x) { return x == 0; }
template <class A> DEV int u_is_finite(A x) { return x - x == (A)0; }

template <class A> DEV A b_add(A a, A b) { return a + b; }
template <class A> DEV A b_sub(A a, A b) { return a - b; }
template <class A> DEV A b_mul(A a, A b) { return a * b; }
template <class A> DEV A b_div(A a, A b) { return a / b; }
template <class A> DEV A b_pow(A a, A b) { return m_pow(a, b); }
template <class A> DEV A b_maximum(A a, A b) { return larger(a, b); }
template <class A> DEV A b_minimum(A a, A b) { return smaller(a, b); }
DEV int b_and(int a, int b) { return a != 0 && b != 0; }
DEV int b_or(int a, int b) { return a != 0 || b != 0; }
template <class A> DEV A relu_grad(A y, A dy, A slope) { return y > (A)0 ? dy : slope * dy; }

// Conversions: floats to integers truncate and saturate, and not-a-number becomes 0.
template <class To> struct Convert {
    template <class From> static DEV To of(From x) { return (To)x; }
};
template <> struct Convert<i64> {
    static DEV i64 of(double x) {
        return is_nan(x) ? 0 : x >= 9223372036854775808.0 ? Limit<i64>::highest() : x <= -9223372036854775808.0 ? Limit<i64>::lowest() : (i64)x;
    }
    static DEV i64 of(float x) { return of((double)x); }
    static DEV i64 of(i64 x) { return x; }
    static DEV i64 of(int x) { return x; }
};
template <> struct Convert<int> {
    static DEV int of(double x) { return is_nan(x) ? 0 : x >= 2147483647.0 ? 2147483647 : x <= -2147483648.0 ? (int)(1u << 31) : (int)x; }
    static DEV int of(float x) { return of((double)x); }
    static DEV int of(i64 x) { return (int)x; }
    static DEV int of(int x) { return x; }
};
DEV i64 held(i64 x, i64 low, i64 high) { return x < low ? low : x > high ? high : x; }
template <class A> DEV int to_byte(A x) { return x > (A)255 ? 255 : x > (A)0 ? (int)x : 0; }
template <class A> DEV int to_bool(A x) { return x != (A)0; }
