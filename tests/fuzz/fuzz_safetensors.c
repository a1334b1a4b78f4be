/* Any bytes as a safetensors file: refused with a reason, or tensors that tile the data. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static volatile unsigned char sink;

static void check(const td_safetensors *st, const uint8_t *data, size_t size)
{
    const uint64_t n = td_safetensors_count(st);
    uint64_t sum = 0, header = 0;

    for (int i = 0; i < 8; i++)
        header |= (uint64_t)data[i] << (8 * i);
    td_assert(td_safetensors_file_bytes(st) == size);
    for (size_t i = 0; i < n; i++) {
        const td_st_tensor *t = td_safetensors_at(st, i);
        const unsigned char *p = t->data;

        td_assert(t->end >= t->begin);
        td_assert(td_safetensors_find(st, t->name) == t);
        td_assert(i == 0 || strcmp(td_safetensors_at(st, i - 1)->name, t->name) < 0);
        sum += t->end - t->begin;
        if (t->end > t->begin) /* the sanitizer says if either is not ours */
            sink = (unsigned char)(p[0] + p[t->end - t->begin - 1]);
    }
    /* Inside the data, no overlap, no gap: then the sizes add up to it, and only then. */
    td_assert(sum == size - 8 - header);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    td_safetensors *st = NULL;
    td_error err = {0};
    td_status s = td_safetensors_parse(data, size, "fuzz", &st, &err);

    if (s == TD_OK) {
        check(st, data, size);
        td_safetensors_close(st);
    } else {
        td_assert(st == NULL && err.code == s && strncmp(err.text, "fuzz: ", 6) == 0);
    }
    return 0;
}
