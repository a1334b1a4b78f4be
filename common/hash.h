/* hash: identities of things, 64 bits. Not for tables fed by strangers, and not cryptographic: it
 * tells two honest copies apart. The value is the same on every machine. */
#ifndef TANDEM_COMMON_HASH_H
#define TANDEM_COMMON_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define TD_HASH_START UINT64_C(0xcbf29ce484222325)

/* FNV-1a over bytes, chained through h. */
static inline uint64_t td_hash_bytes(uint64_t h, const void *bytes, size_t n)
{
    const unsigned char *p = bytes;

    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * UINT64_C(0x100000001b3);
    return h;
}

static inline uint64_t td_hash_u64(uint64_t h, uint64_t v)
{
    for (int i = 0; i < 8; i++)
        h = (h ^ ((v >> (8 * i)) & 0xff)) * UINT64_C(0x100000001b3);
    return h;
}

/* The text and its length, so that "ab","c" and "a","bc" differ. */
static inline uint64_t td_hash_str(uint64_t h, const char *s)
{
    size_t n = strlen(s);

    return td_hash_bytes(td_hash_u64(h, n), s, n);
}

static inline uint64_t td_hash_f64(uint64_t h, double v)
{
    uint64_t bits;

    memcpy(&bits, &v, sizeof bits);
    return td_hash_u64(h, bits);
}

/* FNV leaves the high bits weak; this spreads every bit over all (the finaliser of SplitMix64). */
static inline uint64_t td_hash_end(uint64_t z)
{
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

#endif
