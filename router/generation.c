#include "router/generation.h"

void generation_init(generation *g)
{
    *g = (generation){.temperature = 1, .top_p = 1};
    chat_init(&g->chat);
}

void generation_free(generation *g)
{
    if (g != NULL)
        chat_free(&g->chat);
}
