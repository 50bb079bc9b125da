/* a100.c - a roofline: weights are read once a step, products take as long as they take. */
#include "tests/cluster/a100.h"

struct kva_cost_params a100_llama7b(void)
{
    const double weights = 202.4e6, bytes_per_s = 1.7e12, flop_per_s = 220e12, launch_s = 20e-6;
    const double token_bytes = 2.0 * 4096 * 2;
    struct kva_cost_params params = {
        .layers = 32,
        .attend_token_s = token_bytes / bytes_per_s,
        .link_latency_s = 5e-6,
        .link_bytes_per_s = 250e9,
        .guest_wait_s = 10e-6,
        .query_bytes = 4096 * 4,
        .partial_bytes = 4096 * 4 + 8 * 32,
        .page_bytes = 64ull * 32 * (uint64_t)token_bytes,
    };
    static const uint32_t rows[] = {1, 32, 64, 128, 144, 192, 256, 512, 1024};
    params.point_count = KVA_COUNT_OF(rows);
    for (uint32_t i = 0; i < params.point_count; i++) {
        double read_s = 2 * weights / bytes_per_s, product_s = 2 * weights * rows[i] / flop_per_s;
        params.points[i].rows = rows[i];
        params.points[i].s = launch_s + (read_s > product_s ? read_s : product_s);
    }
    return params;
}
