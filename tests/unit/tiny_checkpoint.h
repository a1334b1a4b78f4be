/* tiny_checkpoint: a valid little model folder to load, and to damage.
 *
 * tiny_make() fills a list of tensors and the config texts; a test edits those, calls tiny_write(),
 * and may then edit the files themselves. Failures of the helper end the test. Links with any test
 * that needs a checkpoint on disk. */
#ifndef TANDEM_TESTS_UNIT_TINY_CHECKPOINT_H
#define TANDEM_TESTS_UNIT_TINY_CHECKPOINT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/checkpoint.h"

typedef struct tiny_tensor {
    char name[128];
    const char *dtype;
    int n_dims;
    int64_t dim[4];
    unsigned char *data; /* the model's, bytes of them */
    size_t bytes;
    int shard;
} tiny_tensor;

typedef struct tiny_model {
    char dir[64]; /* fresh, under TMPDIR or /tmp */
    td_model_config cfg;
    td_checkpoint *weights; /* what the tensors were copied from */
    tiny_tensor *tensor;    /* in the order in which the headers will name them */
    size_t n_tensors;
    int n_shards;     /* 1: model.safetensors and no index */
    char *config;     /* text of config.json */
    char *generation; /* text of generation_config.json; NULL: none */
    bool metadata;    /* headers have a __metadata__ */
    size_t pad;       /* spaces after each header, 0 to 7: moves every tensor's address */
} tiny_model;

/* The shapes: 3 layers, hidden 64, 4 heads over 2 of 16, 4 experts of 32, vocabulary 97. */
void tiny_make(tiny_model *m, bool original_layout, int n_shards);
void tiny_write(tiny_model *m);
void tiny_free(tiny_model *m); /* the folder too */

tiny_tensor *tiny_find(tiny_model *m, const char *name);
void tiny_remove(tiny_model *m, const char *name);
tiny_tensor *tiny_add(tiny_model *m, const char *name, const char *dtype, int n_dims,
                      const int64_t *dim, size_t bytes); /* zeros */

/* Replace from, which must be there exactly once, in *text. */
void tiny_replace(char **text, const char *from, const char *to);

/* "model-00000-of-00002.safetensors", counted as published: from 0, the last index after "of". */
void tiny_file_name(const tiny_model *m, int shard, char *buf, size_t cap);
void tiny_path(const tiny_model *m, const char *file, char *buf, size_t cap);

/* Edits of written files. tiny_edit_header() also mends the header length. */
void tiny_put(const tiny_model *m, const char *file, const void *bytes, size_t n);
char *tiny_get(const tiny_model *m, const char *file, size_t *n); /* free() it; NUL after n */
void tiny_edit_header(const tiny_model *m, const char *file, const char *from, const char *to);
void tiny_edit_text(const tiny_model *m, const char *file, const char *from, const char *to);

#endif
