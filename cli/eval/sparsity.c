/* sparsity.c - `eval --stream --sparsity`: how few tokens attention needs (engine/eval/sparsity.h). */
#include "cli/cli.h"
#include "cli/eval/eval.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static uint64_t tokens_of(const struct kva_config *config)
{
    return config->eval_windows * config->eval_tokens;
}

static enum kva_status read_percent(struct kva_cli_eval *eval, const char **at, struct kva_err *err)
{
    char *end;
    const double percent = strtod(*at, &end);
    if (end == *at || (*end && *end != ',') || !(percent > 0 && percent <= 100))
        return kva_fail_param(err, KVA_EINVAL, "sparsity",
                              "--sparsity: '%.*s' is no percentage above 0 and up to 100",
                              (int)strcspn(*at, ","), *at);
    if (eval->percent_count == KVA_EVAL_SHARES_MAX)
        return kva_fail_param(err, KVA_EINVAL, "sparsity", "--sparsity: more than %u percentages",
                              KVA_EVAL_SHARES_MAX);
    const uint32_t kept = (uint32_t)lround(percent / 100 * (double)tokens_of(eval->config));
    eval->kept[eval->percent_count] = kva_max_u32(kept, 2);
    eval->percents[eval->percent_count++] = percent;
    *at = *end ? end + 1 : NULL;
    return KVA_OK;
}

enum kva_status kva_cli_eval_read_sparsity(struct kva_cli_eval *eval, struct kva_err *err)
{
    const struct kva_config *config = eval->config;
    enum kva_status status = KVA_OK;
    if (!config->eval_sparsity)
        return KVA_OK;
    if (!config->eval_stream || eval->spec_count != 1 ||
        !kva_kv_policy_exact(eval->specs[0].policy))
        return kva_fail_param(
            err, KVA_EINVAL, "sparsity",
            "--sparsity looks at exact attention along a text: give --stream FILE "
            "and --policies full");
    if (tokens_of(config) < 2)
        return kva_fail_param(err, KVA_EINVAL, "sparsity",
                              "--sparsity looks at the second half of a text: give --tokens or "
                              "--windows of more than 1");
    for (const char *at = config->eval_sparsity; at && !status;)
        status = read_percent(eval, &at, err);
    return status;
}

enum kva_status kva_cli_eval_begin_sparsity(struct kva_cli_eval *eval, struct kva_err *err)
{
    const struct kva_cli_instance *instance = &eval->instance;
    if (eval->percent_count == 0)
        return KVA_OK;
    const uint32_t context = instance->engine->limits.context_max;
    if (tokens_of(eval->config) >= context)
        return kva_fail_param(err, KVA_EINVAL, "sparsity",
                              "--sparsity: %llu windows of %llu tokens and one before them exceed "
                              "the context of %u",
                              (unsigned long long)eval->config->eval_windows,
                              (unsigned long long)eval->config->eval_tokens, context);
    const struct kva_sparsity_params params = {
        .look = {.device = instance->device,
                 .config = &instance->model->config,
                 .kv_dtype = eval->kv_dtype,
                 .context_max = context},
        .kept = eval->kept,
        .count = eval->percent_count,
        .from = (uint32_t)(tokens_of(eval->config) / 2),
    };
    enum kva_status status = kva_sparsity_init(&eval->sparsity, &params, err);
    if (!status)
        kva_model_engine_observe(instance->engine, &eval->sparsity.observer);
    return status;
}

static struct kva_sparsity_sums mean_of(const struct kva_cli_eval *eval, uint32_t index)
{
    const struct kva_sparsity *s = &eval->sparsity;
    const double queries = (double)s->queries;
    return (struct kva_sparsity_sums){s->sums[index].best / queries,
                                      s->sums[index].greedy / queries};
}

void kva_cli_eval_sparsity_table(const struct kva_cli_eval *eval, struct kva_buf *out)
{
    if (eval->percent_count == 0)
        return;
    kva_buf_printf(out,
                   "\nattention of the second half's queries that so many of all tokens have\n"
                   "%12s %12s %12s %12s\n",
                   "percent", "tokens", "best", "greedy");
    for (uint32_t i = 0; i < eval->percent_count; i++) {
        const struct kva_sparsity_sums mean = mean_of(eval, i);
        kva_buf_printf(out, "%12g %12u %11.1f%% %11.1f%%\n", eval->percents[i], eval->kept[i],
                       100 * mean.best, 100 * mean.greedy);
    }
}

void kva_cli_eval_sparsity_json(const struct kva_cli_eval *eval, struct kva_buf *out)
{
    if (eval->percent_count == 0)
        return;
    kva_buf_puts(out, "  \"sparsity\": [");
    for (uint32_t i = 0; i < eval->percent_count; i++) {
        const struct kva_sparsity_sums mean = mean_of(eval, i);
        kva_buf_printf(
            out, "%s{\"percent\": %.6g, \"tokens\": %u, \"best\": %.6g, \"greedy\": %.6g}",
            i ? ",\n    " : "\n    ", eval->percents[i], eval->kept[i], mean.best, mean.greedy);
    }
    kva_buf_puts(out, "],\n");
}
