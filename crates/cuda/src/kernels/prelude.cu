// Element types, their widening and rounding, and mathematics, for all kernels.
//
// The same text is compiled by NVRTC for a card and by a C++ compiler for the emulator; PLIMSOLL_HOST tells them apart.
// No header of the CUDA toolkit is needed. Every kernel takes one struct whose fields all have eight bytes.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;
typedef signed char i8;
typedef short i16;

#ifndef PLIMSOLL_HOST
#define DEV __device__ __forceinline__
#define KERNEL(name, P) extern "C" __global__ void name(const __grid_constant__ P p)
#define DYNAMIC_SHARED(T, name)                                                                                        \
    extern __shared__ __align__(16) unsigned char shared_bytes[];                                                     \
    T *name = (T *)shared_bytes
#define INF_F __int_as_float(0x7f800000)
#define INF_D __longlong_as_double(0x7ff0000000000000LL)
#define NAN_F __int_as_float(0x7fc00000)
DEV u32 bits_of(float x) { return __float_as_uint(x); }
DEV float float_of(u32 x) { return __uint_as_float(x); }
DEV float half_to_float(u16 h) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}
DEV u16 float_to_half(float f) {
    u16 h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}
DEV void raise(i64 *flag, i64 code, i64 place, i64 value, i64 limit) {
    if (atomicCAS((u64 *)flag, 0ull, (u64)code) == 0ull) {
        flag[1] = place;
        flag[2] = value;
        flag[3] = limit;
    }
}
DEV int atomic_next(int *at) { return atomicAdd(at, 1); }
DEV void atomic_most(int *at, int x) { atomicMax(at, x); }
// Two to the power of x, to about two bits less than a float has.
DEV float power_of_two(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#else
DEV float power_of_two(float x) { return exp2f(x); }
#define INF_F __builtin_inff()
#define INF_D __builtin_inf()
#define NAN_F __builtin_nanf("")
DEV u32 bits_of(float x) {
    u32 u;
    memcpy(&u, &x, 4);
    return u;
}
DEV float float_of(u32 x) {
    float f;
    memcpy(&f, &x, 4);
    return f;
}
DEV float half_to_float(u16 h) {
    u32 sign = (u32)(h & 0x8000) << 16, e = (h >> 10) & 31, m = h & 1023;
    if (e == 31) return float_of(sign | 0x7f800000 | m << 13);
    float v = e == 0 ? ldexpf((float)m, -24) : ldexpf((float)(m | 1024), (int)e - 25);
    return float_of(bits_of(v) | sign);
}
DEV u16 float_to_half(float f) {
    u32 u = bits_of(f), sign = (u >> 16) & 0x8000, a = u & 0x7fffffff;
    if (a > 0x7f800000) return (u16)(sign | 0x7e00);
    if (a >= 0x477ff000) return (u16)(sign | 0x7c00);
    if (a < 0x38800000) return (u16)(sign | (u32)lrintf(ldexpf(float_of(a), 24)));
    a += 0xc8000fff + ((a >> 13) & 1);
    return (u16)(sign | a >> 13);
}
DEV void raise(i64 *flag, i64 code, i64 place, i64 value, i64 limit) {
    if (flag[0] == 0) {
        flag[0] = code;
        flag[1] = place;
        flag[2] = value;
        flag[3] = limit;
    }
}
DEV int atomic_next(int *at) { return (*at)++; }
DEV void atomic_most(int *at, int x) { *at = *at > x ? *at : x; }
#endif
// A label that is one of the classes; another is -1, and said by the thread that tells.
DEV i64 checked_label(i64 label, i64 row, i64 classes, i64 *flag, i64 code, bool tells) {
    if (label >= 0 && label < classes) return label;
    if (tells) raise(flag, code, row, label, classes);
    return -1;
}

struct bf16 {
    u16 bits;
};
struct f16 {
    u16 bits;
};

// What values of a stored type are computed in.
template <class T> struct Wide {
    typedef T type;
};
#define WIDE(Stored, Computed) \
    template <> struct Wide<Stored> { \
        typedef Computed type; \
    };
WIDE(bf16, float)
WIDE(f16, float)
WIDE(u8, int)
WIDE(i8, int)
WIDE(u16, int)
WIDE(i16, int)
WIDE(u32, i64)

DEV float widen(bf16 x) { return float_of((u32)x.bits << 16); }
DEV float widen(f16 x) { return half_to_float(x.bits); }
DEV float widen(float x) { return x; }
DEV double widen(double x) { return x; }
DEV i64 widen(i64 x) { return x; }
DEV int widen(int x) { return x; }
DEV int widen(u8 x) { return x; }
DEV int widen(i8 x) { return x; }
DEV int widen(u16 x) { return x; }
DEV int widen(i16 x) { return x; }
DEV i64 widen(u32 x) { return x; }

template <class T> struct Narrow {
    template <class A> static DEV T of(A x) { return (T)x; }
};
template <> struct Narrow<bf16> {
    template <class A> static DEV bf16 of(A value) {
        float x = (float)value;
        bf16 r;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
        asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(x));
#else
        u32 u = bits_of(x);
        r.bits = (u & 0x7fffffff) > 0x7f800000 ? (u16)(u >> 16 | 0x40) : (u16)((u + 0x7fff + ((u >> 16) & 1)) >> 16);
#endif
        return r;
    }
};
template <> struct Narrow<f16> {
    template <class A> static DEV f16 of(A value) {
        f16 r;
        r.bits = float_to_half((float)value);
        return r;
    }
};
template <class T, class A> DEV T narrow(A x) { return Narrow<T>::of(x); }
template <class T> DEV typename Wide<T>::type load(const void *at, i64 i) { return widen(((const T *)at)[i]); }
template <class T, class A> DEV void store(void *at, i64 i, A x) { ((T *)at)[i] = narrow<T>(x); }
// What a value of the wide type becomes when it is stored and loaded again.
template <class T, class A> DEV typename Wide<T>::type rounded(A x) { return widen(narrow<T>(x)); }

// Elements that are loaded and stored together, as far as sixteen bytes go at once.
template <class T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack {
    T v[N];
};
template <class T, int N> DEV Pack<T, N> load_pack(const void *at, i64 i) { return *(const Pack<T, N> *)((const T *)at + i); }
template <class T, int N> DEV void store_pack(void *at, i64 i, const Pack<T, N> &x) { *(Pack<T, N> *)((T *)at + i) = x; }

#define MATH(name, single, twice)                                                                                      \
    DEV float m_##name(float x) { return single(x); }                                                                 \
    DEV double m_##name(double x) { return twice(x); }
MATH(exp, expf, exp)
MATH(log, logf, log)
MATH(log1p, log1pf, log1p)
MATH(sqrt, sqrtf, sqrt)
MATH(sin, sinf, sin)
MATH(cos, cosf, cos)
MATH(tanh, tanhf, tanh)
MATH(erf, erff, erf)
MATH(floor, floorf, floor)
MATH(abs, fabsf, fabs)
DEV float m_pow(float a, float b) { return powf(a, b); }
DEV double m_pow(double a, double b) { return pow(a, b); }
DEV float m_sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
DEV double m_sigmoid(double x) { return 1.0 / (1.0 + exp(-x)); }
DEV bool is_nan(float x) { return x != x; }
DEV bool is_nan(double x) { return x != x; }
DEV bool is_nan(i64) { return false; }
DEV bool is_nan(int) { return false; }
DEV bool is_nan(u32) { return false; }
// The larger and the smaller of two; a not-a-number wins.
template <class A> DEV A larger(A a, A b) { return is_nan(a) ? a : (b > a || is_nan(b) ? b : a); }
template <class A> DEV A smaller(A a, A b) { return is_nan(a) ? a : (b < a || is_nan(b) ? b : a); }
template <class A> struct Limit {};
#define LIMITS(Held, least, most) \
    template <> struct Limit<Held> { \
        static DEV Held lowest() { return (Held)least; } \
        static DEV Held highest() { return (Held)most; } \
    };
LIMITS(float, -INF_F, INF_F)
LIMITS(double, -INF_D, INF_D)
LIMITS(i64, (1ull << 63), ~(1ull << 63))
LIMITS(int, (1u << 31), ~(1u << 31))
LIMITS(u8, 0, 255)
LIMITS(i8, -128, 127)
LIMITS(u16, 0, 65535)
LIMITS(i16, -32768, 32767)
LIMITS(u32, 0, 4294967295u)

// Elements i of this thread: every gridDim · blockDim-th.
#define EACH(i, n)                                                                                                     \
    for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x, i##_step = (i64)gridDim.x * blockDim.x; i < (n); i += i##_step)

// Reductions over a block of up to 1024 threads, in a fixed order; all threads get the result.
struct Sum {
    template <class A> static DEV A join(A a, A b) { return a + b; }
    template <class A> static DEV A none() { return (A)0; }
};
struct Product {
    template <class A> static DEV A join(A a, A b) { return a * b; }
    template <class A> static DEV A none() { return (A)1; }
};
struct Largest {
    template <class A> static DEV A join(A a, A b) { return larger(a, b); }
    template <class A> static DEV A none() { return Limit<A>::lowest(); }
};
struct Smallest {
    template <class A> static DEV A join(A a, A b) { return smaller(a, b); }
    template <class A> static DEV A none() { return Limit<A>::highest(); }
};
template <class Join, class A> DEV A in_block(A x) {
    __shared__ A partial[32];
    for (int d = 16; d > 0; d /= 2) x = Join::join(x, (A)__shfl_xor_sync(0xffffffffu, x, d));
    int warp = threadIdx.x / 32, warps = (blockDim.x + 31) / 32;
    __syncthreads();
    if (threadIdx.x % 32 == 0) partial[warp] = x;
    __syncthreads();
    A y = partial[0];
    for (int w = 1; w < warps; w++) y = Join::join(y, partial[w]);
    return y;
}
