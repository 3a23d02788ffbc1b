// Picking by index and adding back by index. I is the type of indices; T of elements, A of their sums; N elements are moved at
// once where rows are whole numbers of them.
//
// Adding back is the same in every run: the places that name an output are listed, each list is put in order, and each
// output adds up its own list.

struct P {
    const T *x;
    const I *index;
    T *y;
    int *count;
    int *list;
    A *sum;
    i64 outer;
    i64 length;
    i64 indices;
    i64 inner;
    i64 *flag;
    i64 code;
    i64 placed;
};
DEV i64 checked(const P &p, i64 at) {
    i64 k = (i64)p.index[at];
    if (k >= 0 && k < p.length) return k;
    raise(p.flag, p.code, at, k, p.length);
    return -1;
}
KERNEL(gather, P) {
    i64 packs = p.inner / N;
    EACH(g, p.outer * p.indices * packs) {
        i64 b = g % packs * N, r = g / packs, k = checked(p, r % p.indices);
        if (k >= 0)
            store_pack<T, N>(p.y, r * p.inner + b, load_pack<T, N>(p.x, (r / p.indices * p.length + k) * p.inner + b));
    }
}
KERNEL(one_hot, P) {
    EACH(i, p.indices * p.length) {
        i64 k = checked(p, i / p.length);
        p.y[i] = narrow<T>((Wide<T>::type)(k == i % p.length));
    }
}
KERNEL(take_along, P) {
    EACH(i, p.outer * p.indices * p.inner) {
        i64 k = checked(p, i);
        if (k >= 0) p.y[i] = p.x[(i / (p.indices * p.inner) * p.length + k) * p.inner + i % p.inner];
    }
}

// The lists: count, add up the counts, fill, put in order.
KERNEL(count_indices, P) {
    EACH(i, p.indices) {
        i64 k = checked(p, i);
        if (k >= 0) atomic_next(&p.count[k + 1]);
    }
}
KERNEL(scan_counts, P) {
    __shared__ int sums[1024];
    int t = threadIdx.x, n = blockDim.x;
    i64 chunk = (p.length + n) / n, start = t * chunk, end = start + chunk < p.length + 1 ? start + chunk : p.length + 1;
    int s = 0;
    for (i64 i = start; i < end; i++) s += p.count[i];
    sums[t] = s;
    __syncthreads();
    if (t == 0) {
        int total = 0;
        for (int i = 0; i < n; i++) {
            int v = sums[i];
            sums[i] = total;
            total += v;
        }
    }
    __syncthreads();
    s = sums[t];
    for (i64 i = start; i < end; i++) {
        s += p.count[i];
        p.count[i] = s;
    }
}
// After this, count[k] is the end of list k, and the end of list k - 1 its start.
KERNEL(fill_lists, P) {
    EACH(i, p.indices) {
        i64 k = (i64)p.index[i];
        if (k >= 0 && k < p.length) p.list[atomic_next(&p.count[k])] = (int)i;
    }
}
KERNEL(sort_lists, P) {
    EACH(k, p.length) {
        int start = k == 0 ? 0 : p.count[k - 1], n = p.count[k] - start, *a = p.list + start;
        for (int i = 1; i < n && n <= 16; i++) {
            int v = a[i], j = i;
            for (; j > 0 && a[j - 1] > v; j--) a[j] = a[j - 1];
            a[j] = v;
        }
        if (n <= 16) continue;
        for (int begin = n / 2 - 1, end = n; end > 1;) {
            int root;
            if (begin >= 0) {
                root = begin--;
            } else {
                int v = a[--end];
                a[end] = a[0];
                a[0] = v;
                root = 0;
            }
            for (int child = 2 * root + 1; child < end; child = 2 * root + 1) {
                if (child + 1 < end && a[child + 1] > a[child]) child++;
                if (a[child] <= a[root]) break;
                int v = a[root];
                a[root] = a[child];
                a[child] = v;
                root = child;
            }
        }
    }
}
// The place of index i in its list is the number of equal ones before it. All pairs are compared: for as many indices as a step
// has, that takes less time than sorting the list of an index that comes up everywhere, such as padding.
KERNEL(place_indices, P) {
    __shared__ I tile[256];
    i64 i = (i64)blockIdx.x * 256 + threadIdx.x;
    I mine = i < p.indices ? p.index[i] : (I)-1;
    int rank = 0;
    for (i64 j0 = 0; j0 <= (i64)blockIdx.x * 256; j0 += 256) {
        __syncthreads();
        tile[threadIdx.x] = j0 + threadIdx.x < p.indices ? p.index[j0 + threadIdx.x] : (I)-1;
        __syncthreads();
        int end = i - j0 < 256 ? (int)(i - j0) : 256;
        for (int j = 0; j < end; j++) rank += tile[j] == mine;
    }
    // The counts have been added up: count[k] is where list k starts.
    if (i < p.indices && mine >= 0 && (i64)mine < p.length) p.list[p.count[mine] + rank] = (int)i;
}
// A list's sum, N elements a thread. After places were filled in one by one, count[k] is the end of list k, else its start.
KERNEL(sum_lists, P) {
    EACH(g, p.outer * p.length * (p.inner / N)) {
        i64 packs = p.inner / N, b = g % packs * N, r = g / packs, k = r % p.length, o = r / p.length;
        int start = p.placed ? p.count[k] : k == 0 ? 0 : p.count[k - 1], end = p.placed ? p.count[k + 1] : p.count[k];
        A s[N];
        for (int e = 0; e < N; e++) s[e] = (A)0;
#pragma unroll 4
        for (int j = start; j < end; j++) {
            Pack<T, N> x = load_pack<T, N>(p.x, (o * p.indices + p.list[j]) * p.inner + b);
            for (int e = 0; e < N; e++) s[e] += (A)widen(x.v[e]);
        }
        Pack<T, N> y;
        for (int e = 0; e < N; e++) y.v[e] = narrow<T>(s[e]);
        store_pack<T, N>(p.y, r * p.inner + b, y);
    }
}
// A thread a line: nobody else writes to it.
KERNEL(put_along_add, P) {
    EACH(line, p.outer * p.inner) {
        i64 o = line / p.inner, b = line % p.inner;
        A *sum = p.sum + o * p.length * p.inner + b;
        for (i64 k = 0; k < p.length; k++) sum[k * p.inner] = (A)0;
        for (i64 j = 0; j < p.indices; j++) {
            i64 at = (o * p.indices + j) * p.inner + b, k = checked(p, at);
            if (k >= 0) sum[k * p.inner] += (A)widen(p.x[at]);
        }
        for (i64 k = 0; k < p.length; k++) p.y[(o * p.length + k) * p.inner + b] = narrow<T>(sum[k * p.inner]);
    }
}
