#include "common/clock.h"

static int64_t read_us(clockid_t id)
{
    struct timespec t;

    clock_gettime(id, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

td_usec td_now_us(void)
{
    return read_us(CLOCK_MONOTONIC);
}

int64_t td_wall_us(void)
{
    return read_us(CLOCK_REALTIME);
}

struct timespec td_timespec(td_usec at)
{
    struct timespec t = {.tv_sec = (time_t)(at / 1000000), .tv_nsec = (long)(at % 1000000) * 1000};

    return t;
}
