/* checkpoint_index: which files a model folder consists of, and which of them holds a tensor.
 *
 * Either model.safetensors.index.json says so, or the folder is the single file model.safetensors.
 * Where both are there the index is believed: a folder that was resharded in place keeps the old
 * single file more often than an old index. Only names are looked at here, no tensor file is
 * opened, so that a missing shard is known before the first byte of the others is. */
#ifndef TANDEM_COMMON_CHECKPOINT_INDEX_H
#define TANDEM_COMMON_CHECKPOINT_INDEX_H

#include <stddef.h>
#include <stdint.h>

#include <cjson/cJSON.h>

#include "common/status.h"

typedef struct td_index_entry {
    const char *tensor;
    const char *file_name;
    size_t file; /* place of file_name in td_index.file */
} td_index_entry;

/* Zero-initialise; td_index_free() accepts a half-filled one. */
typedef struct td_index {
    const char **file; /* sorted, each once; names in the folder, without a slash */
    size_t n_files;
    td_index_entry *entry; /* sorted by tensor; none if there is no index */
    size_t n_entries;
    double total_size; /* the index's own sum of tensor bytes, 0 if it has none */
    cJSON *root;       /* owns the names */
} td_index;

/* Read dir's index and see that every file that it names is there. TD_NOTFOUND names what is
 * missing. */
TD_MUST_CHECK td_status td_index_read(const char *dir, td_index *out, td_error *err);

/* The same from an index's text (text[len] is NUL), without looking for the files. */
TD_MUST_CHECK td_status td_index_parse(const char *text, size_t len, const char *what,
                                       td_index *out, td_error *err);

/* NULL if the index does not have it. */
const td_index_entry *td_index_find(const td_index *index, const char *tensor);

void td_index_free(td_index *index);

#endif
