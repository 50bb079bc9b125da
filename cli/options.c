/* options.c - `kvahead options`: options, KV policies and their settings, for people and programs.
 */
#include "config/options.h"
#include "cli/cli.h"
#include "engine/kv/spec.h"
#include "server/api/policies.h"

#include <stdio.h>
#include <string.h>

/* --- one setting ----------------------------------------------------------------------------- */

static const struct kva_kv_policy_setting *of_policy(enum kva_kv_policy_id policy,
                                                     enum kva_kv_setting_id id)
{
    size_t count;
    const struct kva_kv_policy_setting *own = kva_kv_policy_settings(policy, &count);
    for (size_t i = 0; i < count; i++) {
        if (own[i].id == id)
            return &own[i];
    }
    return NULL;
}

static void put_value(const struct kva_kv_setting *setting, uint32_t value, struct kva_buf *out)
{
    char text[KVA_KV_VALUE_MAX];
    const char *quote = kva_kv_setting_write(setting, value, text) ? "`" : "";
    kva_buf_printf(out, "%s%s%s", quote, text, quote);
}

/* --- Markdown -------------------------------------------------------------------------------- */

static void put_values(const struct kva_kv_setting *setting, struct kva_buf *out)
{
    for (size_t i = 0; setting->words && setting->words[i]; i++)
        kva_buf_printf(out, "%s`%s`", i ? ", " : "", setting->words[i]);
    for (size_t i = 0; setting->among && setting->among[i]; i++)
        kva_buf_printf(out, "%s%u", i ? ", " : "", setting->among[i]);
    if (setting->words || setting->among)
        return;
    const bool either = kva_kv_setting_is_either(setting);
    kva_buf_printf(out, either ? "%u or %u" : "%u to %u", setting->min, setting->max);
    if (setting->multiple_of > 0 && !either)
        kva_buf_printf(out, ", a multiple of %u", setting->multiple_of);
    if (kva_kv_setting_is_amount(setting))
        kva_buf_puts(out, ", or `0%` to `100%`");
}

/* Numbers of policies that have others. */
static void put_own_values(enum kva_kv_setting_id id, struct kva_buf *out)
{
    for (uint32_t p = 0; p < KVA_KV_POLICY_COUNT; p++) {
        const struct kva_kv_policy_setting *own = of_policy((enum kva_kv_policy_id)p, id);
        for (size_t i = 0; own && own->among && own->among[i]; i++)
            kva_buf_printf(out, "%s%u", i ? ", " : "; ", own->among[i]);
        if (own && own->among)
            kva_buf_printf(out, " (%s)", kva_kv_policy_name((enum kva_kv_policy_id)p));
    }
}

static void put_row(enum kva_kv_setting_id id, struct kva_buf *out)
{
    const struct kva_kv_setting *setting = kva_kv_setting_at(id);
    struct kva_buf defaults, papers;
    kva_buf_init(&defaults, 1024);
    kva_buf_init(&papers, 1024);
    kva_buf_printf(out, "| `%s` | %s | ", setting->name, setting->help);
    put_values(setting, out);
    put_own_values(id, out);
    kva_buf_puts(out, " | ");
    const char *comma = "";
    bool same = true;
    const struct kva_kv_policy_setting *first = NULL;
    for (uint32_t p = 0; p < KVA_KV_POLICY_COUNT; p++) {
        const struct kva_kv_policy_setting *own = of_policy((enum kva_kv_policy_id)p, id);
        if (!own)
            continue;
        kva_buf_printf(out, "%s%s", comma, kva_kv_policy_name((enum kva_kv_policy_id)p));
        comma = ", ";
        first = first ? first : own;
        same &= own->fallback == first->fallback && own->paper == first->paper;
    }
    comma = "";
    for (uint32_t p = 0; p < KVA_KV_POLICY_COUNT; p++) {
        const struct kva_kv_policy_setting *own = of_policy((enum kva_kv_policy_id)p, id);
        if (!own || (same && own != first))
            continue;
        kva_buf_puts(&defaults, comma);
        kva_buf_puts(&papers, comma);
        put_value(setting, own->fallback, &defaults);
        put_value(setting, own->paper, &papers);
        comma = ", ";
    }
    kva_buf_printf(out, " | %s | %s |\n", defaults.data, papers.data);
    kva_buf_finish(&defaults);
    kva_buf_finish(&papers);
}

static void put_markdown(struct kva_buf *out)
{
    kva_buf_puts(out, "| setting | meaning | values | policies | default | `paper=true` |\n"
                      "|---|---|---|---|---|---|\n");
    for (uint32_t id = 0; id < KVA_SETTING_COUNT; id++)
        put_row((enum kva_kv_setting_id)id, out);
}

/* --- JSON ------------------------------------------------------------------------------------ */

static void put_text(const char *text, struct kva_buf *out)
{
    kva_buf_json_string(out, text, strlen(text));
}

static void put_policies(struct kva_buf *out)
{
    for (uint32_t p = 0; p < KVA_KV_POLICY_COUNT; p++) {
        struct kva_kv_spec spec = kva_kv_spec_default((enum kva_kv_policy_id)p);
        kva_buf_puts(out, p ? ", " : "");
        kva_policy_json(out, &spec);
    }
}

static void put_json(struct kva_buf *out)
{
    size_t count;
    const struct kva_option *options = kva_options(&count);
    kva_buf_puts(out, "{\"options\": [");
    for (size_t i = 0; i < count; i++) {
        kva_buf_printf(out, "%s{\"name\": \"%s\", \"default\": ", i ? ", " : "", options[i].name);
        if (options[i].fallback)
            put_text(options[i].fallback, out);
        else
            kva_buf_puts(out, "null");
        kva_buf_puts(out, ", \"help\": ");
        put_text(options[i].help, out);
        kva_buf_putc(out, '}');
    }
    kva_buf_puts(out, "], \"kv_policies\": [");
    put_policies(out);
    kva_buf_puts(out, "]}\n");
}

int kva_cli_options(int argc, char **argv)
{
    const char *what = argc > 0 ? argv[0] : "";
    struct kva_buf text;
    kva_buf_init(&text, 1 << 20);
    if (argc == 0)
        kva_options_markdown(&text);
    else if (argc == 1 && strcmp(what, "--json") == 0)
        put_json(&text);
    else if (argc == 1 && strcmp(what, "--kv") == 0)
        put_markdown(&text);
    else
        fputs("kvahead options [--json | --kv]: the options as Markdown; all names and ranges, of "
              "options and KV settings, as JSON; the table of KV settings as Markdown\n",
              stderr);
    bool ok = text.length > 0;
    fputs(ok ? text.data : "", stdout);
    kva_buf_finish(&text);
    return ok ? KVA_EXIT_OK : KVA_EXIT_USAGE;
}
