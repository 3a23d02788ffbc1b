// Picking by index and adding back by index. I is the type of indices; T of elements, A of their sums; N elements are moved at
// once where rows are whole numbers of them.
//
// Adding back is the same in every run: the places that name an output are listed, each list is put in order, and each
// output adds up its own list, a long one in parts. Where there are few outputs, each looks at all places instead, slice by slice.

struct P {
    const T *x;
    const I *index;
    T *y;
    int *count, *list;
    A *sum;
    i64 outer, length, indices, inner;
    i64 *flag;
    // Sums are added to what is in y.
    i64 code, placed, slice, segments, segment, adds;
};
DEV i64 checked(const P &p, i64 at) {
    i64 k = (i64)p.index[at];
    if (k >= 0 && k < p.length) return k;
    raise(p.flag, p.code, at, k, p.length);
    return -1;
}
// A sum as it is stored, alone or added to what is there.
DEV T stored(const P &p, A sum, T there) {
    T made = narrow<T>(sum);
    return p.adds ? narrow<T>((A)widen(there) + (A)widen(made)) : made;
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
    int t = threadIdx.x, n = blockDim.x, base = 0;
    for (i64 tile = 0; tile <= p.length; tile += n * 8) {
        i64 start = tile + t * 8;
        int v[8], s = 0;
#pragma unroll
        for (int e = 0; e < 8; e++) {
            v[e] = start + e <= p.length ? p.count[start + e] : 0;
            s += v[e];
        }
        sums[t] = s;
        __syncthreads();
        for (int step = 1; step < n; step *= 2) {
            int more = t >= step ? sums[t - step] : 0;
            __syncthreads();
            sums[t] += more;
            __syncthreads();
        }
        int at = base + sums[t] - s;
        base += sums[n - 1];
#pragma unroll
        for (int e = 0; e < 8; e++) {
            at += v[e];
            if (start + e <= p.length) p.count[start + e] = at;
        }
        __syncthreads();
    }
}
// After this, count[k] is the end of list k, and the end of list k - 1 its start.
KERNEL(fill_lists, P) {
    EACH(i, p.indices) {
        i64 k = (i64)p.index[i];
        if (k >= 0 && k < p.length) p.list[atomic_next(&p.count[k])] = (int)i;
    }
}
KERNEL(sort_short_lists, P) {
    EACH(k, p.length) {
        int start = k == 0 ? 0 : p.count[k - 1], n = p.count[k] - start, *a = p.list + start;
        for (int i = 1; i < n && n <= 16; i++) {
            int v = a[i], j = i;
            for (; j > 0 && a[j - 1] > v; j--) a[j] = a[j - 1];
            a[j] = v;
        }
    }
}
// A block a list. One that fits is put in order by counting what is smaller; a longer one is written anew from the indices.
KERNEL(sort_long_lists, P) {
    __shared__ int a[1024];
    __shared__ int before[257];
    int t = threadIdx.x;
    for (i64 k = blockIdx.x; k < p.length; k += gridDim.x) {
        int start = k == 0 ? 0 : p.count[k - 1], n = p.count[k] - start, *list = p.list + start;
        if (n <= 16) continue;
        if (n <= 1024) {
            for (int j = t; j < n; j += 256) a[j] = list[j];
            __syncthreads();
            for (int j = t; j < n; j += 256) {
                int v = a[j], rank = 0;
                for (int i = 0; i < n; i++) rank += a[i] < v;
                list[rank] = v;
            }
            __syncthreads();
            continue;
        }
        int done = 0;
        for (i64 j0 = 0; j0 < p.indices; j0 += 256 * 16) {
            i64 first = j0 + t * 16, end = first + 16 < p.indices ? first + 16 : p.indices;
            int mine = 0;
            for (i64 j = first; j < end; j++) mine += (i64)p.index[j] == k;
            before[t + 1] = mine;
            if (t == 0) before[0] = 0;
            __syncthreads();
            for (int step = 1; step < 256; step *= 2) {
                int more = t + 1 > step ? before[t + 1 - step] : 0;
                __syncthreads();
                before[t + 1] += more;
                __syncthreads();
            }
            int at = done + before[t];
            for (i64 j = first; j < end; j++)
                if ((i64)p.index[j] == k) list[at++] = (int)j;
            done += before[256];
            __syncthreads();
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
// The sum of each part of the lists that is all of one list, N elements a thread.
KERNEL(sum_segments, P) {
    int total = p.placed ? p.count[p.length] : p.count[p.length - 1];
    EACH(g, p.outer * p.segments * (p.inner / N)) {
        i64 packs = p.inner / N, b = g % packs * N, r = g / packs, o = r / p.segments, start = r % p.segments * p.segment;
        i64 end = start + p.segment;
        if (end > total || p.index[p.list[start]] != p.index[p.list[end - 1]]) continue;
        A s[N];
        for (int e = 0; e < N; e++) s[e] = (A)0;
#pragma unroll 4
        for (i64 j = start; j < end; j++) {
            Pack<T, N> x = load_pack<T, N>(p.x, (o * p.indices + p.list[j]) * p.inner + b);
            for (int e = 0; e < N; e++) s[e] += (A)widen(x.v[e]);
        }
        for (int e = 0; e < N; e++) p.sum[r * p.inner + b + e] = s[e];
    }
}
// Where a list starts, and where it ends. After places were filled in one by one, count[k] is the end of list k, else its start.
DEV int start_of(const P &p, i64 k) { return p.placed ? p.count[k] : k == 0 ? 0 : p.count[k - 1]; }
DEV int end_of(const P &p, i64 k) { return p.placed ? p.count[k + 1] : p.count[k]; }
// A list's sum, N elements from b on.
DEV void sum_list(const P &p, i64 o, i64 k, i64 b) {
    int start = start_of(p, k), end = end_of(p, k);
    A s[N];
    for (int e = 0; e < N; e++) s[e] = (A)0;
    // The parts of a long list have been summed; what is before the first of them and behind the last has not.
    int part = (int)p.segment, first = (start + part - 1) / part, last = end / part;
    bool in_parts = p.segments > 0 && last > first;
    int head = in_parts ? first * part : end;
#pragma unroll 4
    for (int j = start; j < head; j++) {
        Pack<T, N> x = load_pack<T, N>(p.x, (o * p.indices + p.list[j]) * p.inner + b);
        for (int e = 0; e < N; e++) s[e] += (A)widen(x.v[e]);
    }
    if (in_parts) {
        for (int j = first; j < last; j++)
            for (int e = 0; e < N; e++) s[e] += p.sum[(o * p.segments + j) * p.inner + b + e];
        for (int j = last * part; j < end; j++) {
            Pack<T, N> x = load_pack<T, N>(p.x, (o * p.indices + p.list[j]) * p.inner + b);
            for (int e = 0; e < N; e++) s[e] += (A)widen(x.v[e]);
        }
    }
    i64 at = (o * p.length + k) * p.inner + b;
    Pack<T, N> y = {};
    if (p.adds) y = load_pack<T, N>(p.y, at);
    for (int e = 0; e < N; e++) y.v[e] = stored(p, s[e], y.v[e]);
    store_pack<T, N>(p.y, at, y);
}
// All lists, those of nothing too.
KERNEL(sum_lists, P) {
    EACH(g, p.outer * p.length * (p.inner / N)) {
        i64 packs = p.inner / N, r = g / packs;
        sum_list(p, r / p.length, r % p.length, g % packs * N);
    }
}
// The lists that there are, each by the first index in it: what no index names stays as it is.
KERNEL(add_lists, P) {
    EACH(g, p.outer * p.indices * (p.inner / N)) {
        i64 packs = p.inner / N, r = g / packs, i = r % p.indices, k = (i64)p.index[i];
        if (k >= 0 && k < p.length && p.list[start_of(p, k)] == (int)i) sum_list(p, r / p.indices, k, g % packs * N);
    }
}
// A slice of the indices, for one output: those that name it.
KERNEL(sum_slices, P) {
    i64 slices = (p.indices + p.slice - 1) / p.slice, wide = p.length * p.inner;
    EACH(g, p.outer * slices * wide) {
        i64 k = g % wide / p.inner, b = g % p.inner, r = g / wide, o = r / slices, start = r % slices * p.slice;
        i64 end = start + p.slice < p.indices ? start + p.slice : p.indices;
        A s = (A)0;
        for (i64 j = start; j < end; j++) {
            i64 named = g % wide == 0 && o == 0 ? checked(p, j) : (i64)p.index[j];
            if (named == k) s += (A)widen(p.x[(o * p.indices + j) * p.inner + b]);
        }
        p.sum[g] = s;
    }
}
KERNEL(add_slices, P) {
    i64 slices = (p.indices + p.slice - 1) / p.slice, wide = p.length * p.inner;
    EACH(g, p.outer * wide) {
        A s = (A)0;
        for (i64 j = 0; j < slices; j++) s += p.sum[(g / wide * slices + j) * wide + g % wide];
        p.y[g] = stored(p, s, p.y[g]);
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
