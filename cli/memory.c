/* memory.c - how much memory is free. */
#include "cli/instance.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A number in a file of one number; UINT64_MAX: none there ("max"). */
static uint64_t read_number(const char *path)
{
    FILE *file = fopen(path, "r");
    unsigned long long value = UINT64_MAX;
    if (!file)
        return UINT64_MAX;
    if (fscanf(file, "%llu", &value) != 1)
        value = UINT64_MAX;
    fclose(file);
    return value;
}

static uint64_t meminfo_available(void)
{
    FILE *file = fopen("/proc/meminfo", "r");
    char line[256];
    uint64_t bytes = 0;
    while (file && fgets(line, sizeof(line), file)) {
        if (strncmp(line, "MemAvailable:", 13) == 0)
            bytes = strtoull(line + 13, NULL, 10) * 1024;
    }
    if (file)
        fclose(file);
    return bytes;
}

uint64_t kva_memory_available(void)
{
    uint64_t available = meminfo_available();
    /* In a container the cgroup's limit is what the process is killed at. */
    uint64_t limit = read_number("/sys/fs/cgroup/memory.max");
    uint64_t used = read_number("/sys/fs/cgroup/memory.current");
    if (limit != UINT64_MAX && used != UINT64_MAX) {
        uint64_t room = limit > used ? limit - used : 0;
        available = room < available ? room : available;
    }
    return available;
}
