/* mutations.h - the simulated CUDA device: what a test can tell it, and the deliberate defects of
 * its kernels (simt/mutations.txt), each of which some check must notice. */
#ifndef KVA_TESTS_CUDA_MUTATIONS_H
#define KVA_TESTS_CUDA_MUTATIONS_H

#include <stdbool.h>
#include <stdint.h>

/* The functions that a simulated module exports (simt/simt.cpp). */
struct simt_control {
    void (*set_seed)(uint64_t seed);
    void (*set_mutation)(int mutation);
    void (*fail)(uint32_t code);
    void (*fail_captures)(int fail);
    const uint64_t *counts;
    int mutation_count;
    const char *const *mutation_names;
    const char *module_path; /* set here */
};

/* False: the module is a real one, or none. */
bool simt_open(struct simt_control *ret, const char *module_path);

/* Who looks for a mutation: the operators' cases (checkasm), or the parts of check_cuda. */
enum mutations_of {
    MUTATIONS_OF_OPERATORS,
    MUTATIONS_OF_PARTS,
};

/* Run the checks `parts` ("attend" or "weigh choose": mutation_is_of) with the mutation; called in
 * a process of its own, which has noticed the mutation if it ends in any way but by returning. */
typedef void mutations_check(void *opaque, const struct simt_control *simt, int mutation,
                             const char *parts);

/* 0 if every mutation of the kind is noticed and every mutated file is known; an exit status. */
int mutations_run(const struct simt_control *simt, enum mutations_of who, mutations_check *check,
                  void *opaque);

/* Whether `name` is one of the words of `parts`. */
bool mutation_is_of(const char *parts, const char *name);

#endif
