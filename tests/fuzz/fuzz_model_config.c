/* Any bytes as config.json, and what follows a line of "%%" as generation_config.json; the same
 * bytes as an index. */
#define _GNU_SOURCE /* memmem */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/checkpoint_index.h"
#include "common/model_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char *copy(const uint8_t *data, size_t n)
{
    char *s = malloc(n + 1); /* exact, so that reading past the NUL is seen */

    td_assert(s != NULL);
    memcpy(s, data, n);
    s[n] = '\0';
    return s;
}

static void as_config(const uint8_t *data, size_t size)
{
    const uint8_t *cut = memmem(data, size, "\n%%\n", 4);
    const size_t n = cut == NULL ? size : (size_t)(cut - data);
    const size_t n_gen = cut == NULL ? 0 : size - n - 4;
    char *text = copy(data, n);
    char *gen = cut == NULL ? NULL : copy(cut + 4, n_gen);
    td_model_config c;
    td_error err = {0};
    td_status st = td_model_config_parse(text, n, gen, n_gen, "fuzz", &c, &err);

    if (st == TD_OK) {
        td_assert(td_model_config_check(&c, "fuzz", &err) == TD_OK);
        td_assert(td_model_config_params(&c) > 0);
        (void)td_model_config_hash(&c);
    } else {
        td_assert(err.code == st && strncmp(err.text, "fuzz/", 5) == 0);
    }
    free(text);
    free(gen);
}

static void as_index(const uint8_t *data, size_t size)
{
    td_index index = {0};
    td_error err = {0};
    char *text = copy(data, size);

    if (td_index_parse(text, size, "fuzz", &index, &err) == TD_OK) {
        for (size_t i = 0; i < index.n_entries; i++) {
            const td_index_entry *e = &index.entry[i];

            td_assert(td_index_find(&index, e->tensor) == e);
            td_assert(strcmp(index.file[e->file], e->file_name) == 0);
            td_assert(strchr(e->file_name, '/') == NULL);
        }
    }
    td_index_free(&index);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    as_config(data, size);
    as_index(data, size);
    return 0;
}
