/* kept_specs.h - stores of kept tokens that are small enough for short texts, and what sequences say
 * under them. */
#ifndef KVA_TESTS_ENGINE_KEPT_SPECS_H
#define KVA_TESTS_ENGINE_KEPT_SPECS_H

#include "tests/engine/trace.h"

#define FAMILIES "tests/golden/families/"
#define LLAMA    FAMILIES "llama3_gqa_bf16"
#define MHA      FAMILIES "llama2_mha_f16"
#define NEOX     FAMILIES "neox_parallel"
#define OPT      FAMILIES "opt_relu_tied"
#define MISTRAL  FAMILIES "mistral_window"

static const char *const models[] = {LLAMA, MHA, NEOX, OPT};

static inline struct kva_kv_spec spec_of(uint32_t heavy, uint32_t recent, enum kva_kv_mass mass)
{
    struct kva_kv_spec spec = kva_kv_spec_default(KVA_KV_H2O);
    spec.heavy = heavy;
    spec.recent = recent;
    spec.mass = mass;
    return spec;
}

/* A store of one page. */
static inline struct kva_kv_spec small(enum kva_kv_mass mass)
{
    return spec_of(30, 64, mass);
}

/* The same in few bits, by mass and error. */
static inline struct kva_kv_spec coded(uint32_t bits, enum kva_kv_mass mass)
{
    struct kva_kv_spec spec = kva_kv_spec_default(KVA_KV_QHITTER);
    spec.bits = bits;
    spec.heavy = 30;
    spec.pure = 10;
    spec.recent = 64;
    spec.mass = mass;
    return spec;
}

/* Of values and keys as they are, not turned. */
static inline struct kva_kv_spec coded_plainly(uint32_t bits, enum kva_kv_mass mass)
{
    struct kva_kv_spec spec = coded(bits, mass);
    spec.coding = KVA_KV_CODING_PLAIN;
    return spec;
}

static inline struct trace run_under(const struct fixture_params *params, struct run run)
{
    struct fixture f;
    fixture_open(&f, params);
    struct trace trace = trace_run(&f, &run);
    fixture_close(&f);
    return trace;
}

#endif
