/* sha256: FIPS 180-4, of a text held in memory; for checking that a file is the one that is meant.
 */
#ifndef TANDEM_ROUTER_SHA256_H
#define TANDEM_ROUTER_SHA256_H

#include <stddef.h>

enum {
    SHA256_HEX = 65, /* with the NUL */
};

void sha256_hex(const void *bytes, size_t n, char out[SHA256_HEX]);

#endif
