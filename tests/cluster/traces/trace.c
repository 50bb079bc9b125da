/* trace.c - drawing lengths of requests. */
#include "tests/cluster/traces/trace.h"

#include <math.h>
#include <stdbool.h>

#include "base/kva.h"
#include "tests/random.h"

#define LONG_FROM   50000.0
#define LONG_TO     60000.0
#define OUTPUTS_MAX 256u

const struct trace traces[TRACES] = {
    {"0", 60e3, 1233, 7785.68},       {"1", 60e3, 712, 5531.4},
    {"2", 60e3, 469, 3506.36},        {"3", 200e3, 56362, 28787.78},
    {"4", 280e3, 75650, 39479.42},    {"5", 600e3, 160239, 87906.67},
    {"6", 480e3, 128804, 70647.93},   {"7", 1200e3, 293945, 172169.14},
    {"8", 2000e3, 498609, 261817.24},
};

double trace_uniform(uint64_t *random)
{
    return ((double)(kva_test_random(random) >> 11) + 1) * 0x1p-53;
}

static double normal(uint64_t *random)
{
    double radius = sqrt(-2 * log(trace_uniform(random)));
    return radius * cos(2 * 3.14159265358979323846 * trace_uniform(random));
}

/* Marsaglia and Tsang's way, for shape >= 1. */
static double gamma_draw(double shape, uint64_t *random)
{
    double d = shape - 1.0 / 3, c = 1 / sqrt(9 * d);
    for (;;) {
        double x = normal(random), v = 1 + c * x;
        if (v <= 0)
            continue;
        v = v * v * v;
        if (log(trace_uniform(random)) < 0.5 * x * x + d - d * v + d * log(v))
            return d * v;
    }
}

/* Few that are long, and the others such that average and deviation are right. */
static double draw_short(const struct trace *trace, uint64_t *random)
{
    double square = trace->deviation * trace->deviation + trace->average * trace->average;
    double mean = (LONG_FROM + LONG_TO) / 2, width = LONG_TO - LONG_FROM;
    double mean_square = mean * mean + width * width / 12, share = square / mean_square, others;
    /* An exponential of that average has twice its square: two rounds are enough. */
    for (int i = 0; i < 3; i++) {
        others = (trace->average - share * mean) / (1 - share);
        share = (square - (1 - share) * 2 * others * others) / mean_square;
    }
    others = (trace->average - share * mean) / (1 - share);
    if (trace_uniform(random) < share)
        return LONG_FROM + width * trace_uniform(random);
    return -others * log(trace_uniform(random));
}

static double draw_long(const struct trace *trace, uint64_t *random)
{
    double mean = trace->average / trace->longest, sd = trace->deviation / trace->longest;
    double sum = mean * (1 - mean) / (sd * sd) - 1;
    double a = gamma_draw(mean * sum, random), b = gamma_draw((1 - mean) * sum, random);
    return trace->longest * a / (a + b);
}

uint32_t trace_draw(const struct trace *trace, uint64_t *random)
{
    bool is_short = trace->longest <= LONG_TO;
    double length = is_short ? draw_short(trace, random) : draw_long(trace, random);
    return (uint32_t)fmin(fmax(length, 2), trace->longest);
}

uint32_t trace_outputs(uint32_t tokens)
{
    return kva_min_u32(tokens / 2, OUTPUTS_MAX);
}
