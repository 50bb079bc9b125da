/* cost.c - the performance model: a line through measured points, and Eq. 5 to 7 over it. */
#include "cluster/cost.h"

#include <math.h>

/* More than a step has. */
#define DISREGARD_ROWS 4096u

enum kva_status kva_cost_check(const struct kva_cost_params *params, struct kva_err *err)
{
    if (params->layers == 0)
        return kva_fail_param(err, KVA_EINVAL, "layers", "a model has layers");
    if (params->point_count == 0 || params->point_count > KVA_COST_POINTS_MAX)
        return kva_fail_param(err, KVA_EINVAL, "points",
                              "%u points of the cost of linear layers, 1 to %u are possible",
                              params->point_count, KVA_COST_POINTS_MAX);
    for (uint32_t i = 0; i < params->point_count; i++) {
        const struct kva_cost_point *point = &params->points[i];
        if (!isfinite(point->s) || point->s <= 0)
            return kva_fail_param(err, KVA_EINVAL, "points", "%u rows take %g s", point->rows,
                                  point->s);
        if (i > 0 && (point->rows <= point[-1].rows || point->s < point[-1].s))
            return kva_fail_param(err, KVA_EINVAL, "points",
                                  "%u rows take %g s, and %u rows %g s: they have to rise",
                                  point[-1].rows, point[-1].s, point->rows, point->s);
    }
    if (params->points[0].rows == 0)
        return kva_fail_param(err, KVA_EINVAL, "points", "0 rows are no point");
    if (!isfinite(params->attend_token_s) || params->attend_token_s <= 0)
        return kva_fail_param(err, KVA_EINVAL, "attend_token_s", "%g s for a token",
                              params->attend_token_s);
    if (!isfinite(params->link_bytes_per_s) || params->link_bytes_per_s <= 0)
        return kva_fail_param(err, KVA_EINVAL, "link_bytes_per_s", "%g bytes a second",
                              params->link_bytes_per_s);
    if (!(params->link_latency_s >= 0) || !(params->guest_wait_s >= 0))
        return kva_fail_param(err, KVA_EINVAL, "link_latency_s", "%g s and %g s of waiting",
                              params->link_latency_s, params->guest_wait_s);
    return KVA_OK;
}

void kva_cost_disregard(struct kva_cost_params *params)
{
    params->point_count = 1;
    params->points[0] = (struct kva_cost_point){DISREGARD_ROWS, 1e-3};
    params->attend_token_s = 1e-15;
    params->link_latency_s = params->guest_wait_s = 0;
    params->link_bytes_per_s = 1e15;
}

void kva_cost_scale(struct kva_cost_params *params, double pace)
{
    for (uint32_t i = 0; i < params->point_count; i++)
        params->points[i].s *= pace;
    params->attend_token_s *= pace;
}

double kva_cost_linear_s(const struct kva_cost_params *params, double rows)
{
    const struct kva_cost_point *points = params->points;
    uint32_t last = params->point_count - 1;
    if (rows <= 0)
        return 0;
    if (rows <= points[0].rows || last == 0)
        return points[0].s;
    uint32_t i = 1;
    while (i < last && rows > points[i].rows)
        i++;
    double slope = (points[i].s - points[i - 1].s) / (points[i].rows - points[i - 1].rows);
    return points[i].s + slope * (rows - points[i].rows);
}

/* Until the slowest creditor has answered. Queries leave one after the other, on one link. */
static double remote_s(const struct kva_cost_params *params, const struct kva_cost_load *load)
{
    if (load->borrowed_tokens == 0)
        return 0;
    double bytes = (double)load->borrowed_rows * (params->query_bytes + params->partial_bytes);
    return 2 * params->link_latency_s + params->guest_wait_s + bytes / params->link_bytes_per_s +
           (double)load->borrowed_tokens_most * params->attend_token_s;
}

double kva_cost_layer_s(const struct kva_cost_params *params, const struct kva_cost_load *load)
{
    double local_s = (double)(load->tokens - load->borrowed_tokens) * params->attend_token_s;
    bool loans = load->borrowed_tokens > 0 || load->guest_share > 0;
    double pace = loans && load->loan_pace > 0 ? load->loan_pace : 1;
    double rows_s = kva_cost_linear_s(params, load->batch) + fmax(local_s, remote_s(params, load));
    double own_s = rows_s * pace + load->batch * load->prompt_s / params->layers;
    double share = fmin(load->guest_share, KVA_COST_GUEST_SHARE_MAX);
    return own_s / (1 - share);
}

double kva_cost_step_s(const struct kva_cost_params *params, const struct kva_cost_load *load)
{
    return params->layers * kva_cost_layer_s(params, load);
}

double kva_cost_tokens_per_s(const struct kva_cost_params *params, const struct kva_cost_load *load)
{
    return load->batch > 0 ? load->batch / kva_cost_step_s(params, load) : 0;
}

double kva_cost_guest_share(const struct kva_cost_params *params, uint64_t tokens,
                            double debtor_layer_s)
{
    return tokens > 0 ? (double)tokens * params->attend_token_s / debtor_layer_s : 0;
}

uint32_t kva_cost_knee_rows(const struct kva_cost_params *params, double share)
{
    double best = 0;
    for (uint32_t i = 0; i < params->point_count; i++)
        best = fmax(best, params->points[i].rows / params->points[i].s);
    uint32_t last = params->points[params->point_count - 1].rows;
    for (uint32_t rows = 1; rows < last; rows++) {
        if (rows / kva_cost_linear_s(params, rows) >= share * best)
            return rows;
    }
    return last;
}

double kva_cost_move_s(const struct kva_cost_params *params, uint64_t pages)
{
    return params->link_latency_s +
           (double)pages * (double)params->page_bytes / params->link_bytes_per_s;
}
