/* trace.h - lengths of requests as in Table 1 of Infinite-LLM, which gives a range, an average and a
 * standard deviation of each trace, and no more.
 *
 * Traces 0 to 2 leave little to choose: with their average in their range, no distribution has a
 * deviation beyond 8,500, 6,500 and 5,300, and theirs are 7,786, 5,531 and 3,506. So nearly all are
 * very short and a few, 0.4 to 2%, nearly as long as can be. Here those are uniform between 50,000 and
 * 60,000, and the others exponential. Traces 3 to 8 are beta distributions over their range. */
#ifndef KVA_TESTS_CLUSTER_TRACES_TRACE_H
#define KVA_TESTS_CLUSTER_TRACES_TRACE_H

#include <stdint.h>

#define TRACES 9u

struct trace {
    const char *name;
    double longest, average, deviation; /* tokens */
};

extern const struct trace traces[TRACES];

/* The length of one request, prompt and answer together, tokens >= 2. */
uint32_t trace_draw(const struct trace *trace, uint64_t *random);

/* Of them, those of the answer: half, and 256 at most; the paper does not say. */
uint32_t trace_outputs(uint32_t tokens);

/* Uniform in (0, 1]. */
double trace_uniform(uint64_t *random);

#endif
