/* chat: one conversation as data, between the API that a client speaks and the tokens that a model
 * reads. openai.c fills it and checks each field by itself; harmony_render.c checks what only
 * holds across messages, and turns it into a prompt.
 *
 * All text and JSON in a chat belongs to the chat and dies with chat_free(). Text is td_slice: may
 * hold any bytes (NUL too), is valid UTF-8 (the filler has checked), and has a NUL after its end.
 * A slice whose ptr is NULL is "absent", which is not the same as empty.
 *
 * Running out of memory is sticky, as in td_buf: `oom` is set, the builders hand out a scratch
 * object that is thrown away, and the owner looks at `oom` once, at the end.
 *
 * One thread at a time. */
#ifndef TANDEM_ROUTER_CHAT_H
#define TANDEM_ROUTER_CHAT_H

#include <stdbool.h>
#include <stddef.h>

#include <cjson/cJSON.h>

#include "common/buf.h"
#include "common/status.h"

typedef enum chat_role {
    CHAT_SYSTEM,
    CHAT_DEVELOPER,
    CHAT_USER,
    CHAT_ASSISTANT,
    CHAT_TOOL,
} chat_role;

typedef enum chat_tool_choice {
    CHAT_TOOL_AUTO,
    CHAT_TOOL_NONE,     /* the tools are left out of the prompt */
    CHAT_TOOL_REQUIRED, /* some declared tool must be called */
    CHAT_TOOL_NAMED,    /* chat.tool_choice_name must be called */
} chat_tool_choice;

typedef enum chat_effort {
    CHAT_EFFORT_LOW,
    CHAT_EFFORT_MEDIUM,
    CHAT_EFFORT_HIGH,
} chat_effort;

typedef enum chat_format {
    CHAT_FORMAT_TEXT,
    CHAT_FORMAT_JSON_OBJECT,
    CHAT_FORMAT_JSON_SCHEMA,
} chat_format;

/* Tools that the model was trained to use without a declaration; bits of chat.builtin_tools. */
typedef enum chat_builtin {
    CHAT_BUILTIN_BROWSER = 1,
    CHAT_BUILTIN_PYTHON = 2,
} chat_builtin;

/* A call that the assistant made earlier. */
typedef struct chat_tool_call {
    td_slice id;        /* "call_...", as the client sent it */
    td_slice name;      /* without or with a leading "functions." */
    td_slice arguments; /* the JSON text, byte for byte; it need not be valid JSON */
} chat_tool_call;

/* Fields that a role has no use for stay absent. The text parts of a content array are joined as
 * they are, without anything between. */
typedef struct chat_message {
    chat_role role;
    td_slice content;
    td_slice reasoning;    /* assistant only: "reasoning" or "reasoning_content" */
    bool preamble;         /* assistant only: no final answer, though there is no call either */
    td_slice name;         /* never rendered for user messages */
    td_slice tool_call_id; /* tool only */
    chat_tool_call *calls; /* assistant only, in call order */
    size_t n_calls, cap_calls;
} chat_message;

typedef struct chat_tool {
    td_slice name;
    td_slice description; /* absent or empty: no comment line */
    cJSON *parameters;    /* JSON schema, keys in the client's order; NULL: takes no arguments */
    bool strict;          /* of use to a grammar only; the prompt does not change */
    td_slice param;       /* what the client calls the schema, for errors */
} chat_tool;

typedef struct chat {
    chat_message *messages;
    size_t n_messages, cap_messages;
    chat_tool *tools;
    size_t n_tools, cap_tools;

    chat_tool_choice tool_choice;
    td_slice tool_choice_name; /* CHAT_TOOL_NAMED only */
    chat_effort effort;        /* medium unless set */

    chat_format format;
    td_slice format_name, format_description; /* CHAT_FORMAT_JSON_SCHEMA only */
    cJSON *format_schema;                     /* likewise; NULL: any JSON object */
    bool format_loose;                        /* likewise: only shown, not held to */
    td_slice format_param;                    /* what the client calls the schema, for errors */

    td_slice date;     /* "2025-06-28"; absent or empty: no date line */
    td_slice identity; /* first line of the system message; set by chat_init() */
    td_slice cutoff;   /* knowledge cutoff, "2024-06"; set by chat_init() */
    td_slice channels; /* "analysis, commentary, final", set by chat_init(); empty: no such line */

    /* Shown in the system message. Nothing here runs these tools: a service that does sets them. */
    unsigned builtin_tools;

    /* The last message is an unfinished final answer: the model goes on where it ends. */
    bool continue_final;

    bool oom;
    struct chat_block *blocks; /* memory of all text */
    chat_message scratch_message;
    chat_tool scratch_tool;
    chat_tool_call scratch_call;
} chat;

#define CHAT_IDENTITY "You are ChatGPT, a large language model trained by OpenAI."
#define CHAT_CUTOFF "2024-06"
#define CHAT_CHANNELS "analysis, commentary, final"

/* An empty conversation with the defaults: auto, medium, text, no date. Takes no memory yet. */
void chat_init(chat *c);

/* Gives back everything; the chat is then as after chat_init(). NULL is fine. */
void chat_free(chat *c);

/* A copy of the bytes that lives as long as the chat, with a NUL after it. n == 0 gives a present,
 * empty text. Out of memory: an empty text, and c->oom. */
td_slice chat_text(chat *c, const void *bytes, size_t n);
td_slice chat_str(chat *c, const char *nul_terminated);

/* A new message, tool or call at the end, with all fields absent, to be filled in place. Never
 * NULL. The pointer holds until the next add of the same kind (for a call: to the same message). */
chat_message *chat_add_message(chat *c, chat_role role);
chat_tool_call *chat_add_tool_call(chat *c, chat_message *m);
chat_tool *chat_add_tool(chat *c);

/* Take over a JSON tree (freed by chat_free(); NULL is fine). Each replaces what was there. */
void chat_set_parameters(chat *c, chat_tool *tool, cJSON *schema);
void chat_set_format_schema(chat *c, cJSON *schema);

/* The tools that the prompt shows: all, or none of them under CHAT_TOOL_NONE. */
size_t chat_visible_tools(const chat *c);

/* cJSON keeps numbers as double, so 1.0 and 1 look alike, and a prompt that shows a default would
 * not match what the client wrote. This walks the source of a parsed document once and hangs each
 * number's own spelling on its node (valuestring, freed by cJSON_Delete()). Subtrees may be
 * detached or duplicated afterwards. `json` must be the text that `root` was parsed from; where the
 * two do not fit together, or memory ends, nodes simply stay without a spelling. */
void chat_keep_numbers(cJSON *root, const char *json, size_t n);

/* A function name without one leading "functions.". */
td_slice chat_bare_name(td_slice name);

/* How many bytes of a client's text to show in an error: at most 80, no half character, no NUL. */
int chat_shown(td_slice text);

#endif
