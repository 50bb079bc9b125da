/* help.c - the table as text for people. */
#include "config/options.h"

#include <stdio.h>
#include <string.h>

#define COLUMNS     100
#define HELP_COLUMN 30

static const struct {
    enum kva_command command;
    const char *name;
} commands[] = {
    {KVA_CMD_SERVE, "serve"},
    {KVA_CMD_GENERATE, "generate"},
    {KVA_CMD_CHAT, "chat"},
    {KVA_CMD_TOKENIZE, "tokenize"},
    {KVA_CMD_INFO, "info"},
    {KVA_CMD_BENCH, "bench"},
    {KVA_CMD_MAKE_MODEL, "make-model"},
    {KVA_CMD_EVAL, "eval"},
    {KVA_CMD_PULL, "pull"},
    {KVA_CMD_LIST, "list"},
    {KVA_CMD_DOCTOR, "doctor"},
    {KVA_CMD_SKEW, "skew"},
};

static const char *placeholder(const struct kva_option *option)
{
    switch (option->kind) {
    case KVA_OPTION_STRING:
    case KVA_OPTION_LIST:
    case KVA_OPTION_SECRET:
    case KVA_OPTION_SECRETS:
        return "TEXT";
    case KVA_OPTION_BYTES:
        return "BYTES";
    case KVA_OPTION_DURATION:
        return "TIME";
    case KVA_OPTION_CHOICE:
        return "WORD";
    case KVA_OPTION_BOOL:
        return NULL;
    default:
        return "N";
    }
}

/* Words, wrapped at COLUMNS with `indent` spaces before each further line. */
static void put_wrapped(struct kva_buf *out, const char *text, size_t column, size_t indent)
{
    while (*text) {
        size_t length = strcspn(text, " ");
        if (column > indent && column + 1 + length > COLUMNS) {
            kva_buf_printf(out, "\n%*s", (int)indent, "");
            column = indent;
        } else if (column > indent) {
            kva_buf_putc(out, ' ');
            column++;
        }
        kva_buf_append(out, text, length);
        column += length;
        text += length;
        text += *text == ' ';
    }
    kva_buf_putc(out, '\n');
}

static void put_choices(const struct kva_option *option, struct kva_buf *text)
{
    for (uint32_t i = 0; option->choices && option->choices[i]; i++)
        kva_buf_printf(text, "%s%s", i ? ", " : " One of: ", option->choices[i]);
    if (option->choices)
        kva_buf_putc(text, '.');
}

/* How the option is given: what has no flag by its variable. */
static int write_flag(const struct kva_option *option, char *flag, size_t size)
{
    char variable[80];
    const char *value = placeholder(option);
    if (option->kind == KVA_OPTION_SECRET || option->kind == KVA_OPTION_SECRETS) {
        kva_option_variable(option->name, variable, sizeof(variable));
        return snprintf(flag, size, "  %s=%s", variable, value);
    }
    return snprintf(flag, size, "  --%s%s%s", option->name, value ? " " : "", value ? value : "");
}

static void put_sources(struct kva_buf *out)
{
    kva_buf_puts(out, "\nAll\n");
    kva_buf_printf(out, "%-*s", HELP_COLUMN, "  --config FILE");
    put_wrapped(out, "JSON file with option names as keys.", HELP_COLUMN, HELP_COLUMN);
    kva_buf_putc(out, '\n');
    put_wrapped(out,
                "Each option is an environment variable too, as KVAHEAD_DEVICE_MEMORY is "
                "--device-memory, and a key of the file that --config or KVAHEAD_CONFIG names: a "
                "flag comes before a variable, a variable before the file. What needs no value is "
                "turned off by --no-NAME. BYTES take K, M, G, T (binary), TIME takes ms, s, m, h.",
                0, 0);
}

void kva_options_help(enum kva_command command, struct kva_buf *out)
{
    size_t count;
    const struct kva_option *options = kva_options(&count);
    const char *group = "";
    for (size_t i = 0; i < count; i++) {
        const struct kva_option *option = &options[i];
        if (!(option->commands & command))
            continue;
        if (strcmp(group, option->group) != 0)
            kva_buf_printf(out, "\n%s\n", option->group);
        group = option->group;
        char flag[80];
        int length = write_flag(option, flag, sizeof(flag));
        kva_buf_printf(out, "%-*s", HELP_COLUMN, flag);
        if (length >= HELP_COLUMN)
            kva_buf_printf(out, "\n%*s", HELP_COLUMN, "");
        struct kva_buf text;
        kva_buf_init(&text, 2048);
        kva_buf_puts(&text, option->help);
        put_choices(option, &text);
        if (option->fallback)
            kva_buf_printf(&text, " [%s]", option->fallback);
        put_wrapped(out, text.data ? text.data : "", HELP_COLUMN, HELP_COLUMN);
        kva_buf_finish(&text);
    }
    put_sources(out);
}

static void put_range(const struct kva_option *option, struct kva_buf *out)
{
    bool ranged = option->kind == KVA_OPTION_UINT || option->kind == KVA_OPTION_INT ||
                  option->kind == KVA_OPTION_NUMBER || option->kind == KVA_OPTION_BYTES ||
                  option->kind == KVA_OPTION_DURATION;
    if (option->kind == KVA_OPTION_BOOL)
        kva_buf_puts(out, "true, false");
    else if (option->kind == KVA_OPTION_LIST)
        kva_buf_puts(out, "text, repeatable");
    else if (option->kind == KVA_OPTION_SECRET || option->kind == KVA_OPTION_SECRETS)
        kva_buf_puts(out, "text, no flag");
    else if (option->kind == KVA_OPTION_STRING)
        kva_buf_puts(out, "text");
    for (uint32_t i = 0; option->choices && option->choices[i]; i++)
        kva_buf_printf(out, "%s%s", i ? ", " : "", option->choices[i]);
    if (ranged)
        kva_buf_printf(out, "%.15g to %.15g%s", option->min, option->max,
                       option->kind == KVA_OPTION_DURATION ? " ms"
                       : option->kind == KVA_OPTION_BYTES  ? " bytes"
                                                           : "");
}

void kva_options_markdown(struct kva_buf *out)
{
    size_t count;
    const struct kva_option *options = kva_options(&count);
    const char *group = "";
    kva_buf_puts(out,
                 "# Options\n\nWritten by `kvahead options`; do not edit.\n\n"
                 "An option is a flag `--name value`, an environment variable `KVAHEAD_NAME`, or a "
                 "key `name` of\nthe JSON file that `--config` names; the first of these that "
                 "gives it wins. Sizes take K, M, G, T\n(binary), times take ms, s, m, h.\n");
    for (size_t i = 0; i < count; i++) {
        const struct kva_option *option = &options[i];
        if (strcmp(group, option->group) != 0)
            kva_buf_printf(out,
                           "\n## %s\n\n| option | default | values | commands | meaning |\n"
                           "|---|---|---|---|---|\n",
                           option->group);
        group = option->group;
        kva_buf_printf(out, "| `%s` | %s | ", option->name,
                       option->fallback ? option->fallback : "");
        put_range(option, out);
        kva_buf_puts(out, " | ");
        const char *comma = "";
        for (size_t j = 0; j < KVA_COUNT_OF(commands); j++) {
            if (option->commands & commands[j].command) {
                kva_buf_printf(out, "%s%s", comma, commands[j].name);
                comma = ", ";
            }
        }
        kva_buf_printf(out, " | %s |\n", option->help);
    }
}
