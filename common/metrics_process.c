#include "common/metrics_process.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* The numbers of /proc/self/stat that follow the command name, which may itself hold blanks and
 * parentheses: so from the last ')' on. field counts as in proc(5), from 3. -1: not there. */
static long long stat_field(int field)
{
    char line[1024], *p, *save = NULL;
    long long v = -1;
    size_t n;
    FILE *f = fopen("/proc/self/stat", "r");

    if (f == NULL)
        return -1;
    n = fread(line, 1, sizeof line - 1, f);
    fclose(f);
    line[n] = '\0';
    p = strrchr(line, ')');
    p = p ? strtok_r(p + 1, " ", &save) : NULL;
    for (int i = 3; p != NULL && i < field; i++)
        p = strtok_r(NULL, " ", &save);
    return p != NULL && sscanf(p, "%lld", &v) == 1 ? v : -1;
}

/* When the machine was started, in seconds since 1970; -1: not known. */
static long long boot_time(void)
{
    char line[256];
    long long v = -1;
    FILE *f = fopen("/proc/stat", "r");

    while (f != NULL && v < 0 && fgets(line, sizeof line, f) != NULL) {
        if (sscanf(line, "btime %lld", &v) != 1)
            v = -1;
    }
    if (f != NULL)
        fclose(f);
    return v;
}

static int open_fds(void)
{
    DIR *d = opendir("/proc/self/fd");
    int n = 0;

    if (d == NULL)
        return -1;
    for (struct dirent *e = readdir(d); e != NULL; e = readdir(d))
        n += e->d_name[0] != '.';
    closedir(d);
    return n - 1; /* without the one that was counting */
}

static void head(td_buf *b, const char *name, const char *type, const char *help)
{
    td_buf_fmt(b, "# HELP %s %s\n# TYPE %s %s\n%s ", name, help, name, type, name);
}

void td_metrics_write_process(td_buf *b)
{
    long long rss_pages = stat_field(24), start_ticks = stat_field(22), boot = boot_time();
    int fds = open_fds();
    struct rusage use;

    if (getrusage(RUSAGE_SELF, &use) == 0) {
        head(b, "process_cpu_seconds_total", "counter", "User and system CPU time, in seconds.");
        td_buf_fmt(b, "%.6f\n",
                   (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
                       (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6);
    }
    if (fds >= 0) {
        head(b, "process_open_fds", "gauge", "Open file descriptors.");
        td_buf_fmt(b, "%d\n", fds);
    }
    if (rss_pages >= 0) {
        head(b, "process_resident_memory_bytes", "gauge", "Resident memory, in bytes.");
        td_buf_fmt(b, "%lld\n", rss_pages * sysconf(_SC_PAGESIZE));
    }
    if (start_ticks >= 0 && boot >= 0) {
        head(b, "process_start_time_seconds", "gauge", "Start of the process, in Unix seconds.");
        td_buf_fmt(b, "%.2f\n", (double)boot + (double)start_ticks / (double)sysconf(_SC_CLK_TCK));
    }
}
