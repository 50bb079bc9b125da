/* Variants, operators, and the command line of checkasm. */
#include "tests/kernels/checkasm.h"

#include "tests/cuda/mutations.h"
#include "tests/kernels/amx_emulator.h"
#include "tests/kernels/host_ops.h"

#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define THREADS_MANY 3u

/* What a case may cost. The CPU's are bounded by the fp64 references, a simulation by the switch
 * from thread to thread at every barrier, a GPU under compute-sanitizer likewise. */
#define CPU_WORK  3e8
#define GPU_WORK  2e9
#define SLOW_WORK 3e5

/* Arguments of a call on a CUDA device, in bytes. */
#define GPU_ARENA_BYTES  (512u << 20)
#define SLOW_ARENA_BYTES (24u << 20)

/* --- operators -------------------------------------------------------------------------------- */

struct check_op_entry {
    const char *name;
    void (*run)(struct check *check);
};

/* The place of every operator in struct kva_ops; what the table gains must be added here, with its
 * cases. */
#define IN_TABLE(op, member)                                                                       \
    _Static_assert(offsetof(struct kva_ops, member) == (op) * sizeof(void (*)(void)),              \
                   "check_op is in the order of struct kva_ops")
IN_TABLE(OP_EMBED, embed);
IN_TABLE(OP_NORM, norm);
IN_TABLE(OP_LINEAR, linear);
IN_TABLE(OP_LINEAR_GROUP, linear_group);
IN_TABLE(OP_LINEAR_GLU, linear_glu);
IN_TABLE(OP_ROPE, rope);
IN_TABLE(OP_GLU, glu);
IN_TABLE(OP_GATHER, gather);
IN_TABLE(OP_SUM_ROWS, sum_rows);
IN_TABLE(OP_KV_APPEND, kv_append);
IN_TABLE(OP_QUANTISE, quantise);
IN_TABLE(OP_ATTEND, attend);
IN_TABLE(OP_ATTEND_LOWBIT, attend_lowbit);
IN_TABLE(OP_ATTEND_ROWS, attend_rows);
IN_TABLE(OP_MERGE, merge);
IN_TABLE(OP_ATTEND_SELECT_FETCH, attend_select_fetch);
IN_TABLE(OP_WEIGH, weigh);
IN_TABLE(OP_CHOOSE, choose);
IN_TABLE(OP_WEIGH_CHOOSE, weigh_choose);
IN_TABLE(OP_ACCUMULATE, accumulate);
IN_TABLE(OP_ASSIGN_SLOTS, assign_slots);
IN_TABLE(OP_FETCH_ROWS, fetch_rows);
IN_TABLE(OP_QUERY_COSINE, query_cosine);
IN_TABLE(OP_SHORTLIST, shortlist);
IN_TABLE(OP_ATTEND_MASS, attend_mass);
IN_TABLE(OP_MEAN_KEYS, mean_keys);
IN_TABLE(OP_ROW_ERROR, row_error);
IN_TABLE(OP_KEEP, keep);
IN_TABLE(OP_USE_ROWS, use_rows);
IN_TABLE(OP_STORE_ROWS, store_rows);
IN_TABLE(OP_ROLL_ROWS, roll_rows);
IN_TABLE(OP_SKETCH, sketch);
IN_TABLE(OP_SKETCH_QUERIES, sketch_queries);
IN_TABLE(OP_SKETCH_SUMS, sketch_sums);
IN_TABLE(OP_SKETCH_WEIGH, sketch_weigh);
IN_TABLE(OP_ATTEND_APART, attend_apart);
IN_TABLE(OP_ATTEND_JOIN, attend_join);
_Static_assert(OP_TABLE_COUNT * sizeof(void (*)(void)) == sizeof(struct kva_ops),
               "an operator of struct kva_ops has no cases");

static const struct check_op_entry entries[OP_COUNT] = {
    [OP_EMBED] = {"embed", check_embed},
    [OP_NORM] = {"norm", check_norm},
    [OP_LINEAR] = {"linear", check_linear},
    [OP_LINEAR_GROUP] = {"linear_group", check_linear_group},
    [OP_LINEAR_GLU] = {"linear_glu", check_linear_glu},
    [OP_ROPE] = {"rope", check_rope},
    [OP_GLU] = {"glu", check_glu},
    [OP_GATHER] = {"gather", check_gather},
    [OP_SUM_ROWS] = {"sum_rows", check_sum_rows},
    [OP_KV_APPEND] = {"kv_append", check_kv_append},
    [OP_QUANTISE] = {"quantise", check_quantise},
    [OP_ATTEND] = {"attend", check_attend},
    [OP_ATTEND_LOWBIT] = {"attend_lowbit", check_attend_lowbit},
    [OP_ATTEND_ROWS] = {"attend_rows", check_attend_lowbit},
    [OP_MERGE] = {"merge", check_merge},
    [OP_ATTEND_SELECT_FETCH] = {"attend_select_fetch", check_attend_lowbit},
    [OP_WEIGH] = {"weigh", check_attend_lowbit},
    [OP_CHOOSE] = {"choose", check_choose},
    [OP_WEIGH_CHOOSE] = {"weigh_choose", check_weigh_choose},
    [OP_ACCUMULATE] = {"accumulate", check_accumulate},
    [OP_ASSIGN_SLOTS] = {"assign_slots", check_assign_slots},
    [OP_FETCH_ROWS] = {"fetch_rows", check_fetch_rows},
    [OP_QUERY_COSINE] = {"query_cosine", check_query_cosine},
    [OP_SHORTLIST] = {"shortlist", check_shortlist},
    [OP_ATTEND_MASS] = {"attend_mass", check_attend_mass},
    [OP_MEAN_KEYS] = {"mean_keys", check_mean_keys},
    [OP_ROW_ERROR] = {"row_error", check_row_error},
    [OP_KEEP] = {"keep", check_keep},
    [OP_USE_ROWS] = {"use_rows", check_use_rows},
    [OP_STORE_ROWS] = {"store_rows", check_store_rows},
    [OP_ROLL_ROWS] = {"roll_rows", check_roll_rows},
    [OP_SKETCH] = {"sketch", check_sketch},
    [OP_SKETCH_QUERIES] = {"sketch_queries", check_sketch_queries},
    [OP_SKETCH_SUMS] = {"sketch_sums", check_sketch_sums},
    [OP_SKETCH_WEIGH] = {"sketch_weigh", check_sketch_weigh},
    [OP_ATTEND_APART] = {"attend_apart", check_attend_join},
    [OP_ATTEND_JOIN] = {"attend_join", check_attend_join},
    [OP_LINEAR_PACKED] = {"linear_packed", check_linear_packed},
};

const char *check_op_name(enum check_op op)
{
    return entries[op].name;
}

/* One name for all operators that have the same cases. */
static int list_ops(void)
{
    for (int op = 0; op < OP_COUNT; op++) {
        bool first = true;
        for (int before = 0; before < op; before++)
            first &= entries[before].run != entries[op].run;
        if (first)
            printf("%s\n", entries[op].name);
    }
    return 0;
}

static enum check_op op_by_name(const char *name)
{
    int op = 0;
    while (op < OP_COUNT && strcmp(entries[op].name, name) != 0)
        op++;
    return (enum check_op)op;
}

void check_run_op(struct check *check, enum check_op op)
{
    check->state = check->seed; /* an operator's cases do not depend on the others' */
    entries[op].run(check);
}

/* The operators that are wanted; those that have their cases in common run once. */
static void run_ops(struct check *check, const bool *wanted)
{
    bool done[OP_COUNT] = {false};
    for (int op = 0; op < OP_COUNT; op++) {
        if (!wanted[op] || done[op])
            continue;
        check_run_op(check, (enum check_op)op);
        for (int other = op; other < OP_COUNT; other++)
            done[other] |= entries[other].run == entries[op].run;
    }
}

/* Whether a variant's device has the operator. */
static bool has_op(const struct check_variant *variant, enum check_op op)
{
    void (*function)(void);
    if (op >= OP_TABLE_COUNT)
        return variant->levels & KVA_CPU_REF;
    memcpy(&function, (const char *)&variant->ops + op * sizeof function, sizeof function);
    return function != NULL;
}

static uint32_t print_table(const struct check *check, const bool *wanted)
{
    uint32_t failed = 0;
    printf("\n%-19s", "cases");
    for (uint32_t i = 0; i < check->variant_count; i++)
        printf(" %14s", check->variants[i].name);
    printf("\n");
    for (int op = 0; op < OP_COUNT; op++) {
        printf("%-19s", entries[op].name);
        for (uint32_t i = 0; i < check->variant_count; i++) {
            const struct check_variant *variant = &check->variants[i];
            char cell[32];
            uint32_t total = variant->passed[op] + variant->failed[op];
            bool other_act =
                check->gpu && check->act != KVA_BF16 && !check_has_activations((enum check_op)op);
            bool missing = wanted[op] && total == 0 && !other_act &&
                           has_op(variant, (enum check_op)op) &&
                           (!check->gpu || variant->levels & CHECK_LEVEL_CUDA);
            snprintf(cell, sizeof cell, "%u/%u%s", variant->passed[op], total,
                     variant->failed[op] ? " FAIL" : "");
            printf(" %14s", total ? cell : missing ? "NO CASE" : "-");
            failed += variant->failed[op] + missing;
        }
        printf("\n");
    }
    return failed;
}

/* --- variants --------------------------------------------------------------------------------- */

static void describe_variant(struct check_variant *variant)
{
    const struct kva_device_base *base = (const struct kva_device_base *)variant->one;
    variant->levels = base->info.cpu_levels;
    variant->act = base->info.act;
    variant->limits = base->backend->limits;
    variant->promises = ~0u;
    variant->work_max = CPU_WORK;
    /* Emulation is slow. */
    variant->cuts_max = variant->levels & amx_emulated_levels() ? 1 : 3;
}

bool check_variant_open(struct check_variant *variant, uint32_t level)
{
    struct kva_err err;
    /* A level on its own over the reference: what it lacks is the reference's. */
    struct kva_device_params params = {.threads = 1,
                                       .cpu_level_mask = level,
                                       .cpu_levels_emulated = level & amx_emulated_levels()};
    if (kva_device_open_cpu(&params, &variant->one, &err) != KVA_OK)
        return false;
    params.threads = THREADS_MANY;
    if (kva_device_open_cpu(&params, &variant->many, &err) != KVA_OK) {
        kva_device_close(variant->one);
        return false;
    }
    variant->ops = *kva_device_ops(variant->one);
    describe_variant(variant);
    return true;
}

bool check_variant_open_cuda(struct check_variant *variant, const char *module_path,
                             enum kva_dtype act, bool slow, struct kva_err *err)
{
    const struct kva_device_params params = {.act = act};
    if (kva_device_open_cuda(module_path, &params, &variant->one, err) != KVA_OK)
        return false;
    if (!host_ops_open(variant->one, slow ? SLOW_ARENA_BYTES : GPU_ARENA_BYTES)) {
        (void)kva_fail(err, KVA_ENOMEM, "no memory for arguments");
        kva_device_close(variant->one);
        return false;
    }
    variant->many = variant->one;
    variant->ops = *host_ops_table();
    describe_variant(variant);
    snprintf(variant->name, sizeof variant->name, "cuda %s", kva_dtype_name(act));
    variant->levels = CHECK_LEVEL_CUDA;
    variant->promises = 0;
    variant->work_max = slow ? SLOW_WORK : GPU_WORK;
    variant->cuts_max = slow ? 1 : 3;
    return true;
}

void check_variant_close(struct check_variant *variant)
{
    if (variant->levels & CHECK_LEVEL_CUDA)
        host_ops_close(variant->one);
    if (variant->many != variant->one)
        kva_device_close(variant->many);
    kva_device_close(variant->one);
}

static void close_variants(struct check *check)
{
    for (uint32_t i = 0; i < check->variant_count; i++)
        check_variant_close(&check->variants[i]);
    check->variant_count = 0;
}

/* `all`: each level with those below it, as a machine uses it; else on its own. */
static void open_levels(struct check *check, const char *only, bool all)
{
    const struct {
        uint32_t level;
        const char *name;
    } levels[] = {{KVA_CPU_REF, "ref"},
                  {KVA_CPU_AVX2, "avx2"},
                  {KVA_CPU_AVX512, "avx512"},
                  {KVA_CPU_AVX512VNNI, "avx512vnni"},
                  {KVA_CPU_AVX512BF16, "avx512bf16"},
                  {KVA_CPU_AMX, "amx"}};
    for (size_t i = 0; i < KVA_COUNT_OF(levels); i++) {
        struct check_variant *variant = &check->variants[check->variant_count];
        if (only && strcmp(only, levels[i].name) != 0)
            continue;
        uint32_t mask = all ? 2 * levels[i].level - 1 : levels[i].level;
        bool emulated = levels[i].level & amx_emulated_levels();
        if (all && emulated) {
            printf("SKIPPED: %s is only emulated here\n", levels[i].name);
            continue;
        }
        if (emulated)
            printf("%s is emulated: this machine has none\n", levels[i].name);
        if (check_variant_open(variant, mask)) {
            snprintf(variant->name, sizeof variant->name, "%s", levels[i].name);
            check->variant_count++;
        } else {
            printf("SKIPPED: this machine has no %s\n", levels[i].name);
        }
    }
}

/* The CUDA device of a module in one format of activations, and the CPU's reference, with which it
 * shares bits where an operator promises the same at every level. */
static bool open_cuda(struct check *check, const char *module_path, bool slow, enum kva_dtype act)
{
    struct kva_err err;
    struct check_variant *reference = &check->variants[0], *cuda = &check->variants[1];
    *reference = *cuda = (struct check_variant){.name = "ref"};
    check->act = act;
    check->gpu = true;
    if (!check_variant_open(reference, KVA_CPU_REF))
        return false;
    if (!check_variant_open_cuda(cuda, module_path, act, slow, &err)) {
        printf("%s\n", err.message);
        check_variant_close(reference);
        return false;
    }
    reference->work_max = cuda->work_max;
    reference->cuts_max = 1;
    check->variant_count = 2;
    return true;
}

/* --- the command line ------------------------------------------------------------------------- */

struct options {
    const char *level, *bench_only, *module, *act;
    bool wanted[OP_COUNT];
    bool broken, bench, mutations;
};

static int usage(const char *name)
{
    fprintf(
        stderr,
        "usage: %s --list\n"
        "       [--seed N] [--op NAME]... [--quick]\n"
        "       [--level NAME] [--broken] [--bench] [--bench-only linear|attend|lowbit|keep|sketch|rows]\n"
        "       [--module PATH [--act f32|f16|bf16] [--mutations]]\n",
        name);
    return 2;
}

static bool parse(struct options *options, struct check *check, int argc, char **argv)
{
    bool any = false;
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        const char **to = strcmp(word, "--level") == 0        ? &options->level
                          : strcmp(word, "--module") == 0     ? &options->module
                          : strcmp(word, "--act") == 0        ? &options->act
                          : strcmp(word, "--bench-only") == 0 ? &options->bench_only
                                                              : NULL;
        bool *flag = strcmp(word, "--quick") == 0       ? &check->quick
                     : strcmp(word, "--broken") == 0    ? &options->broken
                     : strcmp(word, "--bench") == 0     ? &options->bench
                     : strcmp(word, "--mutations") == 0 ? &options->mutations
                                                        : NULL;
        if (flag) {
            *flag = true;
            continue;
        }
        if (!value)
            return false;
        i++;
        if (to) {
            *to = value;
        } else if (strcmp(word, "--seed") == 0) {
            check->seed = strtoull(value, NULL, 0);
        } else if (strcmp(word, "--op") == 0 && op_by_name(value) < OP_COUNT) {
            options->wanted[op_by_name(value)] = any = true;
        } else {
            return false;
        }
    }
    options->bench |= options->bench_only != NULL;
    for (int op = 0; op < OP_COUNT && !any; op++)
        options->wanted[op] = true;
    return true;
}

static int run_levels(struct check *check, const struct options *options)
{
    uint32_t failed = 0;
    open_levels(check, options->level, options->bench);
    if (check->variant_count == 0)
        return 2;
    if (options->bench) {
        check_bench(check, options->bench_only);
    } else {
        run_ops(check, options->wanted);
        failed = print_table(check, options->wanted);
        printf("%u failed\n", failed);
    }
    close_variants(check);
    return failed ? 1 : 0;
}

/* Whether an operator that is wanted has cases in this format. */
static bool wants_act(const struct options *options, enum kva_dtype act)
{
    bool wants = false;
    for (int op = 0; op < OP_COUNT; op++)
        wants |=
            options->wanted[op] && (act == KVA_BF16 || check_has_activations((enum check_op)op));
    return wants;
}

static int run_cuda(struct check *check, const struct options *options,
                    const struct simt_control *simt)
{
    uint32_t failed = 0, runs = 0;
    for (int act = 0; act < KVA_DTYPE_COUNT; act++) {
        if (options->act && strcmp(options->act, kva_dtype_name((enum kva_dtype)act)) != 0)
            continue;
        if (!wants_act(options, (enum kva_dtype)act) && !options->act)
            continue;
        if (!open_cuda(check, options->module, simt || check->quick, (enum kva_dtype)act))
            return 2;
        if (simt)
            simt->set_seed(check->seed);
        run_ops(check, options->wanted);
        failed += print_table(check, options->wanted);
        close_variants(check);
        runs++;
    }
    printf("%u failed\n", failed);
    return failed || runs == 0 ? 1 : 0;
}

/* In a process of its own: the cases of the operators that a mutation is about. */
static void run_mutated(void *opaque, const struct simt_control *simt, int mutation,
                        const char *parts)
{
    struct check *check = opaque;
    const char *module_path = simt->module_path;
    check->quiet = check->exits = true;
    if (!open_cuda(check, module_path, true, KVA_BF16))
        return;
    simt->set_mutation(mutation);
    for (uint64_t round = 0; round < 4; round++) {
        bool wanted[OP_COUNT] = {false};
        simt->set_seed(check->seed + round);
        for (int op = 0; op < OP_COUNT; op++)
            wanted[op] = mutation_is_of(parts, entries[op].name);
        run_ops(check, wanted);
        check->seed++;
    }
}

int main(int argc, char **argv)
{
    struct check check = {.seed = 1};
    struct options options = {0};
    struct simt_control simt;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc == 2 && strcmp(argv[1], "--list") == 0)
        return list_ops();
    if (!parse(&options, &check, argc, argv))
        return usage(argv[0]);
    printf("seed %llu\n", (unsigned long long)check.seed);
    struct sigaction action = {.sa_handler = check_on_fault};
    sigaction(SIGSEGV, &action, NULL);
    sigaction(SIGBUS, &action, NULL);
    if (options.broken)
        return check_broken(&check, options.level && strcmp(options.level, "amx") == 0) ? 1 : 0;
    if (!options.module)
        return run_levels(&check, &options);
    bool simulated = simt_open(&simt, options.module);
    if (options.mutations)
        return simulated ? mutations_run(&simt, MUTATIONS_OF_OPERATORS, run_mutated, &check) : 2;
    return run_cuda(&check, &options, simulated ? &simt : NULL);
}
