// Sums of exponentials of logits that come one after the other, and logits as a thread takes them.

#ifdef VEC
struct alignas(sizeof(A) * VEC) Logits {
    A x[VEC];
};
struct alignas(sizeof(T) * VEC) Slopes {
    T x[VEC];
};
#endif
// Differences from the lowest value are not numbers: where nothing is above it, zero stands for it.
DEV A base_of(A top) { return top == Limit<A>::lowest() ? (A)0 : top; }
// A sum of exponentials below one top as one below another; nothing stays nothing.
DEV A moved(A sum, A from, A to) { return sum == (A)0 ? sum : sum * m_exp(base_of(from) - base_of(to)); }
