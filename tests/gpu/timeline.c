/* timeline.c - when each kernel and copy of a program began and ended, as CUPTI tells it.
 *
 *     cc -O2 -shared -fPIC -I CUPTI/include -o timeline.so tests/gpu/timeline.c CUPTI/lib/libcupti.so.13
 *     CUDA_INJECTION64_PATH=$PWD/timeline.so TIMELINE=FILE PROGRAM ...
 *
 * Kernels run as they would without it, side by side and early, in graphs too; Nsight Compute runs
 * them one by one. The last LAST of them go to FILE when the program ends, in the order of their
 * beginning: nanoseconds of begin and end, stream, and name or bytes. tests/gpu/timeline.py sums
 * them up. */
#include <cupti.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LAST         20000u
#define BUFFER_BYTES ((size_t)8 << 20)

struct event {
    uint64_t begin, end;
    uint32_t stream;
    char name[64];
};

static struct event events[LAST];
static uint64_t event_count;

static void CUPTIAPI take_buffer(uint8_t **buffer, size_t *size, size_t *records)
{
    *buffer = aligned_alloc(8, BUFFER_BYTES);
    *size = *buffer ? BUFFER_BYTES : 0;
    *records = 0;
}

static void add_kernel(const CUpti_ActivityKernel10 *kernel)
{
    struct event *event = &events[event_count++ % LAST];
    *event = (struct event){kernel->start, kernel->end, kernel->streamId, ""};
    snprintf(event->name, sizeof event->name, "%s", kernel->name ? kernel->name : "?");
}

static void add_copy(const CUpti_ActivityMemcpy6 *copy)
{
    struct event *event = &events[event_count++ % LAST];
    *event = (struct event){copy->start, copy->end, copy->streamId, ""};
    snprintf(event->name, sizeof event->name, "copy kind %u of %llu", copy->copyKind,
             (unsigned long long)copy->bytes);
}

static void CUPTIAPI give_buffer(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size,
                                 size_t valid)
{
    (void)context, (void)stream, (void)size;
    CUpti_Activity *record = NULL;
    while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
        if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL)
            add_kernel((const void *)record);
        else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY)
            add_copy((const void *)record);
    }
    free(buffer);
}

static int by_begin(const void *a, const void *b)
{
    const struct event *x = a, *y = b;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

static void write_events(void)
{
    cuptiActivityFlushAll(1);
    const char *path = getenv("TIMELINE");
    FILE *file = path ? fopen(path, "w") : NULL;
    if (!file)
        return;
    size_t count = event_count < LAST ? event_count : LAST;
    qsort(events, count, sizeof *events, by_begin);
    for (size_t i = 0; i < count; i++)
        fprintf(file, "%llu %llu %u %s\n", (unsigned long long)events[i].begin,
                (unsigned long long)events[i].end, events[i].stream, events[i].name);
    fclose(file);
}

/* What the driver calls that finds the library in CUDA_INJECTION64_PATH. */
int InitializeInjection(void);

int InitializeInjection(void)
{
    cuptiActivityRegisterCallbacks(take_buffer, give_buffer);
    cuptiActivityFlushPeriod(100); /* names may go with their module */
    if (cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) ||
        cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY))
        fprintf(stderr, "timeline: CUPTI records nothing here\n");
    atexit(write_events);
    return 1;
}
