/* The bucket lists. The first five are vLLM's, bound for bound, so that its dashboards and rules
 * read our series as they read vLLM's. */
#include "common/metrics.h"

#define DEFINE(name, ...) \
    const double td_buckets_##name[] = {__VA_ARGS__}; \
    const size_t td_buckets_##name##_n = sizeof td_buckets_##name / sizeof *td_buckets_##name

DEFINE(TTFT, 0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10,
       20, 40, 80, 160, 640, 2560);
DEFINE(ITL, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20,
       40, 80);
DEFINE(LATENCY, 0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960,
       1920, 7680);
DEFINE(TOKENS, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000);
DEFINE(ITERATION_TOKENS, 1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384);

/* Ours: from one page over NVLink to a long prompt over TCP. */
DEFINE(TRANSFER, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
       1, 2.5, 5, 10);
DEFINE(MASK, 1e-6, 2.5e-6, 5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 0.001, 0.0025, 0.005, 0.01,
       0.025, 0.05, 0.1);
DEFINE(BYTES, 0x1p12, 0x1p14, 0x1p16, 0x1p18, 0x1p20, 0x1p22, 0x1p24, 0x1p26, 0x1p28, 0x1p30,
       0x1p32, 0x1p34);
