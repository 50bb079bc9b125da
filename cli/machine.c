/* machine.c - processors, memory and limits, from /proc and /sys. */
#include "cli/machine.h"

#include "base/pool.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static FILE *open_below(const char *root, const char *path)
{
    char whole[PATH_MAX];
    int length = snprintf(whole, sizeof(whole), "%s%s", root, path);
    return length > 0 && (size_t)length < sizeof(whole) ? fopen(whole, "re") : NULL;
}

/* The first line of a file; "": there is no such file. */
static void read_line(const char *root, const char *path, char *line, size_t size)
{
    FILE *file = open_below(root, path);
    line[0] = '\0';
    if (file && !fgets(line, (int)size, file))
        line[0] = '\0';
    if (file)
        fclose(file);
}

static void read_memory(const char *root, struct kva_machine *ret)
{
    FILE *file = open_below(root, "/proc/meminfo");
    char line[256];
    uint64_t swap = 0, swap_free = 0, limit = 0, committed = 0;
    const struct {
        const char *word;
        uint64_t *to;
    } fields[] = {
        {"MemTotal:", &ret->memory}, {"MemAvailable:", &ret->memory_available},
        {"SwapTotal:", &swap},       {"SwapFree:", &swap_free},
        {"CommitLimit:", &limit},    {"Committed_AS:", &committed},
    };
    while (file && fgets(line, sizeof(line), file)) {
        for (size_t i = 0; i < KVA_COUNT_OF(fields); i++) {
            size_t length = strlen(fields[i].word);
            if (strncmp(line, fields[i].word, length) == 0)
                *fields[i].to = strtoull(line + length, NULL, 10) * 1024;
        }
    }
    if (file)
        fclose(file);
    ret->swap_used = swap > swap_free ? swap - swap_free : 0;
    ret->commit_room = limit > committed ? limit - committed : 0;
}

/* "0", or "0-1", or "0-3,8". */
static uint32_t count_list(const char *list)
{
    uint32_t count = 0;
    while (*list >= '0' && *list <= '9') {
        char *end;
        unsigned long first = strtoul(list, &end, 10), last = first;
        if (*end == '-')
            last = strtoul(end + 1, &end, 10);
        count += last >= first ? (uint32_t)(last - first + 1) : 0;
        list = *end == ',' ? end + 1 : end;
    }
    return count;
}

/* "always [madvise] never". */
static enum kva_huge_pages find_huge_pages(const char *line)
{
    if (strstr(line, "[always]"))
        return KVA_HUGE_PAGES_ALWAYS;
    if (strstr(line, "[madvise]"))
        return KVA_HUGE_PAGES_MADVISE;
    return strstr(line, "[never]") ? KVA_HUGE_PAGES_NEVER : KVA_HUGE_PAGES_UNKNOWN;
}

void kva_machine_read(const char *root, struct kva_machine *ret)
{
    char line[256];
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    *ret = (struct kva_machine){
        .cores = cores > 0 ? (uint32_t)cores : 1,
        .cores_usable = kva_pool_usable_cores(),
    };
    kva_cgroup_read(root, &ret->cgroup);
    read_memory(root, ret);
    read_line(root, "/sys/devices/system/node/has_memory", line, sizeof(line));
    ret->memory_nodes = count_list(line);
    read_line(root, "/sys/kernel/mm/transparent_hugepage/enabled", line, sizeof(line));
    ret->huge_pages = find_huge_pages(line);
    read_line(root, "/proc/sys/vm/overcommit_memory", line, sizeof(line));
    ret->overcommit_never = line[0] == '2';
}

uint64_t kva_memory_available(void)
{
    struct kva_machine machine = {0};
    read_memory("", &machine);
    kva_cgroup_read("", &machine.cgroup);
    return kva_machine_room(&machine);
}

enum kva_status kva_machine_check_tiers(uint64_t room, uint64_t bytes, bool gpu,
                                        struct kva_err *err)
{
    const double gib = 1u << 30;
    if (bytes <= room)
        return KVA_OK;
    return kva_fail_param(err, KVA_ENOMEM, "host-memory",
                          "%s %.1f GiB, and %.1f can be taken: the kernel would kill the server "
                          "when they fill",
                          gpu ? "the host tier is" : "the tiers are", (double)bytes / gib,
                          (double)room / gib);
}
