/* report.c - what was looked at, as tables and as JSON. */
#include "cli/skew/skew.h"

#include "engine/calibrate/directions.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *basis_name(uint32_t basis)
{
    if (basis < KVA_LOOK_FIRST)
        return basis == KVA_LOOK_NONE ? "none" : "planes";
    return kva_skew_method_name((enum kva_skew_method)(basis - KVA_LOOK_FIRST));
}

static double found_recall(const struct kva_look_found *found)
{
    return found->count > 0 ? found->recall / (double)found->count : (double)NAN;
}

static double found_mass(const struct kva_look_found *found)
{
    return found->count > 0 ? found->mass / (double)found->count : (double)NAN;
}

static double per(double sum, uint64_t count)
{
    return count > 0 ? sum / (double)count : (double)NAN;
}

/* A number with so many decimals; "-" where there is none. */
static void put_cell(struct kva_buf *out, double value, int width, int decimals)
{
    if (isnan(value))
        kva_buf_printf(out, " %*s", width, "-");
    else
        kva_buf_printf(out, " %*.*f", width, decimals, value);
}

/* --- energies --------------------------------------------------------------------------------- */

/* Percent of columns whose share is shown. */
static const uint32_t percents[] = {10, 20, 30, 50};

/* Sums of x^T x of one head; of keys without those of their mean, which changes no query's order of
 * them. */
struct energy {
    const double *sums; /* [i][j] for i <= j */
    const double *sum;  /* of x; NULL: the mean counts */
    double rows;
    uint32_t d;
};

/* Of a direction: column `column` of a basis, or that of the vectors as they are (NULL). */
static double energy_of(const struct energy *e, const float *basis, uint32_t column)
{
    double energy = 0, sum = 0;
    if (!basis) {
        energy = e->sums[(size_t)column * e->d + column];
        sum = e->sum ? e->sum[column] : 0;
    }
    for (uint32_t i = 0; basis && i < e->d; i++) {
        const double at = (double)basis[(size_t)i * e->d + column];
        double row = 0.5 * e->sums[(size_t)i * e->d + i] * at;
        for (uint32_t j = i + 1; j < e->d; j++)
            row += e->sums[(size_t)i * e->d + j] * (double)basis[(size_t)j * e->d + column];
        energy += 2 * row * at;
        sum += e->sum ? e->sum[i] * at : 0;
    }
    return energy - (e->rows > 0 ? sum * sum / e->rows : 0);
}

/* The share of the energy of queries or keys that the first columns have, in a layer: the mean of
 * its heads. Not `skewed`: the columns as they are, by energy. */
static double energy_share(const struct kva_calibration *c, bool keys, bool skewed, uint32_t layer,
                           uint32_t columns)
{
    const struct kva_skew *skew = c->skew;
    double mean = 0;
    for (uint32_t head = 0; head < skew->kv_heads; head++) {
        const size_t at = kva_gram_at(c->gram, layer, head);
        const struct energy e = {.sums = (keys ? c->gram->k : c->gram->q) + at,
                                 .sum = keys ? c->gram->k_sum + at / skew->head_dim : NULL,
                                 .rows = (double)c->gram->rows[layer],
                                 .d = skew->head_dim};
        const float *basis = skew->basis + kva_skew_basis_at(skew, layer, head);
        double all = 0, first = 0;
        for (uint32_t i = 0; i < skew->head_dim; i++) {
            const uint32_t column = skew->columns[kva_skew_columns_at(skew, layer, head) + i];
            all += energy_of(&e, NULL, column);
            if (i < columns)
                first += energy_of(&e, skewed ? basis : NULL, skewed ? i : column);
        }
        mean += all > 0 ? first / all / skew->kv_heads : 0;
    }
    return mean;
}

static uint32_t columns_of(const struct kva_calibration *c, uint32_t percent)
{
    return kva_max_u32(1, (c->skew->head_dim * percent + 50) / 100);
}

/* --- tables ----------------------------------------------------------------------------------- */

static void put_cosines(const struct kva_calibration *c, struct kva_buf *out)
{
    double sums[3] = {0};
    kva_buf_puts(out, "\nCosine of a layer's input to what the layer before had or gave, mean of "
                      "the tokens:\n\nlayer    input attention       MLP\n");
    for (uint32_t i = 1; i < c->layer_count; i++) {
        const struct kva_look_layer *l = &c->layers[i];
        const double values[3] = {per(l->input, l->rows), per(l->attention, l->rows),
                                  per(l->mlp, l->rows)};
        kva_buf_printf(out, "%5u", i);
        for (size_t j = 0; j < 3; j++) {
            put_cell(out, values[j], j == 0 ? 8 : 9, 3);
            sums[j] += values[j];
        }
        kva_buf_putc(out, '\n');
    }
    kva_buf_puts(out, " mean");
    for (size_t j = 0; j < 3; j++)
        put_cell(out, per(sums[j], c->layer_count - 1), j == 0 ? 8 : 9, 3);
    kva_buf_putc(out, '\n');
}

static void put_energies(const struct kva_calibration *c, struct kva_buf *out)
{
    kva_buf_puts(
        out,
        "\nEnergy in the first columns, percent, of keys without their mean; mean of layers and heads:\n\n"
        "columns  queries  skewed     keys  skewed\n");
    for (size_t p = 0; p < KVA_COUNT_OF(percents); p++) {
        const uint32_t columns = columns_of(c, percents[p]);
        kva_buf_printf(out, "%4u%% %1s", percents[p], "");
        for (int which = 0; which < 4; which++) {
            double sum = 0;
            for (uint32_t i = 0; i < c->layer_count; i++)
                sum += energy_share(c, which >= 2, which % 2, i, columns);
            put_cell(out, 100 * sum / c->layer_count, which % 2 ? 7 : 8, 1);
        }
        kva_buf_putc(out, '\n');
    }
}

static void put_recall_row(const struct kva_calibration *c, uint32_t layer, struct kva_buf *out)
{
    for (uint32_t query = 0; query < KVA_LOOK_WHOLE; query++) {
        for (uint32_t basis = 0; basis < KVA_LOOK_BASES; basis++) {
            const enum kva_look_basis b = (enum kva_look_basis)basis;
            const enum kva_look_query q = (enum kva_look_query)query;
            put_cell(out,
                     100 * (layer < c->layer_count
                                ? found_recall(&c->layers[layer].found[b][q][KVA_LOOK_AWAY])
                                : kva_calibration_recall(c, b, q, KVA_LOOK_AWAY, 0)),
                     8, 1);
        }
    }
    put_cell(out,
             100 *
                 (layer < c->layer_count
                      ? found_recall(
                            &c->layers[layer].found[KVA_LOOK_NONE][KVA_LOOK_WHOLE][KVA_LOOK_AWAY])
                      : kva_calibration_recall(c, KVA_LOOK_NONE, KVA_LOOK_WHOLE, KVA_LOOK_AWAY, 0)),
             8, 1);
    kva_buf_putc(out, '\n');
}

static void put_recall(const struct kva_calibration *c, struct kva_buf *out)
{
    kva_buf_printf(out,
                   "\nOf the tokens that a query wants (products within %.0f of the largest; "
                   "without the first %u and the\nnewest %u), percent found by %u of %u columns, "
                   "with its own query and with one made a layer early:\n\n",
                   (double)KVA_LOOK_ALPHA, KVA_LOOK_SINKS, KVA_LOOK_NEWEST, c->columns,
                   c->skew->head_dim);
    kva_buf_printf(out, "%5s%-*s%s\n%5s", "", 9 * (int)KVA_LOOK_BASES, "    own query",
                   "    rehearsed", "layer");
    for (uint32_t i = 0; i < 2 * (uint32_t)KVA_LOOK_BASES; i++)
        kva_buf_printf(out, " %8s", basis_name(i % KVA_LOOK_BASES));
    kva_buf_puts(out, " all cols\n");
    for (uint32_t i = 0; i < c->layer_count; i++) {
        kva_buf_printf(out, "%5u", i);
        put_recall_row(c, i, out);
    }
    kva_buf_puts(out, " mean");
    put_recall_row(c, c->layer_count, out);
}

static void put_wanted(const struct kva_calibration *c, struct kva_buf *out)
{
    kva_buf_printf(out,
                   "\nTokens within %.0f of the largest product, mean of layers and heads:\n\n"
                   "context   tokens  percent\n",
                   (double)KVA_LOOK_ALPHA);
    for (uint32_t length = 0; length < KVA_LOOK_LENGTHS; length++) {
        double sum = 0;
        uint64_t count = 0;
        for (uint32_t i = 0; i < c->layer_count; i++) {
            sum += c->layers[i].wanted[length];
            count += c->layers[i].wanted_count[length];
        }
        if (count == 0)
            continue;
        kva_buf_printf(out, "%7u", kva_look_lengths[length]);
        put_cell(out, sum / (double)count, 8, 1);
        put_cell(out, 100 * sum / (double)count / kva_look_lengths[length], 8, 1);
        kva_buf_putc(out, '\n');
    }
}

void kva_cli_skew_table(const struct kva_cli_skew *skew, struct kva_buf *out)
{
    const struct kva_calibration *c = skew->result;
    const char *folder = skew->config->skew_fold;
    kva_buf_printf(out,
                   "%s%s%s: %u layers with %u KV heads of %u, from %u windows of %u tokens of "
                   "'%s'; directions: %s\n",
                   folder ? folder : "", folder && *skew->path ? ", " : "", skew->path,
                   c->skew->layers, c->skew->kv_heads, c->skew->head_dim, skew->window_count,
                   skew->window_tokens, skew->config->skew_text,
                   kva_skew_method_name(c->skew->method));
    if (!skew->config->skew_report)
        return;
    kva_buf_printf(out, "Looked at in %u window%s more.\n", skew->look_count,
                   skew->look_count == 1 ? "" : "s");
    put_cosines(c, out);
    put_energies(c, out);
    put_recall(c, out);
    put_wanted(c, out);
}

/* --- JSON ------------------------------------------------------------------------------------- */

static void put_number(struct kva_buf *out, double value)
{
    if (isfinite(value))
        kva_buf_printf(out, "%.9g", value);
    else
        kva_buf_puts(out, "null");
}

static void put_field(struct kva_buf *out, const char *name, double value)
{
    kva_buf_printf(out, ", \"%s\": ", name);
    put_number(out, value);
}

static void put_string(struct kva_buf *out, const char *name, const char *text)
{
    kva_buf_printf(out, ", \"%s\": ", name);
    kva_buf_json_string(out, text, strlen(text));
}

static void put_json_found(const struct kva_look_layer *l, struct kva_buf *out)
{
    static const char *const queries[] = {"own", "rehearsed", "rehearsed_all_columns"};
    static const char *const candidates[] = {"all", "away"};
    const char *before = "";
    kva_buf_puts(out, ", \"found\": [");
    for (uint32_t b = 0; b < KVA_LOOK_BASES; b++) {
        for (uint32_t q = 0; q < KVA_LOOK_QUERIES_COUNT; q++) {
            for (uint32_t a = 0; a < KVA_LOOK_CANDIDATES; a++) {
                const struct kva_look_found *found = &l->found[b][q][a];
                if (found->count == 0)
                    continue;
                kva_buf_printf(out,
                               "%s\n      {\"skew\": \"%s\", \"query\": \"%s\", "
                               "\"candidates\": \"%s\"",
                               before, basis_name(b), queries[q], candidates[a]);
                put_field(out, "recall", found_recall(found));
                put_field(out, "mass", found_mass(found));
                kva_buf_printf(out, ", \"queries\": %llu}", (unsigned long long)found->count);
                before = ",";
            }
        }
    }
    kva_buf_putc(out, ']');
}

static void put_json_energy(const struct kva_calibration *c, uint32_t layer, struct kva_buf *out)
{
    kva_buf_puts(out, ", \"energy\": [");
    for (size_t p = 0; p < KVA_COUNT_OF(percents); p++) {
        const uint32_t columns = columns_of(c, percents[p]);
        kva_buf_printf(out, "%s{\"columns\": %u", p ? ", " : "", columns);
        put_field(out, "queries", energy_share(c, false, false, layer, columns));
        put_field(out, "queries_skewed", energy_share(c, false, true, layer, columns));
        put_field(out, "keys", energy_share(c, true, false, layer, columns));
        put_field(out, "keys_skewed", energy_share(c, true, true, layer, columns));
        kva_buf_putc(out, '}');
    }
    kva_buf_putc(out, ']');
}

static void put_json_layer(const struct kva_calibration *c, uint32_t layer, struct kva_buf *out)
{
    const struct kva_look_layer *l = &c->layers[layer];
    const char *before = "";
    kva_buf_printf(out, "%s\n    {\"layer\": %u", layer ? "," : "", layer);
    put_field(out, "cosine_input", per(l->input, l->rows));
    put_field(out, "cosine_attention", per(l->attention, l->rows));
    put_field(out, "cosine_mlp", per(l->mlp, l->rows));
    put_json_energy(c, layer, out);
    put_json_found(l, out);
    kva_buf_puts(out, ", \"wanted\": [");
    for (uint32_t i = 0; i < KVA_LOOK_LENGTHS; i++) {
        if (l->wanted_count[i] == 0)
            continue;
        kva_buf_printf(out, "%s{\"context\": %u", before, kva_look_lengths[i]);
        put_field(out, "tokens", l->wanted[i] / (double)l->wanted_count[i]);
        kva_buf_putc(out, '}');
        before = ", ";
    }
    kva_buf_puts(out, "]}");
}

void kva_cli_skew_json(const struct kva_cli_skew *skew, struct kva_buf *out)
{
    const struct kva_calibration *c = skew->result;
    kva_buf_puts(out, "{\"version\": \"" KVA_VERSION "\"");
    put_string(out, "model", skew->config->model);
    if (*skew->path)
        put_string(out, "file", skew->path);
    if (skew->config->skew_fold)
        put_string(out, "folder", skew->config->skew_fold);
    put_string(out, "text", skew->config->skew_text);
    kva_buf_printf(out, ", \"text_bytes\": %zu", skew->text_bytes);
    put_string(out, "text_sha256", skew->text_sha256);
    kva_buf_printf(out,
                   ",\n  \"windows\": %u, \"windows_looked_at\": %u, \"window_tokens\": %u, "
                   "\"kv_heads\": %u, \"head_dim\": %u, \"columns\": %u, \"alpha\": %g",
                   skew->window_count, skew->look_count, skew->window_tokens, c->skew->kv_heads,
                   c->skew->head_dim, c->columns, (double)KVA_LOOK_ALPHA);
    put_string(out, "method", kva_skew_method_name(c->skew->method));
    kva_buf_puts(out, ",\n  \"layers\": [");
    for (uint32_t i = 0; i < c->layer_count; i++)
        put_json_layer(c, i, out);
    kva_buf_puts(out, "]}\n");
}
