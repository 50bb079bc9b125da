/* json.c - the result with everything that it takes to repeat it, as JSON. */
#include "cli/eval/eval.h"

#include "engine/model/packed.h"

#include <math.h>
#include <string.h>

#define LL(x) ((unsigned long long)(x))

static void put_string(struct kva_buf *out, const char *text)
{
    kva_buf_json_string(out, text, strlen(text));
}

/* Enough digits to get the same double back; JSON has no infinities. */
static void put_number(struct kva_buf *out, double value)
{
    if (isfinite(value))
        kva_buf_printf(out, "%.17g", value);
    else
        kva_buf_puts(out, "null");
}

static void put_field(struct kva_buf *out, const char *name, double value)
{
    kva_buf_printf(out, ", \"%s\": ", name);
    put_number(out, value);
}

static void put_list(struct kva_buf *out, const char *name, const double *values, uint64_t count)
{
    kva_buf_printf(out, ",\n     \"%s\": [", name);
    for (uint64_t i = 0; i < count; i++) {
        kva_buf_puts(out, i ? ", " : "");
        put_number(out, values[i]);
    }
    kva_buf_putc(out, ']');
}

static void put_arguments(const struct kva_cli_eval *eval, struct kva_buf *out)
{
    const struct kva_config *c = eval->config;
    kva_buf_puts(out, "  \"arguments\": {\"model\": ");
    put_string(out, c->model);
    kva_buf_puts(out, c->eval_text      ? ", \"text\": "
                      : c->eval_prompts ? ", \"prompts\": "
                                        : ", \"stream\": ");
    put_string(out, eval->file_path);
    kva_buf_printf(out, ", \"tokens\": %llu", LL(c->eval_tokens));
    if (c->eval_text)
        kva_buf_printf(out, ", \"from\": %u", eval->from);
    if (!c->eval_prompts)
        kva_buf_printf(out, ", \"windows\": %llu", LL(c->eval_windows));
    kva_buf_puts(out, ", \"policies\": ");
    put_string(out, c->eval_policies);
    kva_buf_printf(out,
                   ", \"look\": %llu, \"context\": %u, \"raw\": %s, "
                   "\"weights\": \"%s\"},\n",
                   LL(c->eval_look), eval->instance.engine->limits.context_max,
                   c->raw ? "true" : "false",
                   kva_model_weights_name((enum kva_model_weights)c->weights));
    kva_buf_printf(out, "  \"input\": {\"bytes\": %zu, \"sha256\": \"%s\"},\n", eval->file_bytes,
                   eval->file_sha256);
}

static void put_model(const struct kva_cli_eval *eval, struct kva_buf *out)
{
    const struct kva_model *model = eval->instance.model;
    const struct kva_model_config *c = &model->config;
    kva_buf_puts(out, "  \"model\": {\"name\": ");
    put_string(out, eval->instance.name);
    kva_buf_printf(out,
                   ", \"layers\": %u, \"heads\": %u, \"kv_heads\": %u, \"head_dim\": %u, "
                   "\"vocab_size\": %u, \"context\": %u, \"weight_bytes\": %llu, "
                   "\"kv_dtype\": \"%s\"},\n",
                   c->layer_count, c->heads, c->kv_heads, c->head_dim, c->vocab_size,
                   c->context_max, LL(model->weight_bytes), kva_dtype_name(eval->kv_dtype));
    kva_buf_printf(out, "  \"cpu_levels\": %u,\n",
                   kva_device_get_info(eval->instance.device)->cpu_levels);
}

static void put_samples(const struct kva_cli_eval *eval, struct kva_buf *out)
{
    kva_buf_puts(out, "  \"prompt_tokens\": [");
    for (uint32_t i = 0; i < eval->sample_count; i++)
        kva_buf_printf(out, "%s%u", i ? ", " : "", eval->samples[i].prompt);
    kva_buf_printf(out, "],\n  \"steps\": %llu,\n", LL(eval->result->steps));
}

static void put_topk(const struct kva_kv_spec *spec, struct kva_buf *out)
{
    char text[KVA_KV_K_TEXT_MAX];
    kva_kv_spec_write_k(spec, text);
    put_string(out, text);
}

static void put_settings(const struct kva_kv_spec *spec, struct kva_buf *out)
{
    size_t count;
    const struct kva_kv_policy_setting *own = kva_kv_policy_settings(spec->policy, &count);
    struct kva_kv_spec copy = *spec;
    kva_buf_printf(out, "\"settings\": {\"policy\": \"%s\"", kva_kv_policy_name(spec->policy));
    for (size_t i = 0; i < count; i++) {
        const struct kva_kv_setting *setting = kva_kv_setting_at(own[i].id);
        uint32_t value = *kva_kv_setting_value(setting, &copy);
        char text[KVA_KV_VALUE_MAX];
        kva_kv_setting_write(setting, value, text);
        kva_buf_printf(out, ", \"%s\": ", setting->name);
        if (setting->kind == KVA_SETTING_BY_LAYER && spec->k_range_count > 0)
            put_topk(spec, out);
        else if (text[strspn(text, "0123456789")])
            put_string(out, text);
        else
            kva_buf_puts(out, text);
    }
    kva_buf_putc(out, '}');
}

enum measure {
    COVERED,
    CEILING,
    HIT,
    BEST_HIT,
    WAITED,
};

static double measure_of(const struct kva_coverage_head *head, enum measure measure)
{
    switch (measure) {
    case COVERED:
        return head->steps ? head->covered / (double)head->steps : NAN;
    case CEILING:
        return head->steps ? head->ceiling / (double)head->steps : NAN;
    case HIT:
        return head->wanted ? (double)head->hit / (double)head->wanted : NAN;
    case WAITED:
        return head->steps ? (double)head->waited / (double)head->steps : NAN;
    case BEST_HIT:
        return head->best ? (double)head->best_hit / (double)head->best : NAN;
    }
    return NAN;
}

/* [layers][kv_heads] */
static void put_matrix(const struct kva_cli_eval *eval, const struct kva_eval_policy *policy,
                       const char *name, enum measure measure, struct kva_buf *out)
{
    const struct kva_eval *r = eval->result;
    kva_buf_printf(out, ",\n     \"%s\": [", name);
    for (uint32_t layer = 0; layer < r->layers; layer++) {
        kva_buf_puts(out, layer ? ", [" : "[");
        for (uint32_t head = 0; head < r->kv_heads; head++) {
            kva_buf_puts(out, head ? ", " : "");
            put_number(out, measure_of(&policy->heads[layer * r->kv_heads + head], measure));
        }
        kva_buf_putc(out, ']');
    }
    kva_buf_putc(out, ']');
}

void kva_cli_eval_json_policy(const struct kva_cli_eval *eval, uint32_t index, struct kva_buf *out)
{
    kva_buf_puts(out, "{\"policy\": ");
    put_string(out, eval->names[index]);
    kva_buf_puts(out, ", ");
    put_settings(&eval->specs[index], out);
}

static void put_policy(const struct kva_cli_eval *eval, uint32_t index, struct kva_buf *out)
{
    const struct kva_eval_policy *p = &eval->result->policies[index];
    kva_buf_puts(out, "    ");
    kva_cli_eval_json_policy(eval, index, out);
    kva_buf_printf(out, ",\n     \"steps\": %llu", LL(p->steps));
    put_field(out, "kl_mean", p->kl_mean);
    put_field(out, "kl_p99", p->kl_p99);
    put_field(out, "kl_max", p->kl_max);
    put_list(out, "kl", p->kl, p->steps);
    put_field(out, "top1_agreement", p->agreement);
    put_field(out, "perplexity", exp(p->nll));
    put_field(out, "perplexity_full", exp(p->nll_reference));
    put_field(out, "logit_error", p->logit_error);
    kva_buf_printf(out,
                   ",\n     \"spec_tokens\": %llu, \"spec_tokens_as_full\": %llu, "
                   "\"spec_tokens_as_followed\": %llu",
                   LL(p->spec_tokens), LL(p->spec_as_full), LL(p->spec_as_followed));
    kva_buf_printf(out,
                   ",\n     \"device_bytes\": %llu, \"host_bytes\": %llu, "
                   "\"device_bytes_full\": %llu, \"host_bytes_full\": %llu",
                   LL(p->bytes.device), LL(p->bytes.host), LL(p->bytes_reference.device),
                   LL(p->bytes_reference.host));
    kva_buf_puts(out, ",\n     ");
    for (uint32_t i = 0; i < p->counts.count; i++)
        kva_buf_printf(out, "\"%s\": %llu, ", p->counts.at[i].counter->name,
                       LL(p->counts.at[i].value));
    kva_buf_printf(out, "\"looks\": %llu", LL(p->looks));
    if (p->heads) {
        put_matrix(eval, p, "mass_covered", COVERED, out);
        put_matrix(eval, p, "mass_best", CEILING, out);
        put_matrix(eval, p, "hit_rate", HIT, out);
        put_matrix(eval, p, "best_hit_rate", BEST_HIT, out);
        put_matrix(eval, p, "waited", WAITED, out);
    }
    kva_buf_putc(out, '}');
}

void kva_cli_eval_json_head(const struct kva_cli_eval *eval, struct kva_buf *out)
{
    kva_buf_puts(out, "{\n  \"format\": 1,\n  \"kvahead\": \"" KVA_VERSION "\",\n");
    put_arguments(eval, out);
    put_model(eval, out);
}

void kva_cli_eval_json(const struct kva_cli_eval *eval, struct kva_buf *out)
{
    kva_cli_eval_json_head(eval, out);
    put_samples(eval, out);
    kva_buf_puts(out, "  \"policies\": [\n");
    for (uint32_t i = 0; i < eval->result->policy_count; i++) {
        put_policy(eval, i, out);
        kva_buf_puts(out, i + 1 < eval->result->policy_count ? ",\n" : "\n");
    }
    kva_buf_puts(out, "  ]\n}\n");
}
