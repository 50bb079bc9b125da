/* Deliberately broken operators of partial keys; broken.c says how they are used. */
#include "tests/kernels/broken.h"

static const struct kva_ops *good;

#define SEQS_MAX 4

/* --- sketch ----------------------------------------------------------------------------------- */

static void sketch_no_basis(struct kva_device *device, const struct kva_sketch_args *args)
{
    struct kva_sketch_args wrong = *args;
    wrong.by.basis = NULL;
    good->sketch(device, &wrong);
}

static void sketch_leading(struct kva_device *device, const struct kva_sketch_args *args)
{
    struct kva_sketch_args wrong = *args;
    wrong.by.columns = NULL;
    good->sketch(device, &wrong);
}

static void sketch_one_less(struct kva_device *device, const struct kva_sketch_args *args)
{
    struct kva_sketch_args wrong = *args;
    wrong.count--; /* the last page is forgotten */
    good->sketch(device, &wrong);
}

static void sketch_first_offset(struct kva_device *device, const struct kva_sketch_args *args)
{
    struct kva_sketch_args wrong = *args;
    wrong.from_offset_bytes = 0; /* always the first layer */
    good->sketch(device, &wrong);
}

/* --- sketch_queries --------------------------------------------------------------------------- */

static void queries_no_scale(struct kva_device *device, const struct kva_sketch_queries_args *args)
{
    struct kva_sketch_queries_args wrong = *args;
    wrong.scale = 1.0f;
    good->sketch_queries(device, &wrong);
}

static void queries_leading(struct kva_device *device, const struct kva_sketch_queries_args *args)
{
    struct kva_sketch_queries_args wrong = *args;
    wrong.by.columns = NULL;
    good->sketch_queries(device, &wrong);
}

static void queries_first_row(struct kva_device *device, const struct kva_sketch_queries_args *args)
{
    struct kva_sketch_queries_args wrong = *args;
    const uint32_t rows[8] = {0};
    wrong.rows = rows;
    good->sketch_queries(device, &wrong);
}

/* --- sketch_weigh ----------------------------------------------------------------------------- */

static void weigh_changed(struct kva_device *device, const struct kva_sketch_weigh_args *args,
                          void (*change)(struct kva_sketch_seq *seq))
{
    struct kva_sketch_weigh_args wrong = *args;
    struct kva_sketch_seq seqs[SEQS_MAX];
    for (uint32_t i = 0; i < args->seq_count; i++) {
        seqs[i] = args->seqs[i];
        change(&seqs[i]);
    }
    wrong.seqs = seqs;
    good->sketch_weigh(device, &wrong);
}

static void sees_all(struct kva_sketch_seq *seq)
{
    seq->first = 0;
}

static void weigh_sees_all(struct kva_device *device, const struct kva_sketch_weigh_args *args)
{
    weigh_changed(device, args, sees_all);
}

static void none_always(struct kva_sketch_seq *seq)
{
    seq->always = 0;
}

static void weigh_none_always(struct kva_device *device, const struct kva_sketch_weigh_args *args)
{
    weigh_changed(device, args, none_always);
}

/* The largest score of a KV head's first query head is that of all of them, as in the published
 * code for Llama: what the other heads have is measured by it. */
static void weigh_first_maximum(struct kva_device *device, const struct kva_sketch_weigh_args *args)
{
    const uint32_t group = args->heads / args->kv_heads;
    good->sketch_weigh(device, args);
    for (uint32_t i = 0; i < args->seq_count; i++) {
        const struct kva_sketch_seq *seq = &args->seqs[i];
        const uint32_t tokens = seq->page_count * KVA_PAGE_TOKENS;
        const uint32_t from = kva_max_u32(seq->first, seq->always);
        for (uint32_t head = 0; head < args->kv_heads && from < tokens; head++) {
            const float *scores = seq->scratch + (size_t)head * group * tokens;
            float most = -INFINITY;
            for (uint32_t t = from; t < tokens; t++)
                most = scores[t] > most ? scores[t] : most;
            for (uint32_t t = from; t < tokens; t++) {
                float nearest = -INFINITY;
                for (uint32_t h = 0; h < group; h++)
                    nearest = fmaxf(nearest, scores[(size_t)h * tokens + t] - most);
                seq->weights[(size_t)head * tokens + t] = fminf(1.0f, expf(nearest));
            }
        }
    }
}

static void weigh_first_block(struct kva_device *device, const struct kva_sketch_weigh_args *args)
{
    struct kva_sketch_weigh_args wrong = *args;
    wrong.block_offset_bytes = 0;
    good->sketch_weigh(device, &wrong);
}

/* --- sketch_sums -------------------------------------------------------------------------------- */

static void sums_one_less(struct kva_device *device, const struct kva_sketch_sums_args *args)
{
    struct kva_sketch_sums_args wrong = *args;
    wrong.count -= wrong.count > 0;
    good->sketch_sums(device, &wrong);
}

static void sums_never_anew(struct kva_device *device, const struct kva_sketch_sums_args *args)
{
    struct kva_sketch_sums_args wrong = *args;
    wrong.anew = false;
    good->sketch_sums(device, &wrong);
}

static const struct broken list[] = {
    BREAKS(sums_one_less, OP_SKETCH_SUMS, sketch_sums),
    BREAKS(sums_never_anew, OP_SKETCH_SUMS, sketch_sums),
    BREAKS(sketch_no_basis, OP_SKETCH, sketch),
    BREAKS(sketch_leading, OP_SKETCH, sketch),
    BREAKS(sketch_one_less, OP_SKETCH, sketch),
    BREAKS(sketch_first_offset, OP_SKETCH, sketch),
    BREAKS(queries_no_scale, OP_SKETCH_QUERIES, sketch_queries),
    BREAKS(queries_leading, OP_SKETCH_QUERIES, sketch_queries),
    BREAKS(queries_first_row, OP_SKETCH_QUERIES, sketch_queries),
    BREAKS(weigh_sees_all, OP_SKETCH_WEIGH, sketch_weigh),
    BREAKS(weigh_none_always, OP_SKETCH_WEIGH, sketch_weigh),
    BREAKS(weigh_first_maximum, OP_SKETCH_WEIGH, sketch_weigh),
    BREAKS(weigh_first_block, OP_SKETCH_WEIGH, sketch_weigh),
};

const struct broken *broken_sketch(const struct kva_ops *sound, size_t *ret_count)
{
    good = sound;
    *ret_count = KVA_COUNT_OF(list);
    return list;
}
