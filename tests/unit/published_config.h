/* published_config: the texts of gpt-oss-20b's and -120b's config.json. */
#ifndef TANDEM_TESTS_UNIT_PUBLISHED_CONFIG_H
#define TANDEM_TESTS_UNIT_PUBLISHED_CONFIG_H

#include "common/model_config.h"

/* In Hugging Face's layout, where the two differ in layers and experts only; free() it. */
char *published_config(int n_layers, int n_experts);

extern const char published_generation[]; /* generation_config.json of both */
extern const char original_120b[];        /* config.json of the 120b in OpenAI's layout */

/* td_model_config_parse() of texts in a folder "m"; gen may be NULL. */
td_status parse_config(const char *text, const char *gen, td_model_config *c, td_error *err);

#endif
