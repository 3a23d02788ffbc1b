// What CUDA gives a kernel, for a C++ compiler: threads of a block as fibers that take turns at every barrier.
#define PLIMSOLL_HOST 1
#include <cmath>
#include <cstdlib>
#include <cstring>
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
static ucontext_t plimsoll_main, plimsoll_fiber[1024];
static bool plimsoll_done[1024];
static int plimsoll_at;
static void (*plimsoll_kernel)(const void *);
static const void *plimsoll_params;
static void plimsoll_entry() {
    plimsoll_kernel(plimsoll_params);
    plimsoll_done[plimsoll_at] = true;
}
static void __syncthreads() { swapcontext(&plimsoll_fiber[plimsoll_at], &plimsoll_main); }
static unsigned long long plimsoll_slot[1024];
template <class A> static A __shfl_xor_sync(unsigned, A x, int d) {
    int me = plimsoll_at;
    unsigned long long bits = 0;
    memcpy(&bits, &x, sizeof(A));
    plimsoll_slot[me] = bits;
    __syncthreads();
    memcpy(&x, &plimsoll_slot[me ^ d], sizeof(A));
    __syncthreads();
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
            plimsoll_fiber[t].uc_link = &plimsoll_main;
            makecontext(&plimsoll_fiber[t], plimsoll_entry, 0);
            plimsoll_done[t] = false;
        }
        for (bool live = true; live;) {
            live = false;
            for (unsigned t = 0; t < threads; t++) {
                if (plimsoll_done[t]) continue;
                plimsoll_thread(t);
                swapcontext(&plimsoll_main, &plimsoll_fiber[t]);
                live = live || !plimsoll_done[t];
            }
        }
    }
}
