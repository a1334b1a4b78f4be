#include "common/log.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { LINE_MAX_BYTES = 2048 };

static struct {
    const char *component;
    td_log_level level;
} state = {"tandem", TD_LOG_INFO}; /* written once, before threads start */

/* A program that was started with stderr closed would give its number to the next socket, and write
 * its log to a peer. So before anything can open a file, not even a library's constructor; by the
 * kernel's own calls, as the sanitizers' are not there yet. */
__attribute__((no_sanitize("address", "thread", "undefined"))) static void open_standard(void)
{
    long fd;

    do {
        fd = syscall(SYS_openat, AT_FDCWD, "/dev/null", O_RDWR);
    } while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd >= 0)
        syscall(SYS_close, fd);
}

__attribute__((section(".preinit_array"),
               used)) static void (*const at_start)(void) = open_standard;

static const char *const level_names[] = {"error", "warn", "info", "debug"};

void td_log_init(const char *component, td_log_level level)
{
    state.component = component;
    state.level = level;
}

bool td_log_enabled(td_log_level level)
{
    return level <= state.level;
}

void td_log_line(td_log_level level, const char *event, const char *fmt, ...)
{
    char raw[LINE_MAX_BYTES];
    char line[2 * LINE_MAX_BYTES + 128];
    struct timespec now;
    struct tm utc;
    va_list ap;
    size_t n;
    int head, body;

    va_start(ap, fmt);
    body = vsnprintf(raw, sizeof raw, fmt, ap);
    va_end(ap);
    if (body < 0)
        return;
    if ((size_t)body >= sizeof raw)
        body = sizeof raw - 1;

    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    head = snprintf(line, 128, "%04d-%02d-%02dT%02d:%02d:%02d.%06ldZ %s %s %s ", utc.tm_year + 1900,
                    utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec,
                    now.tv_nsec / 1000, level_names[level], state.component, event);
    n = head < 0 ? 0 : head > 127 ? 127 : (size_t)head;

    for (int i = 0; i < body; i++) { /* one event stays one line, whatever a client put in it */
        unsigned char c = (unsigned char)raw[i];

        if (c == '\n' || c == '\r' || c == '\t') {
            line[n++] = '\\';
            line[n++] = c == '\n' ? 'n' : c == '\r' ? 'r' : 't';
        } else {
            line[n++] = c < 0x20 || c == 0x7f ? '?' : (char)c;
        }
    }
    line[n++] = '\n';
    if (write(STDERR_FILENO, line, n) < 0)
        return; /* stderr is gone: there is nowhere left to say so */
}
