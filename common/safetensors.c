#include "common/safetensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/json_file.h"

enum { LENGTH_BYTES = 8, MAX_DEPTH = 4 };

#define MAX_INT (INT64_C(1) << 53)
#define AGAIN "the copy looks incomplete; copy it again"

static const struct {
    const char *name;
    uint32_t bits;
} dtypes[] = {
    {"BF16", 16},   {"U8", 8},      {"F32", 32},    {"F16", 16},    {"F64", 64},
    {"I8", 8},      {"I16", 16},    {"I32", 32},    {"I64", 64},    {"U16", 16},
    {"U32", 32},    {"U64", 64},    {"BOOL", 8},    {"F8_E4M3", 8}, {"F8_E5M2", 8},
    {"F8_E8M0", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4},      {"C64", 64},
};

struct td_safetensors {
    char label[208];
    const unsigned char *bytes;
    uint64_t n_bytes;
    bool mapped;
    cJSON *header; /* owns the names */
    td_st_tensor *tensor;
    size_t n_tensors;
};

const char *td_st_show(const char *dtype, const int64_t *dim, int32_t n_dims, char *buf, size_t cap)
{
    size_t n = 0;

    n += (size_t)snprintf(buf, cap, "%s [", dtype);
    for (int32_t i = 0; i < n_dims && n < cap; i++)
        n += (size_t)snprintf(buf + n, cap - n, "%s%" PRId64, i == 0 ? "" : ", ", dim[i]);
    if (n < cap)
        snprintf(buf + n, cap - n, "]");
    return buf;
}

/* Bytes that dtype and shape need; false if they are not whole or do not fit 64 bits. */
static bool needed_bytes(const td_st_tensor *t, uint32_t bits, uint64_t *bytes)
{
    uint64_t n = bits;

    for (int32_t i = 0; i < t->n_dims; i++) {
        if (t->dim[i] == 0) { /* before multiplying: [2^53, 2^53, 0] is empty, not an overflow */
            *bytes = 0;
            return true;
        }
    }
    for (int32_t i = 0; i < t->n_dims; i++)
        if (__builtin_mul_overflow(n, (uint64_t)t->dim[i], &n))
            return false;
    *bytes = n / 8;
    return n % 8 == 0;
}

static td_status read_shape(const td_safetensors *st, const cJSON *shape, td_st_tensor *t,
                            td_error *err)
{
    const cJSON *item;
    char shown[48];

    if (!cJSON_IsArray(shape))
        return td_fail(err, TD_INVALID, "%s: tensor %.128s: shape: expected a list, found %s",
                       st->label, t->name, td_json_show(shape, shown, sizeof shown));
    cJSON_ArrayForEach(item, shape)
    {
        if (t->n_dims == TD_ST_MAX_DIMS)
            return td_fail(err, TD_INVALID,
                           "%s: tensor %.128s: shape: expected at most %d dimensions", st->label,
                           t->name, TD_ST_MAX_DIMS);
        if (!td_json_int(item, 0, MAX_INT, &t->dim[t->n_dims]))
            return td_fail(err, TD_INVALID,
                           "%s: tensor %.128s: shape: expected integers from 0 to 2^53, found %s",
                           st->label, t->name, td_json_show(item, shown, sizeof shown));
        t->n_dims++;
    }
    return TD_OK;
}

static td_status read_offsets(const td_safetensors *st, const cJSON *offsets, td_st_tensor *t,
                              td_error *err)
{
    int64_t v[2] = {0};
    const cJSON *item;
    int n = 0;

    cJSON_ArrayForEach(item, offsets)
    {
        if (n == 2 || !td_json_int(item, 0, MAX_INT, &v[n])) {
            n = 0;
            break;
        }
        n++;
    }
    if (!cJSON_IsArray(offsets) || n != 2)
        return td_fail(err, TD_INVALID,
                       "%s: tensor %.128s: data_offsets: expected two integers from 0 to 2^53",
                       st->label, t->name);
    if (v[0] > v[1])
        return td_fail(err, TD_INVALID,
                       "%s: tensor %.128s: data_offsets: begin %" PRId64 " is past end %" PRId64,
                       st->label, t->name, v[0], v[1]);
    t->begin = (uint64_t)v[0];
    t->end = (uint64_t)v[1];
    return TD_OK;
}

static td_status read_tensor(const td_safetensors *st, const cJSON *entry, td_st_tensor *t,
                             td_error *err)
{
    const cJSON *dtype = NULL, *shape = NULL, *offsets = NULL;
    char what[352], shown[160];
    uint64_t needed = 0;
    size_t i;
    td_status s;

    t->name = entry->string;
    snprintf(what, sizeof what, "%s: tensor %.128s", st->label, t->name);
    if (!cJSON_IsObject(entry))
        return td_fail(err, TD_INVALID, "%s: expected an object with dtype, shape, data_offsets",
                       what);
    s = td_json_key(entry, "dtype", what, &dtype, err);
    if (s == TD_OK)
        s = td_json_key(entry, "shape", what, &shape, err);
    if (s == TD_OK)
        s = td_json_key(entry, "data_offsets", what, &offsets, err);
    if (s == TD_OK)
        s = read_shape(st, shape, t, err);
    if (s == TD_OK)
        s = read_offsets(st, offsets, t, err);
    if (s != TD_OK)
        return s;
    for (i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++)
        if (cJSON_IsString(dtype) && strcmp(dtype->valuestring, dtypes[i].name) == 0)
            break;
    if (i == sizeof dtypes / sizeof dtypes[0])
        return td_fail(err, TD_INVALID,
                       "%s: dtype: expected a name of the format (BF16, U8, ...), found %s", what,
                       td_json_show(dtype, shown, 48));
    t->dtype = dtypes[i].name;
    td_st_show(t->dtype, t->dim, t->n_dims, shown, sizeof shown);
    if (!needed_bytes(t, dtypes[i].bits, &needed))
        return td_fail(err, TD_INVALID, "%s: %s is no whole number of bytes below 2^64", what,
                       shown);
    if (needed != t->end - t->begin)
        return td_fail(err, TD_INVALID,
                       "%s: %s needs %" PRIu64 " bytes, its data_offsets give %" PRIu64, what,
                       shown, needed, t->end - t->begin);
    return TD_OK;
}

static td_status read_metadata(const td_safetensors *st, const cJSON *meta, td_error *err)
{
    const cJSON *item;

    if (!cJSON_IsObject(meta))
        return td_fail(err, TD_INVALID, "%s: __metadata__: expected an object", st->label);
    cJSON_ArrayForEach(item, meta)
    {
        if (!cJSON_IsString(item))
            return td_fail(err, TD_INVALID, "%s: __metadata__: %.64s: expected a string", st->label,
                           item->string);
    }
    return TD_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const td_st_tensor *)a)->name, ((const td_st_tensor *)b)->name);
}

static int by_offset(const void *a, const void *b)
{
    const td_st_tensor *x = *(const td_st_tensor *const *)a;
    const td_st_tensor *y = *(const td_st_tensor *const *)b;

    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->end == y->end ? 0 : x->end < y->end ? -1 : 1; /* empty ones first */
}

/* The tensors, in order of place, must tile the data, and the data must end with the file. */
static td_status check_tiling(const td_safetensors *st, uint64_t data_at, td_error *err)
{
    const td_st_tensor **order = calloc(st->n_tensors + 1, sizeof *order);
    const char *before = "the header";
    uint64_t at = 0;
    td_status s = TD_OK;

    if (order == NULL)
        return td_fail(err, TD_NOMEM, "%s: no memory for %zu tensors", st->label, st->n_tensors);
    for (size_t i = 0; i < st->n_tensors; i++)
        order[i] = &st->tensor[i];
    qsort(order, st->n_tensors, sizeof *order, by_offset);
    for (size_t i = 0; i < st->n_tensors && s == TD_OK; i++) {
        const td_st_tensor *t = order[i];

        if (t->begin != at)
            s = td_fail(err, TD_INVALID,
                        "%s: tensor %.128s: begins at %" PRIu64 ", expected %" PRIu64
                        ", where %.128s ends: %s",
                        st->label, t->name, t->begin, at, before,
                        t->begin < at ? "they overlap" : "bytes of no tensor lie between");
        at = t->end;
        before = t->name;
    }
    free(order);
    if (s == TD_OK && data_at + at != st->n_bytes)
        s = td_fail(err, TD_INVALID,
                    "%s: expected %" PRIu64 " bytes from its header (to the end of tensor %.128s), "
                    "found %" PRIu64 ": " AGAIN,
                    st->label, data_at + at, before, st->n_bytes);
    return s;
}

static td_status read_header(td_safetensors *st, const char *text, size_t len, td_error *err)
{
    const cJSON *entry;
    bool metadata = false;
    size_t n = 0;
    td_status s;

    if (text[0] != '{')
        return td_fail(err, TD_INVALID, "%s: header: expected '{' at byte 8, found 0x%02x",
                       st->label, (unsigned char)text[0]);
    s = td_json_parse(text, len, MAX_DEPTH, st->label, &st->header, err);
    if (s != TD_OK)
        return s;
    cJSON_ArrayForEach(entry, st->header) n++;
    st->tensor = calloc(n + 1, sizeof *st->tensor);
    if (st->tensor == NULL)
        return td_fail(err, TD_NOMEM, "%s: no memory for %zu tensors", st->label, n);
    cJSON_ArrayForEach(entry, st->header)
    {
        if (strcmp(entry->string, "__metadata__") == 0) {
            s = metadata ? td_fail(err, TD_INVALID, "%s: __metadata__ appears twice", st->label)
                         : read_metadata(st, entry, err);
            metadata = true;
        } else {
            s = read_tensor(st, entry, &st->tensor[st->n_tensors++], err);
        }
        if (s != TD_OK)
            return s;
    }
    qsort(st->tensor, st->n_tensors, sizeof *st->tensor, by_name);
    for (size_t i = 1; i < st->n_tensors; i++)
        if (strcmp(st->tensor[i - 1].name, st->tensor[i].name) == 0)
            return td_fail(err, TD_INVALID, "%s: tensor %.128s: appears twice in the header",
                           st->label, st->tensor[i].name);
    return TD_OK;
}

static td_status check(td_safetensors *st, td_error *err)
{
    static const char lfs[] = "version https://git-lfs";
    uint64_t len = 0;
    char *text;
    td_status s;

    if (st->n_bytes >= sizeof lfs - 1 && memcmp(st->bytes, lfs, sizeof lfs - 1) == 0)
        return td_fail(err, TD_INVALID,
                       "%s: is a Git LFS pointer, expected the file that it points to: run git lfs "
                       "pull in the copied repository",
                       st->label);
    if (st->n_bytes < LENGTH_BYTES)
        return td_fail(err, TD_INVALID,
                       "%s: %" PRIu64 " bytes, expected at least 8 for the header length: " AGAIN,
                       st->label, st->n_bytes);
    for (int i = 0; i < LENGTH_BYTES; i++)
        len |= (uint64_t)st->bytes[i] << (8 * i);
    if (len > st->n_bytes - LENGTH_BYTES)
        return td_fail(err, TD_INVALID,
                       "%s: header length %" PRIu64 ", but the file has %" PRIu64 " bytes: " AGAIN,
                       st->label, len, st->n_bytes);
    if (len < 2 || len > TD_ST_MAX_HEADER)
        return td_fail(err, TD_INVALID, "%s: header length %" PRIu64 ", expected 2 to %d",
                       st->label, len, TD_ST_MAX_HEADER);
    /* A copy, because the parser needs a NUL after the text and the next byte is a tensor's. */
    text = malloc(len + 1);
    if (text == NULL)
        return td_fail(err, TD_NOMEM, "%s: no memory for a header of %" PRIu64 " bytes", st->label,
                       len);
    memcpy(text, st->bytes + LENGTH_BYTES, len);
    text[len] = '\0';
    s = read_header(st, text, len, err);
    free(text);
    if (s == TD_OK)
        s = check_tiling(st, LENGTH_BYTES + len, err);
    for (size_t i = 0; i < st->n_tensors && s == TD_OK; i++)
        st->tensor[i].data = st->bytes + LENGTH_BYTES + len + st->tensor[i].begin;
    return s;
}

static td_safetensors *create(const char *label, td_error *err)
{
    td_safetensors *st = calloc(1, sizeof *st);

    if (st == NULL)
        (void)td_fail(err, TD_NOMEM, "%s: no memory", td_path_tail(label));
    else
        snprintf(st->label, sizeof st->label, "%s", td_path_tail(label));
    return st;
}

td_status td_safetensors_parse(const void *bytes, size_t n_bytes, const char *label,
                               td_safetensors **out, td_error *err)
{
    td_safetensors *st = create(label, err);
    td_status s;

    if (st == NULL)
        return TD_NOMEM;
    st->bytes = bytes;
    st->n_bytes = n_bytes;
    s = check(st, err);
    if (s != TD_OK) {
        td_safetensors_close(st);
        return s;
    }
    *out = st;
    return TD_OK;
}

td_status td_safetensors_open(const char *path, td_safetensors **out, td_error *err)
{
    td_safetensors *st;
    uint64_t n_bytes = 0;
    void *map = NULL;
    int fd = -1;
    td_status s = td_file_open(path, &fd, &n_bytes, err);

    if (s != TD_OK)
        return s;
    if (n_bytes > 0) { /* an empty mapping is an error, an empty file is refused by check() */
        map = mmap(NULL, n_bytes, PROT_READ, MAP_PRIVATE, fd, 0);
        if (map == MAP_FAILED) {
            close(fd);
            return td_fail(err, TD_IO, "%s: cannot map %" PRIu64 " bytes", td_path_tail(path),
                           n_bytes);
        }
    }
    close(fd);
    st = create(path, err);
    if (st == NULL) {
        if (n_bytes > 0)
            munmap(map, n_bytes);
        return TD_NOMEM;
    }
    st->bytes = map;
    st->n_bytes = n_bytes;
    st->mapped = n_bytes > 0;
    s = check(st, err);
    if (s != TD_OK) {
        td_safetensors_close(st);
        return s;
    }
    *out = st;
    return TD_OK;
}

void td_safetensors_close(td_safetensors *st)
{
    if (st == NULL)
        return;
    if (st->mapped)
        munmap((void *)(uintptr_t)st->bytes, st->n_bytes);
    cJSON_Delete(st->header);
    free(st->tensor);
    free(st);
}

const td_st_tensor *td_safetensors_find(const td_safetensors *st, const char *name)
{
    const td_st_tensor key = {.name = name};

    return bsearch(&key, st->tensor, st->n_tensors, sizeof *st->tensor, by_name);
}

size_t td_safetensors_count(const td_safetensors *st)
{
    return st->n_tensors;
}

const td_st_tensor *td_safetensors_at(const td_safetensors *st, size_t i)
{
    td_assert(i < st->n_tensors);
    return &st->tensor[i];
}

uint64_t td_safetensors_file_bytes(const td_safetensors *st)
{
    return st->n_bytes;
}
