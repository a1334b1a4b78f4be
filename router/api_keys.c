#include "router/api_keys.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/log.h"
#include "router/sha256.h"

/* What tells one state of the file from another. */
typedef struct file_mark {
    dev_t dev;
    ino_t ino;
    off_t size;
    struct timespec written;
} file_mark;

struct api_keys {
    char *path;
    file_mark mark; /* of the last attempt to read it */
    char (*hashes)[SHA256_HEX];
    size_t n;
};

static file_mark mark_of(const struct stat *s)
{
    return (file_mark){
        .dev = s->st_dev, .ino = s->st_ino, .size = s->st_size, .written = s->st_mtim};
}

static bool same_mark(const file_mark *a, const file_mark *b)
{
    return a->dev == b->dev && a->ino == b->ino && a->size == b->size &&
           a->written.tv_sec == b->written.tv_sec && a->written.tv_nsec == b->written.tv_nsec;
}

/* A line without the blanks around it; the length is 0 when it says nothing. */
static char *trim(char *line, size_t *n)
{
    line += strspn(line, " \t\r\n");
    *n = strlen(line);
    while (*n > 0 && strchr(" \t\r\n", line[*n - 1]) != NULL)
        (*n)--;
    if (line[0] == '#')
        *n = 0;
    return line;
}

static td_status add_key(api_keys *k, const char *path, size_t line, const char *key, size_t n,
                         td_error *err)
{
    void *more;

    for (size_t i = 0; i < n; i++)
        if (key[i] <= ' ' || key[i] >= 0x7f)
            return td_fail(err, TD_INVALID,
                           "%s, line %zu: a key is one word of printable ASCII characters", path,
                           line);
    if (n < API_KEY_MIN_BYTES || n > API_KEY_MAX_BYTES)
        return td_fail(err, TD_INVALID, "%s, line %zu: a key has %d to %d characters, this has %zu",
                       path, line, API_KEY_MIN_BYTES, API_KEY_MAX_BYTES, n);
    if (k->n == API_KEYS_MAX)
        return td_fail(err, TD_INVALID, "%s has more than %d keys", path, API_KEYS_MAX);
    if ((k->n & (k->n - 1)) == 0) { /* room doubles at powers of two */
        more = realloc(k->hashes, (k->n ? 2 * k->n : 1) * sizeof *k->hashes);
        if (more == NULL)
            return td_fail(err, TD_NOMEM, "no memory for keys");
        k->hashes = more;
    }
    sha256_hex(key, n, k->hashes[k->n++]);
    return TD_OK;
}

/* The file's keys into *k, which has none yet. */
static td_status read_keys(const char *path, api_keys *k, td_error *err)
{
    /* O_NONBLOCK only so that a FIFO in its place is refused below instead of waited for. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    FILE *f = fd >= 0 ? fdopen(fd, "r") : NULL;
    char *line = NULL;
    ssize_t got;
    size_t cap = 0, number = 0;
    td_status st = TD_OK;
    struct stat s;
    bool known = f != NULL && fstat(fd, &s) == 0;

    if (known)
        k->mark = mark_of(&s); /* of whatever it is: that is said once */
    if (!known || !S_ISREG(s.st_mode)) {
        st = td_fail(err, TD_IO, "cannot read the keys in %s: %s", path,
                     known ? "it is no file" : strerror(errno));
        if (f != NULL)
            fclose(f);
        else if (fd >= 0)
            close(fd);
        return st;
    }
    if (s.st_mode & S_IROTH)
        td_warn("api_keys_readable", "file=%s mode=%04o", path, (unsigned)(s.st_mode & 07777));
    while (st == TD_OK && (got = getline(&line, &cap, f)) >= 0) {
        size_t n;
        const char *key = trim(line, &n);

        number++;
        if (strlen(line) != (size_t)got) /* the rest would be cut off the key */
            st = td_fail(err, TD_INVALID, "%s, line %zu: has a NUL byte", path, number);
        else if (n > 0)
            st = add_key(k, path, number, key, n, err);
    }
    if (st == TD_OK && ferror(f))
        st = td_fail(err, TD_IO, "cannot read the keys in %s: %s", path, strerror(errno));
    if (st == TD_OK && k->n == 0)
        st = td_fail(err, TD_INVALID, "%s has no key in it: nobody could ask", path);
    if (line != NULL)
        explicit_bzero(line, cap);
    free(line);
    fclose(f);
    return st;
}

td_status api_keys_reload(api_keys *k, td_error *err)
{
    api_keys fresh = {0};
    td_status st = read_keys(k->path, &fresh, err);

    k->mark = fresh.mark;
    if (st != TD_OK) {
        free(fresh.hashes);
        return st;
    }
    free(k->hashes);
    k->hashes = fresh.hashes;
    k->n = fresh.n;
    return TD_OK;
}

td_status api_keys_open(const char *path, api_keys **out, td_error *err)
{
    api_keys *k = calloc(1, sizeof *k);
    td_status st;

    if (k == NULL || (k->path = strdup(path)) == NULL) {
        free(k);
        return td_fail(err, TD_NOMEM, "no memory for keys");
    }
    st = api_keys_reload(k, err);
    if (st != TD_OK) {
        api_keys_free(k);
        return st;
    }
    *out = k;
    return TD_OK;
}

void api_keys_free(api_keys *k)
{
    if (k == NULL)
        return;
    free(k->hashes);
    free(k->path);
    free(k);
}

bool api_keys_changed(api_keys *k)
{
    struct stat s;
    file_mark now;

    if (stat(k->path, &s) != 0)
        return false;
    now = mark_of(&s);
    return !same_mark(&now, &k->mark);
}

size_t api_keys_count(const api_keys *k)
{
    return k->n;
}

_Static_assert((int)API_KEY_OWNER == (int)SHA256_HEX, "owners are hashes");

bool api_keys_admit(const api_keys *k, const char *authorization, char owner[API_KEY_OWNER])
{
    static const char scheme[] = "Bearer ";
    char hash[SHA256_HEX];
    unsigned found = 0;
    size_t n;

    if (authorization == NULL || strncasecmp(authorization, scheme, sizeof scheme - 1) != 0)
        return false;
    authorization += sizeof scheme - 1;
    authorization += strspn(authorization, " ");
    n = strlen(authorization);
    while (n > 0 && authorization[n - 1] == ' ')
        n--;
    sha256_hex(authorization, n, hash);
    for (size_t i = 0; i < k->n; i++) { /* all of all, whatever has been found */
        unsigned differs = 0;

        for (size_t j = 0; j < SHA256_HEX - 1; j++)
            differs |= (unsigned char)(hash[j] ^ k->hashes[i][j]);
        found |= (differs - 1) >> 31; /* 1 where nothing differs */
    }
    if (found != 0 && owner != NULL)
        memcpy(owner, hash, sizeof hash);
    return found != 0;
}
