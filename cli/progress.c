/* progress.c - the bar. */
#include "cli/progress.h"

#include "base/clock.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

void kva_cli_progress_show(void *opaque, uint64_t done_bytes, uint64_t total_bytes)
{
    enum { WIDTH = 32 };
    struct kva_cli_progress *progress = opaque;
    uint64_t now = kva_time_ns();
    bool last = done_bytes >= total_bytes;
    if (!isatty(STDERR_FILENO) || total_bytes == 0)
        return;
    if (!last && now - progress->last_ns < 100 * KVA_NS_PER_MS)
        return;
    /* A load that ends at once needs no bar. */
    if (last && !progress->shown)
        return;
    progress->last_ns = now;
    progress->shown = true;
    char bar[WIDTH + 1];
    int filled = (int)(done_bytes * WIDTH / total_bytes);
    memset(bar, '.', WIDTH);
    memset(bar, '#', (size_t)filled);
    bar[WIDTH] = '\0';
    fprintf(stderr, "\r%s [%s] %3d%% of ", progress->what, bar,
            (int)(done_bytes * 100 / total_bytes));
    if (progress->unit)
        fprintf(stderr, "%llu %s", (unsigned long long)total_bytes, progress->unit);
    else
        fprintf(stderr, "%.1f MiB", (double)total_bytes / (1 << 20));
    fputs(last ? "\n" : "", stderr);
    fflush(stderr);
    progress->shown = !last;
}

void kva_cli_progress_end(struct kva_cli_progress *progress)
{
    if (progress->shown)
        fputc('\n', stderr);
    progress->shown = false;
}
