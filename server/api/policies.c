/* policies.c - KV policies and their settings as JSON. */
#include "server/api/policies.h"

#include <string.h>

static void put_value(struct kva_buf *out, const struct kva_kv_setting *setting, uint32_t value)
{
    char text[KVA_KV_VALUE_MAX];
    const char *quote = kva_kv_setting_write(setting, value, text) ? "\"" : "";
    kva_buf_printf(out, "%s%s%s", quote, text, quote);
}

/* A number of rows that differs from layer to layer is text. */
static void put_own_value(struct kva_buf *out, const struct kva_kv_setting *setting,
                          const struct kva_kv_spec *spec)
{
    struct kva_kv_spec copy = *spec;
    char text[KVA_KV_K_TEXT_MAX];
    if (setting->kind != KVA_SETTING_BY_LAYER || spec->k_range_count == 0) {
        put_value(out, setting, *kva_kv_setting_value(setting, &copy));
        return;
    }
    kva_kv_spec_write_k(spec, text);
    kva_buf_printf(out, "\"%s\"", text);
}

static void put_range(struct kva_buf *out, const struct kva_kv_setting *setting)
{
    if (!setting->words && !setting->among) {
        kva_buf_printf(out, "\"min\":%u,\"max\":%u,\"multiple_of\":%u", setting->min, setting->max,
                       setting->multiple_of ? setting->multiple_of : 1);
        return;
    }
    kva_buf_puts(out, "\"values\":[");
    for (uint32_t i = 0; setting->words && setting->words[i]; i++) {
        kva_buf_puts(out, i ? "," : "");
        put_value(out, setting, i);
    }
    for (uint32_t i = 0; setting->among && setting->among[i]; i++)
        kva_buf_printf(out, "%s%u", i ? "," : "", setting->among[i]);
    kva_buf_putc(out, ']');
}

static void put_setting(struct kva_buf *out, const struct kva_kv_policy_setting *own,
                        const struct kva_kv_spec *spec)
{
    const struct kva_kv_setting as_policy = kva_kv_setting_of(own), *setting = &as_policy;
    kva_buf_printf(out, "{\"name\":\"%s\",", setting->name);
    put_range(out, setting);
    kva_buf_printf(out, ",\"by_layer\":%s,\"percent\":%s,\"default\":",
                   setting->kind == KVA_SETTING_BY_LAYER ? "true" : "false",
                   kva_kv_setting_is_amount(setting) ? "true" : "false");
    put_own_value(out, setting, spec);
    kva_buf_puts(out, ",\"paper\":");
    put_value(out, setting, own->paper);
    kva_buf_puts(out, ",\"help\":");
    kva_buf_json_string(out, setting->help, strlen(setting->help));
    kva_buf_putc(out, '}');
}

void kva_policy_json(struct kva_buf *out, const struct kva_kv_spec *spec)
{
    size_t count;
    const struct kva_kv_policy_setting *own = kva_kv_policy_settings(spec->policy, &count);
    kva_buf_printf(out, "{\"name\":\"%s\",\"exact\":%s,\"settings\":[",
                   kva_kv_policy_name(spec->policy),
                   kva_kv_policy_exact(spec->policy) ? "true" : "false");
    for (size_t i = 0; i < count; i++) {
        kva_buf_puts(out, i ? "," : "");
        put_setting(out, &own[i], spec);
    }
    kva_buf_puts(out, "]}");
}
