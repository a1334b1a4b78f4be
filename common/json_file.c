#include "common/json_file.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/json_text.h"

#define NOT_JSON "%s: not JSON at byte %zu of %zu"

enum { PATH_SHOWN = 200 };

const char *td_path_tail(const char *path)
{
    size_t n = strlen(path);

    return n > PATH_SHOWN ? path + (n - PATH_SHOWN) : path;
}

td_status td_file_open(const char *path, int *fd, uint64_t *bytes, td_error *err)
{
    struct stat s;
    /* O_NONBLOCK only so that a FIFO in the folder is refused below instead of waited for. */
    int f = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

    if (f < 0) {
        int e = errno;

        return td_fail(err, e == ENOENT || e == ENOTDIR ? TD_NOTFOUND : TD_IO,
                       "%s: cannot open: %s", td_path_tail(path), strerror(e));
    }
    if (fstat(f, &s) != 0) {
        int e = errno;

        close(f);
        return td_fail(err, TD_IO, "%s: cannot stat: %s", td_path_tail(path), strerror(e));
    }
    if (!S_ISREG(s.st_mode)) {
        close(f);
        return td_fail(err, TD_IO, "%s: is %s, expected a regular file", td_path_tail(path),
                       S_ISDIR(s.st_mode) ? "a folder" : "a device, pipe or socket");
    }
    *fd = f;
    *bytes = (uint64_t)s.st_size;
    return TD_OK;
}

td_status td_file_read(const char *path, size_t max, td_buf *out, td_error *err)
{
    char chunk[16384];
    uint64_t bytes = 0;
    int fd = -1;
    td_status st = td_file_open(path, &fd, &bytes, err);

    if (st != TD_OK)
        return st;
    if (bytes > max) {
        close(fd);
        return td_fail(err, TD_TOOLARGE, "%s: %llu bytes, expected at most %zu", td_path_tail(path),
                       (unsigned long long)bytes, max);
    }
    for (;;) {
        ssize_t n = read(fd, chunk, sizeof chunk);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            st = td_fail(err, TD_IO, "%s: cannot read: %s", td_path_tail(path), strerror(errno));
            break;
        }
        if (n == 0)
            break;
        if (out->len + (size_t)n > max) { /* it grew after the stat */
            st = td_fail(err, TD_TOOLARGE, "%s: over %zu bytes", td_path_tail(path), max);
            break;
        }
        td_buf_add(out, chunk, (size_t)n);
    }
    close(fd);
    if (st == TD_OK && out->oom)
        st = td_fail(err, TD_NOMEM, "%s: no memory for %llu bytes", td_path_tail(path),
                     (unsigned long long)bytes);
    return st;
}

/* What cJSON would let pass, or would recurse into, before it sees the text. */
static td_status scan(const char *text, size_t len, int max_depth, const char *what, td_error *err)
{
    size_t at = 0;

    if (!td_utf8_valid(text, len, &at))
        return td_fail(err, TD_INVALID, "%s: not JSON: byte %zu is not UTF-8", what, at);
    switch (td_json_look(text, len, max_depth, SIZE_MAX, &at)) {
    case TD_JSON_NUL_BYTE:
    case TD_JSON_CONTROL:
        return td_fail(err, TD_INVALID, "%s: not JSON: control character 0x%02x at byte %zu", what,
                       (unsigned char)text[at], at);
    case TD_JSON_NUL_CHARACTER:
        return td_fail(err, TD_INVALID,
                       "%s: string with \\u0000 at byte %zu, which no name or value here may hold",
                       what, at);
    case TD_JSON_ESCAPE:
        return td_fail(err, TD_INVALID, "%s: not JSON: \\u without four hex digits at byte %zu",
                       what, at);
    case TD_JSON_NUMBER: return td_fail(err, TD_INVALID, NOT_JSON, what, at, len);
    case TD_JSON_DEPTH:
        return td_fail(err, TD_INVALID,
                       "%s: nested deeper than %d levels at byte %zu, expected less", what,
                       max_depth, at);
    case TD_JSON_VALUES:
    case TD_JSON_FINE: break;
    }
    return TD_OK;
}

td_status td_json_parse(const char *text, size_t len, int max_depth, const char *what, cJSON **out,
                        td_error *err)
{
    const char *end = text;
    cJSON *root;
    td_status st = scan(text, len, max_depth, what, err);

    if (st != TD_OK)
        return st;
    root = cJSON_ParseWithLengthOpts(text, len + 1, &end, 1);
    if (root == NULL)
        return td_fail(err, TD_INVALID, NOT_JSON, what, (size_t)(end - text), len);
    if (!cJSON_IsObject(root)) {
        cJSON_Delete(root);
        return td_fail(err, TD_INVALID, "%s: expected a JSON object", what);
    }
    *out = root;
    return TD_OK;
}

td_status td_json_key(const cJSON *object, const char *key, const char *what, const cJSON **out,
                      td_error *err)
{
    const cJSON *item;
    const cJSON *found = NULL;

    cJSON_ArrayForEach(item, object)
    {
        if (item->string == NULL || strcmp(item->string, key) != 0)
            continue;
        if (found != NULL)
            return td_fail(err, TD_INVALID, "%s: key %s appears twice", what, key);
        found = item;
    }
    *out = found;
    return TD_OK;
}

bool td_json_int(const cJSON *item, int64_t lo, int64_t hi, int64_t *out)
{
    const double max = 9007199254740991.0; /* past it, neighbours are no longer told apart */
    double v;

    if (!cJSON_IsNumber(item))
        return false;
    v = item->valuedouble;
    if (!isfinite(v) || fabs(v) > max || v != floor(v) || v < (double)lo || v > (double)hi)
        return false;
    *out = (int64_t)v;
    return true;
}

const char *td_json_show(const cJSON *item, char *buf, size_t cap)
{
    char *text;

    if (item == NULL) {
        snprintf(buf, cap, "nothing");
        return buf;
    }
    /* cJSON prints a non-finite number as null, which would hide what was wrong with it. */
    if (cJSON_IsNumber(item)) {
        double v = item->valuedouble;

        snprintf(buf, cap, "%.15g", v); /* 0.1, not 0.10000000000000001 */
        if (strtod(buf, NULL) != v || v == floor(v))
            snprintf(buf, cap, "%.17g", v);
        return buf;
    }
    text = cJSON_PrintUnformatted(item);
    snprintf(buf, cap, "%s", text == NULL ? "(unprintable)" : text);
    if (text != NULL && strlen(text) >= cap && cap > 4)
        memcpy(buf + cap - 4, "...", 4);
    cJSON_free(text);
    return buf;
}
