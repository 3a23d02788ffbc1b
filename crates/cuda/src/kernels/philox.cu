// Random words from Philox4x32-10, by their coordinates alone.

DEV u64 mix(u64 bits) {
    bits = (bits ^ (bits >> 33)) * 0xFF51AFD7ED558CCDull;
    bits = (bits ^ (bits >> 33)) * 0xC4CEB9FE1A85EC53ull;
    return bits ^ (bits >> 33);
}
// Four words of block `block` of the sample `at`.
DEV void philox(u64 seed, u64 step, u64 at, u32 stream, u32 block, u32 *c) {
    u64 key = seed ^ mix(step >> 32 << 32 | at >> 32);
    u32 k0 = (u32)key, k1 = (u32)(key >> 32);
    c[0] = block;
    c[1] = (u32)at;
    c[2] = (u32)step;
    c[3] = stream;
    for (int round = 0; round < 10; round++) {
        u64 p0 = (u64)0xD2511F53u * c[0], p1 = (u64)0xCD9E8D57u * c[2];
        u32 a = (u32)(p1 >> 32) ^ c[1] ^ k0, b = (u32)(p0 >> 32) ^ c[3] ^ k1;
        c[1] = (u32)p1;
        c[3] = (u32)p0;
        c[0] = a;
        c[2] = b;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}
