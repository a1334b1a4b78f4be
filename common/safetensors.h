/* safetensors: one file of named tensors, mapped and checked.
 *
 * The file is an 8-byte little-endian header length, a JSON header, then the data, which the
 * tensors must tile: no gap, no overlap, no byte before, between or after. Opening checks all of
 * that; nothing is copied and no tensor byte is read. The format does not align tensors, so data
 * pointers may be odd. A tensor with a zero dimension is accepted and has 0 bytes.
 *
 * The mapping follows the file: if someone truncates it while it is open, reading a lost page is
 * SIGBUS and the process dies. Replace a model folder by renaming, never by writing into it.
 * After open, everything here is const and any thread may call it. */
#ifndef TANDEM_COMMON_SAFETENSORS_H
#define TANDEM_COMMON_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

enum { TD_ST_MAX_DIMS = 8, TD_ST_MAX_HEADER = 16 << 20 };

typedef struct td_st_tensor {
    const char *name;  /* the header's, valid UTF-8 */
    const char *dtype; /* "BF16", one of the format's names */
    int32_t n_dims;
    int64_t dim[TD_ST_MAX_DIMS];
    uint64_t begin, end; /* of its bytes, counted from the start of the data */
    const void *data;    /* end - begin bytes; any alignment */
} td_st_tensor;

typedef struct td_safetensors td_safetensors;

/* Map and check a file. *out is the caller's, to td_safetensors_close(). TD_NOTFOUND, TD_IO,
 * TD_NOMEM; TD_INVALID names the file, the tensor, what was expected and what was found. */
TD_MUST_CHECK td_status td_safetensors_open(const char *path, td_safetensors **out, td_error *err);

/* The same over bytes in memory, which must outlive *out. label stands for the path. TD_INVALID,
 * TD_NOMEM.
 */
TD_MUST_CHECK td_status td_safetensors_parse(const void *bytes, size_t n_bytes, const char *label,
                                             td_safetensors **out, td_error *err);

void td_safetensors_close(td_safetensors *st); /* NULL is fine */

/* By name, NULL if there is none. By place, sorted by name, i < count. */
const td_st_tensor *td_safetensors_find(const td_safetensors *st, const char *name);
size_t td_safetensors_count(const td_safetensors *st);
const td_st_tensor *td_safetensors_at(const td_safetensors *st, size_t i);
uint64_t td_safetensors_file_bytes(const td_safetensors *st);

/* "BF16 [32, 2880]" in buf, cut to fit; returns buf. */
const char *td_st_show(const char *dtype, const int64_t *dim, int32_t n_dims, char *buf,
                       size_t cap);

#endif
