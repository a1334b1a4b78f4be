/* What people read of a table: --help, --help=markdown and --print-config. */
#include "common/config_internal.h"

#include <ctype.h>
#include <string.h>

enum { HELP_INDENT = 32, HELP_WIDTH = 100 };

void cfg_env_name(const char *option, td_buf *b)
{
    td_buf_str(b, "TANDEM_");
    for (; *option != '\0'; option++)
        td_buf_byte(b, *option == '-' ? '_' : (char)toupper((unsigned char)*option));
}

/* Append text broken at blanks, each line indented; the first line starts at column *at. */
static void wrap(td_buf *b, const char *text, size_t at)
{
    while (*text != '\0') {
        size_t len = strcspn(text, " ");

        if (at + len > HELP_WIDTH) {
            td_buf_fmt(b, "\n%*s", HELP_INDENT, "");
            at = HELP_INDENT;
        }
        td_buf_add(b, text, len);
        at += len;
        text += len;
        if (*text == ' ') {
            td_buf_byte(b, ' ');
            at++;
            text++;
        }
    }
    while (b->len > 0 && b->ptr[b->len - 1] == ' ')
        b->ptr[--b->len] = '\0';
    td_buf_byte(b, '\n');
}

static void help_entry(td_buf *b, const char *head, const char *help, const char *facts)
{
    size_t n = strlen(head);

    td_buf_fmt(b, "  %s", head);
    if (n + 4 > HELP_INDENT)
        td_buf_fmt(b, "\n%*s", HELP_INDENT, "");
    else
        td_buf_fmt(b, "%*s", (int)(HELP_INDENT - n - 2), "");
    wrap(b, help, HELP_INDENT);
    if (facts != NULL) {
        td_buf_fmt(b, "%*s", HELP_INDENT, "");
        wrap(b, facts, HELP_INDENT);
    }
}

/* "A whole number from 1 to 1024; default 128; TANDEM_MAX_BATCH." */
static void facts_of(const td_option *o, td_buf *b)
{
    size_t from = b->len;

    cfg_value_describe(o, b);
    if (!b->oom)
        b->ptr[from] = (char)toupper((unsigned char)b->ptr[from]);
    if (o->def == NULL)
        td_buf_str(b, "; must be given; ");
    else if (*o->def == '\0')
        td_buf_str(b, "; default empty; ");
    else
        td_buf_fmt(b, "; default %s; ", o->def);
    cfg_env_name(o->name, b);
    td_buf_byte(b, '.');
}

void cfg_help(const td_option *table, size_t n, const char *program, const char *purpose, td_buf *b)
{
    td_buf head = {0}, facts = {0};

    td_buf_fmt(b,
               "%s: %s\n\nUsage: %s [--option VALUE | --option=VALUE]...\n\n"
               "A flag wins over its environment variable, that over the config file, that over "
               "the default.\n\n",
               program, purpose, program);
    for (size_t i = 0; i < n && !head.oom && !facts.oom; i++) {
        td_buf_clear(&head);
        td_buf_clear(&facts);
        td_buf_fmt(&head, "--%s", table[i].name);
        cfg_value_usage(&table[i], &head);
        facts_of(&table[i], &facts);
        if (!head.oom && !facts.oom)
            help_entry(b, head.ptr, table[i].help, facts.ptr);
    }
    td_buf_byte(b, '\n');
    help_entry(b, "--config FILE",
               "Read options from a JSON file: {\"option-name\": value, ...}; TANDEM_CONFIG.",
               NULL);
    help_entry(b, "--print-config", "Show each value in force and where it came from, and exit.",
               NULL);
    help_entry(b, "--help[=markdown]", "Show this, or the reference page made from it, and exit.",
               NULL);
    help_entry(b, "--version", "Show the version and exit.", NULL);
    b->oom |= head.oom || facts.oom;
    td_buf_free(&head);
    td_buf_free(&facts);
}

/* A table cell: a pipe would end it. */
static void cell(td_buf *b, const char *text)
{
    for (; *text != '\0'; text++) {
        if (*text == '|')
            td_buf_byte(b, '\\');
        td_buf_byte(b, *text);
    }
}

void td_config_markdown(const td_option *table, size_t n, const char *program, const char *purpose,
                        td_buf *b)
{
    td_buf allowed = {0};

    td_buf_fmt(b,
               "## %s\n\n%s\n\n| Option | Environment | Value | Default | Meaning |\n"
               "| --- | --- | --- | --- | --- |\n",
               program, purpose);
    for (size_t i = 0; i < n && !allowed.oom; i++) {
        const td_option *o = &table[i];

        td_buf_fmt(b, "| `--%s` | `", o->name);
        cfg_env_name(o->name, b);
        td_buf_str(b, "` | ");
        td_buf_clear(&allowed);
        cfg_value_describe(o, &allowed);
        if (!allowed.oom)
            cell(b, allowed.ptr);
        if (o->def == NULL)
            td_buf_str(b, " | must be given | ");
        else if (*o->def == '\0')
            td_buf_str(b, " | empty | ");
        else
            td_buf_fmt(b, " | `%s` | ", o->def);
        cell(b, o->help);
        td_buf_str(b, " |\n");
    }
    b->oom |= allowed.oom;
    td_buf_free(&allowed);
}

void cfg_print(const td_option *table, size_t n, const cfg_text *texts, const char *file, td_buf *b)
{
    size_t widest = 0;

    for (size_t i = 0; i < n; i++)
        widest = strlen(table[i].name) > widest ? strlen(table[i].name) : widest;
    for (size_t i = 0; i < n; i++) {
        td_buf_fmt(b, "%-*s = %-24s # ", (int)widest, table[i].name,
                   *texts[i].text ? texts[i].text : "\"\"");
        switch (texts[i].source) {
        case CFG_FLAG: td_buf_fmt(b, "flag --%s", table[i].name); break;
        case CFG_ENV:
            td_buf_str(b, "environment ");
            cfg_env_name(table[i].name, b);
            break;
        case CFG_FILE: td_buf_fmt(b, "file %s", file); break;
        case CFG_DEFAULT:
        case CFG_UNSET: td_buf_str(b, "default"); break;
        }
        td_buf_byte(b, '\n');
    }
}
