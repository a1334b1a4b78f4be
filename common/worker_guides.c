#include "common/worker_guides.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/model_config.h"

struct td_guides_loading {
    char *folder;
    pthread_t thread;
    td_guides *guides;
    td_error err;
    td_usec us;
};

static void *load_main(void *arg)
{
    td_guides_loading *l = arg;
    td_usec t0 = td_now_us();
    td_model_config cfg;

    if (td_model_config_read(l->folder, &cfg, &l->err) == TD_OK &&
        td_guides_open(l->folder, cfg.vocab, &l->guides, &l->err) != TD_OK)
        l->guides = NULL;
    l->us = td_now_us() - t0;
    return NULL;
}

td_status td_guides_load(const char *folder, td_guides_loading **out, td_error *err)
{
    td_guides_loading *l = calloc(1, sizeof *l);

    if (l != NULL)
        l->folder = strdup(folder);
    if (l == NULL || l->folder == NULL || pthread_create(&l->thread, NULL, load_main, l) != 0) {
        if (l != NULL)
            free(l->folder);
        free(l);
        return td_fail(err, TD_NOMEM, "no memory to read the vocabulary with");
    }
    *out = l;
    return TD_OK;
}

td_guides *td_guides_loaded(td_guides_loading *l)
{
    td_guides *guides;

    if (l == NULL)
        return NULL;
    pthread_join(l->thread, NULL);
    guides = l->guides;
    if (guides != NULL)
        td_info("guides_ready", "load_ms=%lld", (long long)l->us / 1000);
    else
        td_warn("no_guides", "error=\"%s\"", l->err.text);
    free(l->folder);
    free(l);
    return guides;
}
