/* table.c - the result as a table for people. */
#include "cli/eval/eval.h"

#include "engine/model/packed.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Layers that are shown side by side; more are left to --json and --svg. */
#define LAYERS_MAX 16u

enum { CELL_MAX = 32 };

static double share(double part, double whole)
{
    return whole > 0 ? part / whole : NAN;
}

/* A share in percent; "-" where there is none. */
static const char *percent(double value, char cell[CELL_MAX])
{
    if (isnan(value))
        snprintf(cell, CELL_MAX, "-");
    else
        snprintf(cell, CELL_MAX, "%.1f%%", 100 * value);
    return cell;
}

static const char *bytes(double value, char cell[CELL_MAX])
{
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    size_t unit = 0;
    for (; value >= 9999.5 / 10 && unit + 1 < KVA_COUNT_OF(units); unit++)
        value /= 1024;
    snprintf(cell, CELL_MAX,
             value < 10 && unit > 0    ? "%.2f %s"
             : value < 100 && unit > 0 ? "%.1f %s"
                                       : "%.0f %s",
             value, units[unit]);
    return cell;
}

static int name_width(const struct kva_cli_eval *eval)
{
    size_t width = strlen("mass by layer");
    for (uint32_t i = 0; i < eval->spec_count; i++)
        width = strlen(eval->names[i]) > width ? strlen(eval->names[i]) : width;
    return (int)width;
}

static void put_head(const struct kva_cli_eval *eval, struct kva_buf *out)
{
    const struct kva_eval *r = eval->result;
    const struct kva_eval_policy *first = &r->policies[0];
    char cell[CELL_MAX];
    kva_buf_printf(out, "%s: %u layers, %u KV heads of %u, %s\n", eval->instance.name, r->layers,
                   r->kv_heads, eval->instance.model->config.head_dim,
                   kva_dtype_name(eval->kv_dtype));
    if (eval->config->eval_text)
        kva_buf_printf(out, "'%s': %u window%s of %u tokens", eval->file_path, eval->sample_count,
                       eval->sample_count == 1 ? "" : "s", eval->from);
    else
        kva_buf_printf(out, "'%s': %u prompt%s", eval->file_path, eval->sample_count,
                       eval->sample_count == 1 ? "" : "s");
    kva_buf_printf(out, ", %llu steps behind %s\n", (unsigned long long)r->steps,
                   eval->sample_count == 1 ? "it" : "them");
    if (eval->reference.engine)
        kva_buf_printf(out, "weights in %s, held against full KV with those of the files in bf16\n",
                       kva_model_weights_name((enum kva_model_weights)eval->config->weights));
    kva_buf_printf(out, "full: perplexity %.4f, %s of KV on the device per sequence\n\n",
                   exp(first->nll_reference), bytes((double)first->bytes_reference.device, cell));
}

static void put_policy(const struct kva_cli_eval *eval, uint32_t index, int width,
                       struct kva_buf *out)
{
    const struct kva_eval_policy *p = &eval->result->policies[index];
    struct kva_coverage_head sum = kva_eval_sum(eval->result, p, KVA_NO_LAYER);
    char cell[8][CELL_MAX];
    double steps = (double)sum.steps, spec = (double)p->spec_tokens;
    kva_buf_printf(out, "%-*s %8.5f %8.5f %7s %9.4f %7s %7s %7s %7s %7s %7s", width,
                   eval->names[index], p->kl_mean, p->kl_p99, percent(p->agreement, cell[0]),
                   exp(p->nll), percent(share((double)sum.hit, (double)sum.wanted), cell[1]),
                   percent(share(sum.covered, steps), cell[2]),
                   percent(kva_kv_has_setting(p->spec.policy, KVA_SETTING_TOPK)
                               ? share(sum.ceiling, steps)
                               : NAN,
                           cell[3]),
                   percent(kva_kv_has_setting(p->spec.policy, KVA_SETTING_TOPK)
                               ? share((double)sum.waited, steps)
                               : NAN,
                           cell[4]),
                   percent(share((double)p->spec_as_full, spec), cell[5]),
                   percent(share((double)p->spec_as_followed, spec), cell[6]));
    double fetched = (double)kva_counts_named(&p->counts, "fetched_bytes") / (double)p->steps;
    kva_buf_printf(
        out, " %9s %7s %9s %8.5f\n", bytes((double)p->bytes.device, cell[0]),
        percent(share((double)p->bytes.device, (double)p->bytes_reference.device), cell[1]),
        fetched > 0 ? bytes(fetched, cell[2]) : "-", p->logit_error);
}

/* One measure of all policies by layer, the KV heads together. */
static void put_layers(const struct kva_cli_eval *eval, int width, bool hits, struct kva_buf *out)
{
    const struct kva_eval *r = eval->result;
    kva_buf_printf(out, "\n%-*s", width, hits ? "hit by layer" : "mass by layer");
    for (uint32_t layer = 0; layer < r->layers; layer++)
        kva_buf_printf(out, " %7u", layer);
    kva_buf_putc(out, '\n');
    for (uint32_t i = 0; i < r->policy_count; i++) {
        const struct kva_eval_policy *p = &r->policies[i];
        if (hits ? !kva_kv_has_setting(p->spec.policy, KVA_SETTING_TOPK)
                 : kva_kv_policy_exact(p->spec.policy))
            continue;
        kva_buf_printf(out, "%-*s", width, eval->names[i]);
        for (uint32_t layer = 0; layer < r->layers; layer++) {
            struct kva_coverage_head sum = kva_eval_sum(r, p, layer);
            char cell[CELL_MAX];
            double value = hits ? share((double)sum.hit, (double)sum.wanted)
                                : share(sum.covered, (double)sum.steps);
            kva_buf_printf(out, " %7s", percent(value, cell));
        }
        kva_buf_putc(out, '\n');
    }
}

static bool any(const struct kva_cli_eval *eval, bool fetched)
{
    for (uint32_t i = 0; i < eval->spec_count; i++) {
        enum kva_kv_policy_id policy = eval->specs[i].policy;
        if (fetched ? kva_kv_has_setting(policy, KVA_SETTING_TOPK) : !kva_kv_policy_exact(policy))
            return true;
    }
    return false;
}

void kva_cli_eval_table(const struct kva_cli_eval *eval, struct kva_buf *out)
{
    int width = name_width(eval);
    put_head(eval, out);
    kva_buf_printf(out, "%-*s %8s %8s %7s %9s %7s %7s %7s %7s %7s %7s %9s %7s %9s %8s\n", width,
                   "policy", "KL", "KL p99", "top-1", "ppl", "hit", "mass", "best", "waits",
                   "T'=full", "T'=text", "device", "of full", "fetched", "logits");
    for (uint32_t i = 0; i < eval->result->policy_count; i++)
        put_policy(eval, i, width, out);
    bool looked = eval->config->eval_look > 0 && eval->result->layers <= LAYERS_MAX;
    if (looked && any(eval, true))
        put_layers(eval, width, true, out);
    if (looked && any(eval, false))
        put_layers(eval, width, false, out);
    kva_buf_puts(
        out,
        "\nKL: of the next-token distribution against full's, in nats: mean and 99th percentile of "
        "the steps.\n"
        "top-1: steps with full's most probable token. ppl: perplexity of the tokens that follow.\n"
        "hit: rows attended to in 16 bits, of those that the step's own query would have chosen "
        "(the oracle).\n"
        "mass: of that query's exact attention, on tokens attended to in 16 bits; best: had the "
        "best k rows been.\n"
        "waits: layers of a step that chose with its own query, and waited for the rows.\n"
        "T': the speculative token: as full would pick, as follows. device: KV bytes of a sequence "
        "at its end.\n"
        "fetched: from host to device in a step. logits: root mean square of their errors, as a "
        "share of their spread.\n");
}
