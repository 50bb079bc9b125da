/* calibrate.h - the skew of a model from a text: windows of it as prompts, whose queries and keys
 * are added up, and a few more windows that were not, in which it is looked at how much of the
 * products the directions find.
 *
 * Of the ways to choose directions (struct kva_skew's method) all are tried, and that one is taken
 * which finds more of the tokens that queries want, with rehearsed queries, among tokens that would
 * be away, at a part of 30% of the columns. Where the host cannot run operators on the device's
 * memory nothing is rehearsed, and the layers' own queries decide.
 *
 * The result depends on model, device and windows, not on the number of threads.
 *
 * Thread rule: engine thread; nothing else uses the engine meanwhile. */
#ifndef KVA_ENGINE_CALIBRATE_CALIBRATE_H
#define KVA_ENGINE_CALIBRATE_CALIBRATE_H

#include "engine/calibrate/gram.h"
#include "engine/calibrate/look.h"
#include "engine/model_engine.h"

/* The part of the columns at which directions are compared. */
#define KVA_CALIBRATE_PERCENT 30u

struct kva_calibrate_params {
    struct kva_engine *engine; /* a kva_model_engine of one sequence at least */
    struct kva_device *device; /* and what it was made of */
    const struct kva_model *model;
    const uint32_t *ids; /* [window_count + look_count][window_tokens] */
    uint32_t window_count;
    uint32_t look_count; /* the last windows are for looking; at least 1 */
    uint32_t window_tokens;
    uint32_t threads;               /* 0: one per usable core */
    const atomic_bool *cancelled;   /* true: stop at the next step, with KVA_ECANCELLED; or NULL */
    kva_model_progress_fn progress; /* in tokens; or NULL */
    void *progress_opaque;
};

struct kva_calibration {
    struct kva_skew *skew; /* the best one of skews[] */
    struct kva_skew *skews[KVA_SKEW_METHOD_COUNT];
    struct kva_gram *gram;
    struct kva_look_layer *layers; /* [layer_count] */
    uint32_t layer_count;
    uint32_t columns; /* of the partial products that were looked at */
};

/* Fails: KVA_EUNSUPPORTED (no LAPACK), KVA_EINVAL (too
 * few windows, or too short ones), KVA_ELIMIT (a window does not fit the budgets), KVA_ECANCELLED,
 * KVA_EFORMAT (numbers that are not finite), KVA_ENOMEM, KVA_EDEVICE. */
KVA_MUST_CHECK enum kva_status kva_calibrate(const struct kva_calibrate_params *params,
                                             struct kva_calibration **ret, struct kva_err *err);

/* NULL is allowed. */
void kva_calibration_destroy(struct kva_calibration *calibration);

/* The mean over the layers in which anything was found, from layer `first` on; NAN: in none. */
double kva_calibration_recall(const struct kva_calibration *calibration, enum kva_look_basis basis,
                              enum kva_look_query query, enum kva_look_candidates candidates,
                              uint32_t first);

#endif
