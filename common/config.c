/* Every option's text is collected first, from the weakest source to the strongest, each replacing
 * the one before; only then is it converted, so that one place reports bad values and
 * --print-config shows the text that was in force. */
#include "common/config_internal.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

#include "common/json_text.h"

#ifndef TANDEM_VERSION
#error "TANDEM_VERSION comes from the build"
#endif

enum {
    FILE_CAP = 1 << 20, /* a config file beyond this is some other file */
    MAX_DEPTH = 8,      /* it is an object of values, or of lists of them */
};

typedef struct parser {
    const td_option *table;
    size_t n;
    const char *program, *purpose;
    cfg_text *texts; /* [n] */
    char *file;      /* --config or TANDEM_CONFIG, owned; NULL if none */
    bool print;      /* --print-config was given */
} parser;

static bool take_text(parser *p, size_t i, const char *text, cfg_source source)
{
    char *copy = strdup(text);

    if (copy == NULL)
        return false;
    free(p->texts[i].text);
    p->texts[i].text = copy;
    p->texts[i].source = source;
    return true;
}

/* n: the table has no such option. */
static size_t find_option(const parser *p, const char *name, size_t len)
{
    size_t i = 0;

    while (i < p->n && (strlen(p->table[i].name) != len || memcmp(p->table[i].name, name, len)))
        i++;
    return i;
}

static td_status unknown_name(const parser *p, td_error *err, const char *where, const char *dashes,
                              const char *name, size_t len)
{
    const char *near = cfg_nearest(p->table, p->n, name, len);
    char param[64];

    snprintf(param, sizeof param, "%s%.*s", dashes, (int)(len < 60 ? len : 60), name);
    if (near != NULL)
        return td_fail_param(err, param, "%s%s: no such option; did you mean %s%s?", where, param,
                             dashes, near);
    return td_fail_param(err, param, "%s%s: no such option; --help lists all", where, param);
}

/* One argument: "--name=value", "--name" "value", "--flag" or "--no-flag". Sets *used to how many
 * arguments it took. */
static td_status take_argument(parser *p, char **argv, int n_left, int *used, td_error *err)
{
    const char *name = argv[0] + 2;
    size_t len = strcspn(name, "=");
    const char *value = name[len] == '=' ? name + len + 1 : NULL;
    size_t i = find_option(p, name, len);
    bool config = len == 6 && memcmp(name, "config", 6) == 0;
    char *copy;

    *used = 1;
    if (len == 12 && memcmp(name, "print-config", 12) == 0 && value == NULL) {
        p->print = true;
        return TD_OK;
    }
    if (i == p->n && !config) {
        size_t j = len > 3 && memcmp(name, "no-", 3) == 0 ? find_option(p, name + 3, len - 3) : i;

        if (j == p->n || p->table[j].type != TD_OPT_BOOL)
            return unknown_name(p, err, "", "--", name, len);
        if (value != NULL)
            return td_fail_param(err, argv[0], "--%.*s: takes no value", (int)len, name);
        return take_text(p, j, "false", CFG_FLAG) ? TD_OK : td_fail(err, TD_NOMEM, "no memory");
    }
    if (value == NULL && !config && p->table[i].type == TD_OPT_BOOL) {
        value = "true";
    } else if (value == NULL) {
        /* `--model --max-batch 4` forgot a value; one that does begin so is given with '='. */
        if (n_left < 2 || strncmp(argv[1], "--", 2) == 0)
            return td_fail_param(err, argv[0], "--%s: a value must follow", name);
        value = argv[1];
        *used = 2;
    }
    if (!config)
        return take_text(p, i, value, CFG_FLAG) ? TD_OK : td_fail(err, TD_NOMEM, "no memory");
    copy = strdup(value);
    if (copy == NULL)
        return td_fail(err, TD_NOMEM, "no memory");
    free(p->file);
    p->file = copy;
    return TD_OK;
}

static td_status take_arguments(parser *p, int argc, char **argv, td_error *err)
{
    for (int i = 1, used; i < argc; i += used) {
        td_status st;

        if (strncmp(argv[i], "--", 2) != 0 || argv[i][2] == '\0')
            return td_fail_param(err, argv[i],
                                 "unexpected argument \"%.100s\": options are written --name value",
                                 argv[i]);
        st = take_argument(p, argv + i, argc - i, &used, err);
        if (st != TD_OK)
            return st;
    }
    return TD_OK;
}

static td_status take_environment(parser *p, td_error *err)
{
    td_buf name = {0};

    for (size_t i = 0; i < p->n; i++) {
        const char *value;

        td_buf_clear(&name);
        cfg_env_name(p->table[i].name, &name);
        value = name.oom ? NULL : getenv(name.ptr);
        if (name.oom ||
            (value != NULL && p->texts[i].source < CFG_ENV && !take_text(p, i, value, CFG_ENV))) {
            td_buf_free(&name);
            return td_fail(err, TD_NOMEM, "no memory");
        }
    }
    td_buf_free(&name);
    return TD_OK;
}

static td_status read_file(const char *path, td_buf *b, td_error *err)
{
    FILE *f = fopen(path, "rb");
    char block[4096];
    size_t n;

    if (f == NULL)
        return td_fail(err, TD_INVALID, "config file %s: %s", path, strerror(errno));
    while (b->len <= FILE_CAP && (n = fread(block, 1, sizeof block, f)) > 0)
        td_buf_add(b, block, n);
    n = (size_t)ferror(f);
    fclose(f);
    if (n != 0)
        return td_fail(err, TD_INVALID, "config file %s: cannot be read", path);
    if (b->len > FILE_CAP)
        return td_fail(err, TD_INVALID, "config file %s: larger than 1 MiB", path);
    td_buf_add(b, "", 1); /* cJSON wants to see the end; also makes an empty file a string */
    return b->oom ? td_fail(err, TD_NOMEM, "no memory for %s", path) : TD_OK;
}

/* The shortest form that reads back as the same number: 0.9, not 0.90000000000000002. */
static void number_text(double v, td_buf *b)
{
    char text[40];

    snprintf(text, sizeof text, "%.15g", v);
    if (v == floor(v) && fabs(v) < 1e15)
        snprintf(text, sizeof text, "%.0f", v);
    else if (strtod(text, NULL) != v)
        snprintf(text, sizeof text, v == floor(v) ? "%.0f" : "%.17g", v);
    td_buf_str(b, text);
}

/* The value as a flag would spell it; false: a kind of value that this option never has. */
static bool json_text(const td_option *o, const cJSON *v, td_buf *b)
{
    bool scalar = o->type != TD_OPT_LIST && o->type != TD_OPT_STR && o->type != TD_OPT_ENUM;

    if (cJSON_IsString(v)) {
        td_buf_str(b, v->valuestring);
    } else if (cJSON_IsBool(v) && o->type == TD_OPT_BOOL) {
        td_buf_str(b, cJSON_IsTrue(v) ? "true" : "false");
    } else if (cJSON_IsNumber(v) && scalar && o->type != TD_OPT_BOOL) {
        /* Past 2^53 a double is not the number that was written: such a one goes in quotes. */
        if (o->type != TD_OPT_F64 && fabs(v->valuedouble) > 9007199254740992.0)
            return false;
        number_text(v->valuedouble, b);
    } else if (cJSON_IsArray(v) && o->type == TD_OPT_LIST) {
        for (const cJSON *item = v->child; item != NULL; item = item->next) {
            if (!cJSON_IsString(item) || strchr(item->valuestring, ',') != NULL)
                return false;
            td_buf_fmt(b, "%s%s", item == v->child ? "" : ",", item->valuestring);
        }
    } else {
        return false;
    }
    return true;
}

static td_status take_members(parser *p, const cJSON *root, td_error *err)
{
    td_buf text = {0};
    td_status st = TD_OK;

    for (const cJSON *v = root->child; v != NULL && st == TD_OK; v = v->next) {
        size_t len = strlen(v->string), i = find_option(p, v->string, len);

        if (i == p->n) {
            char where[300];

            snprintf(where, sizeof where, "config file %.250s: ", p->file);
            st = unknown_name(p, err, where, "", v->string, len);
            break;
        }
        for (const cJSON *w = root->child; w != v; w = w->next) {
            if (strcmp(w->string, v->string) == 0)
                st = td_fail_param(err, v->string, "config file %s: %s is there twice", p->file,
                                   v->string);
        }
        td_buf_clear(&text);
        td_buf_str(&text, "");
        if (st == TD_OK && !json_text(&p->table[i], v, &text)) {
            td_buf allowed = {0};

            cfg_value_describe(&p->table[i], &allowed);
            st = td_fail_param(err, v->string, "config file %s: %s must be %s", p->file, v->string,
                               allowed.ptr ? allowed.ptr : "of its type");
            td_buf_free(&allowed);
        }
        if (st == TD_OK &&
            (text.oom || (p->texts[i].source < CFG_FILE && !take_text(p, i, text.ptr, CFG_FILE))))
            st = td_fail(err, TD_NOMEM, "no memory");
    }
    td_buf_free(&text);
    return st;
}

static td_status take_file(parser *p, td_error *err)
{
    td_buf bytes = {0};
    const char *end = NULL;
    size_t at = 0;
    cJSON *root = NULL;
    td_status st;

    if (p->file == NULL) {
        const char *env = getenv("TANDEM_CONFIG");

        if (env == NULL || *env == '\0')
            return TD_OK;
        p->file = strdup(env);
        if (p->file == NULL)
            return td_fail(err, TD_NOMEM, "no memory");
    }
    st = read_file(p->file, &bytes, err);
    if (st != TD_OK)
        goto out;
    /* Without the NUL that the parser wants. true: text after the object is an error too. */
    if (!td_utf8_valid(bytes.ptr, bytes.len - 1, &at) ||
        td_json_look(bytes.ptr, bytes.len - 1, MAX_DEPTH, SIZE_MAX, &at) != TD_JSON_FINE)
        end = bytes.ptr + at;
    else
        root = cJSON_ParseWithLengthOpts(bytes.ptr, bytes.len, &end, true);
    if (root == NULL || !cJSON_IsObject(root)) {
        size_t line = 1;

        for (const char *c = bytes.ptr; root == NULL && end != NULL && c < end; c++)
            line += *c == '\n';
        st =
            td_fail(err, TD_INVALID, "config file %s: not a JSON object (line %zu)", p->file, line);
        goto out;
    }
    st = take_members(p, root, err);
out:
    cJSON_Delete(root);
    td_buf_free(&bytes);
    return st;
}

static td_status take_defaults(parser *p, td_error *err)
{
    for (size_t i = 0; i < p->n; i++) {
        const td_option *o = &p->table[i];

        if (p->texts[i].source != CFG_UNSET)
            continue;
        if (o->def == NULL) {
            td_buf env = {0};

            cfg_env_name(o->name, &env);
            td_fail_param(err, o->name,
                          "--%s must be given: by that flag, by %s, or as \"%s\" in a config file",
                          o->name, env.ptr ? env.ptr : "its environment variable", o->name);
            td_buf_free(&env);
            return TD_INVALID;
        }
        if (!take_text(p, i, o->def, CFG_DEFAULT))
            return td_fail(err, TD_NOMEM, "no memory");
    }
    return TD_OK;
}

/* Text to fields. The converter knows what was wrong; here is said whose value it was. */
static td_status convert(const parser *p, void *out, td_error *err)
{
    td_error local = {0};

    for (size_t i = 0; i < p->n; i++) {
        const td_option *o = &p->table[i];
        td_status st = cfg_value_set(o, p->texts[i].text, out, &local);
        td_buf env = {0};
        char flag[64];

        if (st == TD_OK)
            continue;
        if (st != TD_INVALID)
            return td_fail(err, st, "%s", local.text);
        snprintf(flag, sizeof flag, "--%s", o->name);
        switch (p->texts[i].source) {
        case CFG_FLAG: td_fail_param(err, flag, "%s: %s", flag, local.text); break;
        case CFG_ENV:
            cfg_env_name(o->name, &env);
            td_fail_param(err, env.ptr, "environment %s: %s", env.ptr ? env.ptr : o->name,
                          local.text);
            td_buf_free(&env);
            break;
        case CFG_FILE:
            td_fail_param(err, o->name, "config file %s: %s: %s", p->file, o->name, local.text);
            break;
        case CFG_DEFAULT:
        case CFG_UNSET:
            return td_fail(err, TD_INTERNAL, "the default of --%s: %s", o->name, local.text);
        }
        return TD_INVALID;
    }
    return TD_OK;
}

/* A table that breaks its own rules is a bug, found by the first run of the program. */
static void check_table(const td_option *table, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const char *c = table[i].name;

        td_assert(islower((unsigned char)c[0]) && c[strlen(c) - 1] != '-');
        for (; *c != '\0'; c++)
            td_assert(islower((unsigned char)*c) || isdigit((unsigned char)*c) ||
                      (*c == '-' && c[1] != '-'));
        td_assert(table[i].help != NULL && table[i].min <= table[i].max);
        td_assert((table[i].type == TD_OPT_ENUM) == (table[i].words != NULL));
        for (size_t j = 0; j < i; j++)
            td_assert(strcmp(table[i].name, table[j].name) != 0);
    }
}

static bool print_and_free(td_buf *b)
{
    bool good = !b->oom && fwrite(b->ptr, 1, b->len, stdout) == b->len && fflush(stdout) == 0;

    td_buf_free(b);
    return good;
}

/* --help and --version answer even when the rest of the command line is wrong. */
static bool wants_help(const parser *p, int argc, char **argv, td_buf *b)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0)
            cfg_help(p->table, p->n, p->program, p->purpose, b);
        else if (strcmp(argv[i], "--help=markdown") == 0)
            td_config_markdown(p->table, p->n, p->program, p->purpose, b);
        else if (strcmp(argv[i], "--version") == 0)
            td_buf_fmt(b, "%s %s\n", p->program, TANDEM_VERSION);
        else
            continue;
        return true;
    }
    return false;
}

td_status td_config_parse(const td_option *table, size_t n, const char *program,
                          const char *purpose, int argc, char **argv, void *out,
                          td_config_action *action, td_error *err)
{
    parser p = {.table = table, .n = n, .program = program, .purpose = purpose};
    td_buf text = {0};
    td_status st;

    check_table(table, n);
    *action = TD_CONFIG_EXIT_OK;
    if (wants_help(&p, argc, argv, &text))
        return print_and_free(&text) ? TD_OK : td_fail(err, TD_IO, "stdout cannot be written");
    p.texts = calloc(n + 1, sizeof *p.texts);
    if (p.texts == NULL)
        return td_fail(err, TD_NOMEM, "no memory for the options");
    st = take_arguments(&p, argc, argv, err);
    if (st == TD_OK)
        st = take_environment(&p, err);
    if (st == TD_OK)
        st = cfg_check_environment(table, n, err);
    if (st == TD_OK)
        st = take_file(&p, err);
    if (st == TD_OK)
        st = take_defaults(&p, err);
    if (st == TD_OK)
        st = convert(&p, out, err);
    if (st == TD_OK && p.print) {
        cfg_print(table, n, p.texts, p.file, &text);
        if (!print_and_free(&text))
            st = td_fail(err, TD_IO, "stdout cannot be written");
    } else if (st == TD_OK) {
        *action = TD_CONFIG_RUN;
    }
    if (*action != TD_CONFIG_RUN)
        td_config_free(table, n, out);
    for (size_t i = 0; i < n; i++)
        free(p.texts[i].text);
    free(p.texts);
    free(p.file);
    return st;
}

void td_config_free(const td_option *table, size_t n, void *out)
{
    for (size_t i = 0; i < n; i++)
        cfg_value_free(&table[i], out);
}
