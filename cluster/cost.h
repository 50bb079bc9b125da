/* cost.h - what a decoding step costs an instance, by its batch and by where its KV lies: the
 * performance model of Infinite-LLM (section 5.3, Eq. 5 to 7) with the terms that it leaves out.
 *
 * The paper's model of one transformer layer is
 *
 *     T(b, S)     = W(b) / f(b) + sum of S / g                            (Eq. 5)
 *     T_debtor    = T - K_d / g        T_creditor = T + K_c / g           (Eq. 6)
 *     tokens/s    = b / (n T), of a cluster the sum over its instances    (Eq. 7)
 *
 * with b rows in a step, S the tokens of each, K_d those that others hold for it and K_c those
 * that it holds for others. It knows neither link nor waiting, so that lending is free to the
 * debtor. Here a layer of the debtor is not over before its slowest creditor has answered: two
 * ways over the link, the bytes of queries and partial results, and the creditor's attention. And
 * a creditor works for its guests as often as *they* step: Eq. 6 is the case where both steps are
 * equally long. And a request that ends makes room for another, whose prompt takes time of steps:
 *
 *     tokens/s    = b / (n T + b p)
 *
 * with p what prompts take for each token that is generated.
 *
 * Nothing is measured here: constants are handed in. Times are seconds of one layer unless the
 * name says otherwise. Thread rule: none; no state. */
#ifndef KVA_CLUSTER_COST_H
#define KVA_CLUSTER_COST_H

#include "base/err.h"

#include <stdbool.h>

#define KVA_COST_POINTS_MAX 16u

/* Guests may take this share of a device's time; what asks for more is cut there, so that times
 * stay finite. */
#define KVA_COST_GUEST_SHARE_MAX 0.95

/* One point of W(b) / f(b): what the linear layers and norms of one transformer layer take. */
struct kva_cost_point {
    uint32_t rows;
    double s;
};

/* Of one instance: its model on its device, and its link to the others. */
struct kva_cost_params {
    uint32_t layers;
    uint32_t point_count;
    struct kva_cost_point points[KVA_COST_POINTS_MAX]; /* rows rising, seconds not falling */
    double attend_token_s;   /* 1 / g: one row attends to one token in one layer */
    double link_latency_s;   /* one way */
    double link_bytes_per_s; /* each way */
    double guest_wait_s;     /* until a creditor begins with what a guest asks of it */
    uint32_t query_bytes;    /* to a creditor, for each row and layer: q */
    uint32_t partial_bytes;  /* back from it: a, m and e */
    uint64_t page_bytes;     /* of all layers */
};

/* What one instance does in a step. */
struct kva_cost_load {
    uint32_t batch;                /* b: rows */
    uint64_t tokens;               /* sum of S, wherever they lie */
    uint64_t borrowed_tokens;      /* K_d: of them, those that creditors hold; <= tokens */
    uint64_t borrowed_tokens_most; /* of them, at the creditor that holds most */
    uint32_t borrowed_rows;        /* queries that go out, one for each row and creditor of it */
    double guest_share;            /* of the device's time that guests take: see below */
    double prompt_s;               /* p: what prompts take for each token, all layers */
    double loan_pace; /* its layers with loans to what is said of them below; 0: as said */
};

/* Refuses constants by which nothing can be computed. Fails: KVA_EINVAL, err names the field. */
KVA_MUST_CHECK enum kva_status kva_cost_check(const struct kva_cost_params *params,
                                              struct kva_err *err);

/* Constants as if a step took as long whatever its rows, and attention and links took nothing: by
 * them whoever waits is worth a loan, and no loan comes home before its request ends. */
void kva_cost_disregard(struct kva_cost_params *params);

/* W(b) / f(b) of Eq. 5, between the points on a line, before the first as there, and behind the
 * last on along the last line. 0 rows take 0. */
double kva_cost_linear_s(const struct kva_cost_params *params, double rows);

/* Constants of a device on which everything but the link takes `pace` times as long. */
void kva_cost_scale(struct kva_cost_params *params, double pace);

/* One layer of a step (Eq. 5, 6): linear layers, then the longer of local attention and the
 * slowest creditor's answer, its part of what prompts take; stretched by what guests take, and with
 * loans by what was seen of them. */
double kva_cost_layer_s(const struct kva_cost_params *params, const struct kva_cost_load *load);

/* One step, all layers. */
double kva_cost_step_s(const struct kva_cost_params *params, const struct kva_cost_load *load);

/* Tokens a second of one instance (Eq. 7); 0 without rows. */
double kva_cost_tokens_per_s(const struct kva_cost_params *params,
                             const struct kva_cost_load *load);

/* The share of a creditor's time that one debtor takes: `tokens` attended to in each of its
 * layers, which take `debtor_layer_s`. K_c / g of Eq. 6 over the debtor's layer. */
double kva_cost_guest_share(const struct kva_cost_params *params, uint64_t tokens,
                            double debtor_layer_s);

/* The smallest number of rows from which more rows gain little: `share` (0 to 1) of the tokens a
 * second that linear layers alone could reach within the points. The paper's thresholds of batch
 * are "empirical"; this derives one from what was measured. */
uint32_t kva_cost_knee_rows(const struct kva_cost_params *params, double share);

/* Seconds that `pages` take over the link. */
double kva_cost_move_s(const struct kva_cost_params *params, uint64_t pages);

#endif
