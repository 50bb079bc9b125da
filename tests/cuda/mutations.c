/* The deliberate defects of the simulated CUDA kernels, one after the other. */
#include "tests/cuda/mutations.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* What checks a file, by words. */
static const struct {
    const char *file;
    enum mutations_of who;
    const char *parts;
} files[] = {
    {"rows.cu", MUTATIONS_OF_OPERATORS, "embed rope glu kv_append merge gather"},
    {"norm.cu", MUTATIONS_OF_OPERATORS, "norm"},
    {"linear.cu", MUTATIONS_OF_OPERATORS, "linear"},
    {"linear_few.cu", MUTATIONS_OF_OPERATORS, "linear linear_group linear_glu"},
    {"few.cuh", MUTATIONS_OF_OPERATORS, "linear linear_group linear_glu linear_packed"},
    {"linear_packed.cu", MUTATIONS_OF_OPERATORS, "linear_packed linear_group"},
    {"packed.cuh", MUTATIONS_OF_OPERATORS, "linear_packed embed"},
    {"attend.cu", MUTATIONS_OF_OPERATORS, "attend"},
    {"attend_decode.cuh", MUTATIONS_OF_OPERATORS, "attend"},
    {"attend_pages.cuh", MUTATIONS_OF_OPERATORS, "attend"},
    {"attend_prompt.cuh", MUTATIONS_OF_OPERATORS, "attend"},
    {"attend_plan.cuh", MUTATIONS_OF_OPERATORS, "attend attend_lowbit"},
    {"attend_tile.cuh", MUTATIONS_OF_OPERATORS, "attend attend_lowbit"},
    {"attend_fold.cuh", MUTATIONS_OF_OPERATORS, "attend attend_lowbit"},
    {"attend_rows.cu", MUTATIONS_OF_OPERATORS, "attend_lowbit"},
    {"lowbit.cu", MUTATIONS_OF_OPERATORS, "attend_lowbit"},
    {"lowbit_run.cuh", MUTATIONS_OF_OPERATORS, "attend_lowbit weigh_choose"},
    {"lowbit_pairs.cuh", MUTATIONS_OF_OPERATORS, "attend_lowbit"},
    {"lowbit_page.cuh", MUTATIONS_OF_OPERATORS, "attend_lowbit"},
    {"codes.cuh", MUTATIONS_OF_OPERATORS, "attend_lowbit"},
    {"quantise.cu", MUTATIONS_OF_OPERATORS, "quantise"},
    {"select.cu", MUTATIONS_OF_OPERATORS, "choose accumulate weigh"},
    {"weigh_choose.cu", MUTATIONS_OF_OPERATORS, "weigh_choose"},
    {"weigh.cuh", MUTATIONS_OF_OPERATORS, "weigh"},
    {"slots.cu", MUTATIONS_OF_OPERATORS, "assign_slots query_cosine"},
    {"fetch.cu", MUTATIONS_OF_OPERATORS, "fetch_rows"},
    {"radix.cuh", MUTATIONS_OF_OPERATORS, "shortlist choose"},
    {"shortlist.cu", MUTATIONS_OF_OPERATORS, "shortlist"},
    {"mass.cu", MUTATIONS_OF_OPERATORS, "attend_mass"},
    {"keep.cu", MUTATIONS_OF_OPERATORS, "keep use_rows"},
    {"rank.cuh", MUTATIONS_OF_OPERATORS, "keep roll_rows"},
    {"keep_rows.cu", MUTATIONS_OF_OPERATORS, "mean_keys row_error roll_rows"},
    {"keep_rows.cuh", MUTATIONS_OF_OPERATORS, "row_error store_rows roll_rows"},
    {"page_codes.cuh", MUTATIONS_OF_OPERATORS, "store_rows roll_rows"},
    {"store_rows.cu", MUTATIONS_OF_OPERATORS, "store_rows"},
    {"token_row.cuh", MUTATIONS_OF_OPERATORS, "row_error store_rows"},
    {"sketch.cu", MUTATIONS_OF_OPERATORS, "sketch sketch_queries sketch_sums sketch_weigh"},
    {"device.cu", MUTATIONS_OF_PARTS, "device"},
    {"eigen.cu", MUTATIONS_OF_PARTS, "device"},
    {"events.cu", MUTATIONS_OF_PARTS, "device step"},
    {"pinned.cu", MUTATIONS_OF_PARTS, "device"},
    {"ring.cu", MUTATIONS_OF_PARTS, "device"},
    {"spare.cu", MUTATIONS_OF_PARTS, "device"},
    {"step.cu", MUTATIONS_OF_PARTS, "step"},
    {"step.cuh", MUTATIONS_OF_PARTS, "step"},
    {"step_capture.cu", MUTATIONS_OF_PARTS, "step"},
    {"step_log.cu", MUTATIONS_OF_PARTS, "step"},
};

bool simt_open(struct simt_control *ret, const char *module_path)
{
    void *module = dlopen(module_path, RTLD_NOW | RTLD_LOCAL);
    const void *control = module ? dlsym(module, "simt_control") : NULL;
    if (!control)
        return false;
    memcpy(ret, control, offsetof(struct simt_control, module_path));
    ret->module_path = module_path;
    return true;
}

bool mutation_is_of(const char *parts, const char *name)
{
    size_t length = strlen(name);
    for (const char *at = parts; (at = strstr(at, name)); at += length) {
        if ((at == parts || at[-1] == ' ') && (at[length] == ' ' || at[length] == 0))
            return true;
    }
    return false;
}

static bool notices(const struct simt_control *simt, int mutation, const char *parts,
                    mutations_check *check, void *opaque)
{
    int code = 0;
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        (void)!freopen("/dev/null", "w", stderr);
        check(opaque, simt, mutation, parts);
        _exit(0);
    }
    return child > 0 && waitpid(child, &code, 0) == child && code != 0;
}

int mutations_run(const struct simt_control *simt, enum mutations_of who, mutations_check *check,
                  void *opaque)
{
    int count = 0, missed = 0;
    for (int mutation = 1; mutation <= simt->mutation_count; mutation++) {
        const char *name = simt->mutation_names[mutation];
        size_t i = 0, known = sizeof files / sizeof files[0], length = strcspn(name, ":");
        while (i < known &&
               (strlen(files[i].file) != length || strncmp(files[i].file, name, length) != 0))
            i++;
        if (i < known && files[i].who != who)
            continue;
        bool caught = i < known && notices(simt, mutation, files[i].parts, check, opaque);
        printf("%s %s\n", caught ? "caught" : i < known ? "MISSED" : "NO CHECK", name);
        missed += !caught;
        count++;
    }
    printf("%d of %d mutations, %d missed\n", count, simt->mutation_count, missed);
    return missed || count == 0 ? 1 : 0;
}
