/* kernel_times: a library to preload, by kernel_times.py: writes a line for each kernel that the
 * program runs on a GPU, to the file TANDEM_KERNEL_TIMES: begin and end (ns), device, name.
 *
 * CUPTI writes the times down as kernels come and go, those within graphs too, and nothing waits
 * for it: a prefill or a decode step takes as long with it as without. */
#include <cupti.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { BUFFER_BYTES = 8 << 20 };

static FILE *out;

static void CUPTIAPI give_buffer(uint8_t **buffer, size_t *bytes, size_t *most_records)
{
    *bytes = BUFFER_BYTES;
    *buffer = aligned_alloc(8, BUFFER_BYTES); /* NULL: CUPTI drops records, and says how many */
    *most_records = 0;                        /* as many as there is room for */
}

/* On a thread of CUPTI's, one buffer at a time. */
static void CUPTIAPI take_buffer(CUcontext context, uint32_t stream, uint8_t *buffer, size_t bytes,
                                 size_t valid)
{
    CUpti_Activity *r = NULL;
    size_t dropped = 0;

    (void)bytes;
    while (cuptiActivityGetNextRecord(buffer, valid, &r) == CUPTI_SUCCESS) {
        const CUpti_ActivityKernel9 *k = (const CUpti_ActivityKernel9 *)r;

        if (r->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL)
            fprintf(out, "%" PRIu64 ",%" PRIu64 ",%" PRIu32 ",%s\n", k->start, k->end, k->deviceId,
                    k->name != NULL ? k->name : "?");
    }
    if (cuptiActivityGetNumDroppedRecords(context, stream, &dropped) == CUPTI_SUCCESS &&
        dropped > 0)
        fprintf(stderr, "kernel_times: %zu kernels are missing\n", dropped);
    free(buffer);
}

static void finish(void)
{
    if (cuptiActivityFlushAll(1) != CUPTI_SUCCESS || fclose(out) != 0)
        fprintf(stderr, "kernel_times: the last kernels are missing\n");
}

__attribute__((constructor)) static void start(void)
{
    const char *path = getenv("TANDEM_KERNEL_TIMES");
    const char *what = NULL;
    CUptiResult r;

    if (path == NULL)
        return;
    if ((out = fopen(path, "w")) == NULL) {
        perror(path);
        exit(2);
    }
    if ((r = cuptiActivityRegisterCallbacks(give_buffer, take_buffer)) != CUPTI_SUCCESS ||
        (r = cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL)) != CUPTI_SUCCESS) {
        cuptiGetResultString(r, &what);
        fprintf(stderr, "kernel_times: CUPTI does not start: %s\n", what != NULL ? what : "?");
        exit(2);
    }
    atexit(finish);
}
