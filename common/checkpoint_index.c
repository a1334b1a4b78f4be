#include "common/checkpoint_index.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/json_file.h"

#define INDEX_FILE "model.safetensors.index.json"
#define SINGLE_FILE "model.safetensors"
#define AGAIN "the copy looks incomplete; copy it again"

enum { MAX_INDEX_BYTES = 16 << 20, MAX_DEPTH = 8, PATH_CAP = 4096 + 512 };

static int by_tensor(const void *a, const void *b)
{
    return strcmp(((const td_index_entry *)a)->tensor, ((const td_index_entry *)b)->tensor);
}

static int by_string(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* A name in the folder itself: an index must not make us open what lies outside of it. */
static bool plain_file_name(const char *s)
{
    size_t n = strlen(s);

    return n > 0 && n <= 255 && strchr(s, '/') == NULL && strcmp(s, ".") != 0 &&
           strcmp(s, "..") != 0;
}

static td_status read_entries(const cJSON *map, const char *what, td_index *out, td_error *err)
{
    const cJSON *item;

    cJSON_ArrayForEach(item, map)
    {
        if (!cJSON_IsString(item) || !plain_file_name(item->valuestring)) {
            char shown[160];

            return td_fail(err, TD_INVALID,
                           "%s: weight_map: %.128s: expected the name of a file in this folder, "
                           "found %s",
                           what, item->string, td_json_show(item, shown, sizeof shown));
        }
        out->entry[out->n_entries].tensor = item->string;
        out->entry[out->n_entries].file_name = item->valuestring;
        out->file[out->n_entries] = item->valuestring;
        out->n_entries++;
    }
    if (out->n_entries == 0)
        return td_fail(err, TD_INVALID, "%s: weight_map is empty", what);
    return TD_OK;
}

/* Sort, refuse twins, and turn file names into places. */
static td_status arrange(const char *what, td_index *out, td_error *err)
{
    size_t n_files = 0;

    qsort(out->entry, out->n_entries, sizeof *out->entry, by_tensor);
    for (size_t i = 1; i < out->n_entries; i++)
        if (by_tensor(&out->entry[i - 1], &out->entry[i]) == 0)
            return td_fail(err, TD_INVALID, "%s: weight_map: %.128s appears twice", what,
                           out->entry[i].tensor);
    qsort(out->file, out->n_entries, sizeof *out->file, by_string);
    for (size_t i = 0; i < out->n_entries; i++)
        if (n_files == 0 || strcmp(out->file[n_files - 1], out->file[i]) != 0)
            out->file[n_files++] = out->file[i];
    out->n_files = n_files;
    for (size_t i = 0; i < out->n_entries; i++) {
        const char **f =
            bsearch(&out->entry[i].file_name, out->file, n_files, sizeof *out->file, by_string);

        td_assert(f != NULL);
        out->entry[i].file = (size_t)(f - out->file);
    }
    return TD_OK;
}

td_status td_index_parse(const char *text, size_t len, const char *what, td_index *out,
                         td_error *err)
{
    const cJSON *map = NULL, *metadata = NULL, *total = NULL;
    size_t n;
    td_status st = td_json_parse(text, len, MAX_DEPTH, what, &out->root, err);

    if (st == TD_OK)
        st = td_json_key(out->root, "weight_map", what, &map, err);
    if (st == TD_OK)
        st = td_json_key(out->root, "metadata", what, &metadata, err);
    if (st == TD_OK)
        st = td_json_key(metadata, "total_size", what, &total, err);
    if (st != TD_OK)
        return st;
    if (!cJSON_IsObject(map))
        return td_fail(err, TD_INVALID,
                       "%s: weight_map: expected an object of tensor names and file names", what);
    if (cJSON_IsNumber(total) && total->valuedouble > 0)
        out->total_size = total->valuedouble;
    n = (size_t)cJSON_GetArraySize(map);
    out->entry = calloc(n + 1, sizeof *out->entry);
    out->file = calloc(n + 1, sizeof *out->file);
    if (out->entry == NULL || out->file == NULL)
        return td_fail(err, TD_NOMEM, "%s: no memory for %zu tensors", what, n);
    st = read_entries(map, what, out, err);
    return st == TD_OK ? arrange(what, out, err) : st;
}

static td_status check_folder(const char *dir, td_error *err)
{
    struct stat s;

    if (strlen(dir) > 4096)
        return td_fail(err, TD_INVALID, "model folder: its name is over 4096 bytes");
    if (stat(dir, &s) != 0)
        return td_fail(err, errno == ENOENT || errno == ENOTDIR ? TD_NOTFOUND : TD_IO,
                       "%s: cannot open the model folder: %s", td_path_tail(dir), strerror(errno));
    if (!S_ISDIR(s.st_mode))
        return td_fail(err, TD_INVALID,
                       "%s: is a file, expected a folder with config.json and safetensors files",
                       td_path_tail(dir));
    return TD_OK;
}

/* Whether the folder holds any .safetensors at all, to tell a lost index from a lost model. */
static bool has_tensor_files(const char *dir)
{
    const char *suffix = ".safetensors";
    struct dirent *e;
    bool found = false;
    DIR *d = opendir(dir);

    if (d == NULL)
        return false;
    while (!found && (e = readdir(d)) != NULL) {
        size_t n = strlen(e->d_name);

        found = n > strlen(suffix) && strcmp(e->d_name + n - strlen(suffix), suffix) == 0;
    }
    closedir(d);
    return found;
}

static td_status use_single_file(const char *dir, td_index *out, td_error *err)
{
    char path[PATH_CAP];
    struct stat s;

    snprintf(path, sizeof path, "%s/" SINGLE_FILE, dir);
    if (stat(path, &s) != 0) {
        int e = errno;

        if (e != ENOENT)
            return td_fail(err, TD_IO, "%s: cannot open: %s", td_path_tail(path), strerror(e));
        return td_fail(err, TD_NOTFOUND,
                       has_tensor_files(dir) ? "%s: has safetensors files but no " INDEX_FILE
                                               ", which says what is in them: " AGAIN
                                             : "%s: has neither " INDEX_FILE " nor " SINGLE_FILE
                                               ": " AGAIN,
                       td_path_tail(dir));
    }
    out->file = calloc(1, sizeof *out->file);
    if (out->file == NULL)
        return td_fail(err, TD_NOMEM, "%s: no memory", td_path_tail(path));
    out->file[0] = SINGLE_FILE;
    out->n_files = 1;
    return TD_OK;
}

static td_status check_files(const char *dir, const td_index *index, td_error *err)
{
    const char *first = NULL;
    char path[PATH_CAP];
    size_t n_missing = 0;

    for (size_t i = 0; i < index->n_files; i++) {
        struct stat s;

        snprintf(path, sizeof path, "%s/%s", dir, index->file[i]);
        if (stat(path, &s) == 0)
            continue;
        if (errno != ENOENT)
            return td_fail(err, TD_IO, "%s: cannot open: %s", td_path_tail(path), strerror(errno));
        if (n_missing++ == 0)
            first = index->file[i];
    }
    if (n_missing > 0)
        return td_fail(err, TD_NOTFOUND,
                       "%s: %.128s is named by " INDEX_FILE " but is not there (%zu of %zu files "
                       "missing): " AGAIN,
                       td_path_tail(dir), first, n_missing, index->n_files);
    return TD_OK;
}

td_status td_index_read(const char *dir, td_index *out, td_error *err)
{
    char path[PATH_CAP];
    td_buf text = {0};
    td_status st = check_folder(dir, err);

    if (st != TD_OK)
        return st;
    snprintf(path, sizeof path, "%s/" INDEX_FILE, dir);
    st = td_file_read(path, MAX_INDEX_BYTES, &text, err);
    if (st == TD_NOTFOUND)
        st = use_single_file(dir, out, err);
    else if (st == TD_OK)
        st = td_index_parse(text.len > 0 ? text.ptr : "", text.len, td_path_tail(path), out, err);
    td_buf_free(&text);
    return st == TD_OK && out->n_entries > 0 ? check_files(dir, out, err) : st;
}

const td_index_entry *td_index_find(const td_index *index, const char *tensor)
{
    const td_index_entry key = {.tensor = tensor};

    if (index->n_entries == 0)
        return NULL;
    return bsearch(&key, index->entry, index->n_entries, sizeof *index->entry, by_tensor);
}

void td_index_free(td_index *index)
{
    free(index->file);
    free(index->entry);
    cJSON_Delete(index->root);
    memset(index, 0, sizeof *index);
}
