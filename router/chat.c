/* A chat's text lives in a chain of blocks that is freed as a whole; its arrays are plain growing
 * arrays, so an index is the stable name of a message. */
#include "router/chat.h"

#include <stdlib.h>
#include <string.h>

#define BLOCK_BYTES 8192 /* most conversations fit a few; a longer text gets a block of its own */

typedef struct chat_block {
    struct chat_block *next;
    size_t used, cap;
    char bytes[];
} chat_block;

void chat_init(chat *c)
{
    *c = (chat){
        .tool_choice = CHAT_TOOL_AUTO,
        .effort = CHAT_EFFORT_MEDIUM,
        .format = CHAT_FORMAT_TEXT,
        .identity = TD_SLICE(CHAT_IDENTITY),
        .cutoff = TD_SLICE(CHAT_CUTOFF),
        .channels = TD_SLICE(CHAT_CHANNELS),
    };
}

void chat_free(chat *c)
{
    if (c == NULL)
        return;
    for (size_t i = 0; i < c->n_messages; i++)
        free(c->messages[i].calls);
    free(c->messages);
    for (size_t i = 0; i < c->n_tools; i++)
        cJSON_Delete(c->tools[i].parameters);
    free(c->tools);
    cJSON_Delete(c->scratch_tool.parameters);
    cJSON_Delete(c->format_schema);
    while (c->blocks != NULL) {
        chat_block *b = c->blocks;

        c->blocks = b->next;
        free(b);
    }
    chat_init(c);
}

/* n bytes and a NUL, from the newest block or a new one; NULL and c->oom without memory. */
static char *chat_alloc(chat *c, size_t n)
{
    chat_block *b = c->blocks;
    size_t cap = n < BLOCK_BYTES ? BLOCK_BYTES : n + 1;
    char *p;

    if (b == NULL || b->cap - b->used < n + 1) {
        chat_block *fresh = n < SIZE_MAX / 2 ? malloc(sizeof *fresh + cap) : NULL;

        if (fresh == NULL) {
            c->oom = true;
            return NULL;
        }
        fresh->used = 0;
        fresh->cap = cap;
        if (b != NULL && n >= BLOCK_BYTES) { /* full at once: keep filling the one before it */
            fresh->next = b->next;
            b->next = fresh;
        } else {
            fresh->next = b;
            c->blocks = fresh;
        }
        b = fresh;
    }
    p = b->bytes + b->used;
    b->used += n + 1;
    return p;
}

td_slice chat_text(chat *c, const void *bytes, size_t n)
{
    char *p = chat_alloc(c, n);

    if (p == NULL)
        return TD_SLICE("");
    if (n > 0)
        memcpy(p, bytes, n);
    p[n] = '\0';
    return (td_slice){p, n};
}

td_slice chat_str(chat *c, const char *nul_terminated)
{
    return chat_text(c, nul_terminated, strlen(nul_terminated));
}

/* Room for one more element of `size` bytes. False and c->oom without memory. */
static bool chat_grow(chat *c, void *array, size_t n, size_t *cap, size_t size)
{
    size_t more = *cap ? 2 * *cap : 8;
    void *old, *p;

    if (n < *cap)
        return true;
    memcpy(&old, array, sizeof old); /* array points at a pointer of any type */
    p = more < SIZE_MAX / 2 / size ? realloc(old, more * size) : NULL;
    if (p == NULL) {
        c->oom = true;
        return false;
    }
    memcpy(array, &p, sizeof p);
    *cap = more;
    return true;
}

chat_message *chat_add_message(chat *c, chat_role role)
{
    chat_message *m = &c->scratch_message;

    if (chat_grow(c, &c->messages, c->n_messages, &c->cap_messages, sizeof *m))
        m = &c->messages[c->n_messages++];
    *m = (chat_message){.role = role};
    return m;
}

chat_tool_call *chat_add_tool_call(chat *c, chat_message *m)
{
    chat_tool_call *call = &c->scratch_call;

    if (m != &c->scratch_message &&
        chat_grow(c, &m->calls, m->n_calls, &m->cap_calls, sizeof *call))
        call = &m->calls[m->n_calls++];
    *call = (chat_tool_call){0};
    return call;
}

chat_tool *chat_add_tool(chat *c)
{
    chat_tool *t = &c->scratch_tool;

    if (chat_grow(c, &c->tools, c->n_tools, &c->cap_tools, sizeof *t))
        t = &c->tools[c->n_tools++];
    else
        cJSON_Delete(t->parameters);
    *t = (chat_tool){0};
    return t;
}

void chat_set_parameters(chat *c, chat_tool *tool, cJSON *schema)
{
    (void)c; /* the tool is the chat's, so its schema goes with the chat */
    cJSON_Delete(tool->parameters);
    tool->parameters = schema;
}

void chat_set_format_schema(chat *c, cJSON *schema)
{
    cJSON_Delete(c->format_schema);
    c->format_schema = schema;
}

size_t chat_visible_tools(const chat *c)
{
    return c->tool_choice == CHAT_TOOL_NONE ? 0 : c->n_tools;
}

td_slice chat_bare_name(td_slice name)
{
    static const char prefix[] = "functions.";
    const size_t n = sizeof prefix - 1;

    if (name.len > n && memcmp(name.ptr, prefix, n) == 0)
        return (td_slice){name.ptr + n, name.len - n};
    return name;
}

int chat_shown(td_slice text)
{
    size_t n = 0;

    while (n < text.len && text.ptr[n] != '\0') {
        int len = td_utf8_next((const unsigned char *)text.ptr + n, text.len - n);

        if (len < 1 || n + (size_t)len > 80)
            break;
        n += (size_t)len;
    }
    return (int)n;
}

/* The node that follows in document order, or NULL at the end of root's tree. cJSON has no parent
 * links, so the way up is kept in a stack as deep as the parser allows. */
typedef struct walk {
    cJSON *up[CJSON_NESTING_LIMIT + 1];
    size_t depth;
} walk;

static cJSON *walk_next(walk *w, cJSON *node)
{
    if (node->child != NULL) {
        if (w->depth > CJSON_NESTING_LIMIT)
            return NULL;
        w->up[w->depth++] = node;
        return node->child;
    }
    while (w->depth > 0 && node->next == NULL)
        node = w->up[--w->depth];
    return w->depth > 0 ? node->next : NULL;
}

void chat_keep_numbers(cJSON *root, const char *json, size_t n)
{
    walk w = {.depth = 0};
    cJSON *node = root;
    size_t i = 0;

    while (node != NULL && i < n) {
        size_t from = i;

        if (json[i] == '"') { /* a number inside a string is not one */
            for (i++; i < n && json[i] != '"'; i++)
                i += json[i] == '\\';
            i++;
            continue;
        }
        if (json[i] != '-' && (json[i] < '0' || json[i] > '9')) {
            i++;
            continue;
        }
        while (i < n && json[i] != '\0' && strchr("+-.0123456789eE", json[i]) != NULL)
            i++;
        while (node != NULL && !cJSON_IsNumber(node))
            node = walk_next(&w, node);
        if (node == NULL)
            return;
        if (node->valuestring == NULL && (node->valuestring = cJSON_malloc(i - from + 1)) != NULL) {
            memcpy(node->valuestring, json + from, i - from);
            node->valuestring[i - from] = '\0';
        }
        node = walk_next(&w, node);
    }
}
