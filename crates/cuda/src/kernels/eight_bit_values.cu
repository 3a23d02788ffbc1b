// What bytes stand for, of numbers that share a scale.

// The value that a code stands for: decade i of the values below 1 is cut into 2^i pieces, twice as many where there is no sign.
DEV float value_of(int code, bool is_signed) {
    const double decades[7] = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0};
    int zero = is_signed ? 127 : 0, k = code < zero ? zero - code : code - zero;
    if (k == 0) return 0.0f;
    if (code == 255) return 1.0f;
    k -= 1;
    int decade = 0, pieces = is_signed ? 1 : 2;
    while (k >= pieces) {
        k -= pieces;
        pieces *= 2;
        decade++;
    }
    double middle = 0.1 + 0.9 * ((double)k + 0.5) / (double)pieces;
    float value = (float)(decades[decade] * middle);
    return code < zero ? -value : value;
}

