// What CUDA gives a kernel, for a C++ compiler: threads of a block as fibers that take turns at every barrier.
#define PLIMSOLL_HOST 1
// Headers of C alone: those of C++ take as long as all the rest.
#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#define DEV inline
#define __shared__ static
#define __restrict__
#define KERNEL(name, P) extern "C" void name(const P &p)
#define DYNAMIC_SHARED(T, name) T *name = (T *)plimsoll_shared
struct plimsoll_dim {
    unsigned x, y, z;
};
static plimsoll_dim threadIdx, blockIdx, blockDim, gridDim;
alignas(64) static unsigned char plimsoll_shared[256 * 1024];
// A fiber is begun by a context and goes on by jumps, which ask nothing of the system.
static ucontext_t plimsoll_fiber[1024];
static jmp_buf plimsoll_main, plimsoll_jump[1024];
static bool plimsoll_begun[1024], plimsoll_done[1024];
static int plimsoll_at;
static void (*plimsoll_kernel)(const void *);
static const void *plimsoll_params;
static void plimsoll_entry() {
    plimsoll_kernel(plimsoll_params);
    plimsoll_done[plimsoll_at] = true;
    _longjmp(plimsoll_main, 1);
}
// Runs a fiber until it is at a barrier or done.
static __attribute__((noinline)) void plimsoll_resume(unsigned t) {
    if (_setjmp(plimsoll_main)) return;
    if (plimsoll_begun[t]) _longjmp(plimsoll_jump[t], 1);
    plimsoll_begun[t] = true;
    setcontext(&plimsoll_fiber[t]);
}
static __attribute__((noinline)) void __syncthreads() {
    if (!_setjmp(plimsoll_jump[plimsoll_at])) _longjmp(plimsoll_main, 1);
}
// Two places in turn, so that one barrier does: who goes ahead writes where nobody reads any more.
static unsigned long long plimsoll_slot[2][1024];
static unsigned char plimsoll_turn[1024];
template <class A> static A __shfl_xor_sync(unsigned, A x, int d) {
    int me = plimsoll_at, turn = plimsoll_turn[me] ^= 1;
    memcpy(&plimsoll_slot[turn][me], &x, sizeof(A));
    __syncthreads();
    memcpy(&x, &plimsoll_slot[turn][me ^ d], sizeof(A));
    return x;
}
static void plimsoll_thread(int t) {
    plimsoll_at = t;
    threadIdx = {t % blockDim.x, t / blockDim.x % blockDim.y, t / blockDim.x / blockDim.y};
}
extern "C" void plimsoll_run(void (*kernel)(const void *), const void *params, unsigned gx, unsigned gy, unsigned gz,
                             unsigned threads, int fibers) {
    static unsigned char *stacks = nullptr;
    const size_t stack = 256 * 1024;
    if (fibers && !stacks) stacks = (unsigned char *)malloc(1024 * stack);
    gridDim = {gx, gy, gz};
    blockDim = {threads, 1, 1};
    plimsoll_kernel = kernel;
    plimsoll_params = params;
    for (unsigned b = 0; b < gx * gy * gz; b++) {
        blockIdx = {b % gx, b / gx % gy, b / gx / gy};
        if (!fibers) {
            for (unsigned t = 0; t < threads; t++) {
                plimsoll_thread(t);
                kernel(params);
            }
            continue;
        }
        for (unsigned t = 0; t < threads; t++) {
            getcontext(&plimsoll_fiber[t]);
            plimsoll_fiber[t].uc_stack.ss_sp = stacks + t * stack;
            plimsoll_fiber[t].uc_stack.ss_size = stack;
            plimsoll_fiber[t].uc_link = nullptr;
            makecontext(&plimsoll_fiber[t], plimsoll_entry, 0);
            plimsoll_begun[t] = plimsoll_done[t] = false;
            plimsoll_turn[t] = 0;
        }
        for (bool live = true; live;) {
            live = false;
            for (unsigned t = 0; t < threads; t++) {
                if (plimsoll_done[t]) continue;
                plimsoll_thread(t);
                plimsoll_resume(t);
                live = live || !plimsoll_done[t];
            }
        }
    }
}
