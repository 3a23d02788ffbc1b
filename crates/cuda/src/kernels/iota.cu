// y counts along one axis.

struct P {
    i64 n;
    T *y;
    i64 length;
    i64 inner;
};
KERNEL(iota, P) {
    EACH(i, p.n) p.y[i] = narrow<T>((Wide<A>::type)(i / p.inner % p.length));
}
