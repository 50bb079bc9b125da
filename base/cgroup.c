/* cgroup.c - limits of control groups, from their files. */
#include "base/cgroup.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FOLDER "/sys/fs/cgroup"

/* Version 1 says "no limit" with the largest multiple of a page. */
#define NO_LIMIT ((uint64_t)1 << 62)

/* A hierarchy of groups, and where this process is in it. */
struct place {
    const char *root;
    const char *mount; /* below FOLDER: "" in version 2 */
    char group[PATH_MAX];
};

static FILE *open_file(const struct place *place, const char *name)
{
    char path[2 * PATH_MAX];
    int length = snprintf(path, sizeof(path), "%s" FOLDER "%s%s/%s", place->root, place->mount,
                          place->group, name);
    return length > 0 && (size_t)length < sizeof(path) ? fopen(path, "re") : NULL;
}

/* The first number of a file; UINT64_MAX: no such file, or no number ("max"). */
static uint64_t read_number(const struct place *place, const char *name)
{
    FILE *file = open_file(place, name);
    unsigned long long value = UINT64_MAX;
    if (!file)
        return UINT64_MAX;
    if (fscanf(file, "%llu", &value) != 1)
        value = UINT64_MAX;
    fclose(file);
    return value;
}

/* The number behind a word at the beginning of a line; 0: there is none. */
static uint64_t read_field(const struct place *place, const char *name, const char *word)
{
    FILE *file = open_file(place, name);
    char line[256];
    uint64_t value = 0;
    size_t length = strlen(word);
    while (file && fgets(line, sizeof(line), file)) {
        if (strncmp(line, word, length) == 0 && line[length] == ' ')
            value = strtoull(line + length + 1, NULL, 10);
    }
    if (file)
        fclose(file);
    return value;
}

static void meet_memory(const struct place *place, bool v2, struct kva_cgroup *ret)
{
    uint64_t limit = read_number(place, v2 ? "memory.max" : "memory.limit_in_bytes");
    uint64_t used = read_number(place, v2 ? "memory.current" : "memory.usage_in_bytes");
    if (limit >= NO_LIMIT || used == UINT64_MAX)
        return;
    uint64_t idle = read_field(place, "memory.stat", v2 ? "inactive_file" : "total_inactive_file");
    used -= idle < used ? idle : used;
    uint64_t room = limit > used ? limit - used : 0;
    if (room >= ret->memory_room)
        return;
    ret->memory_room = room;
    ret->memory_limit = limit;
}

static void meet_cores(const struct place *place, bool v2, struct kva_cgroup *ret)
{
    unsigned long long quota = UINT64_MAX, period = 0;
    if (v2) {
        FILE *file = open_file(place, "cpu.max");
        if (!file || fscanf(file, "%llu %llu", &quota, &period) != 2)
            period = 0;
        if (file)
            fclose(file);
    } else {
        quota = read_number(place, "cpu.cfs_quota_us");
        period = read_number(place, "cpu.cfs_period_us");
    }
    /* Version 1 says "no quota" with -1. */
    if (period == 0 || period == UINT64_MAX || quota == 0 || quota >= NO_LIMIT)
        return;
    double cores = (double)quota / (double)period;
    if (ret->cores == 0 || cores < ret->cores)
        ret->cores = cores;
}

/* The group itself, and those above it. */
static void climb(struct place *place, bool memory, bool cores, bool v2, struct kva_cgroup *ret)
{
    if (strcmp(place->group, "/") == 0)
        place->group[0] = '\0';
    for (;;) {
        if (memory)
            meet_memory(place, v2, ret);
        if (cores)
            meet_cores(place, v2, ret);
        char *slash = strrchr(place->group, '/');
        if (!slash)
            return;
        *slash = '\0';
    }
}

/* Whether a list with commas between has the word. */
static bool lists(const char *list, const char *word)
{
    size_t length = strlen(word);
    for (const char *at = list; (at = strstr(at, word)); at += length) {
        if ((at == list || at[-1] == ',') && (at[length] == ',' || at[length] == '\0'))
            return true;
    }
    return false;
}

/* "0::/group" or "4:cpu,cpuacct:/group". */
static void read_line(const char *root, char *line, struct kva_cgroup *ret)
{
    char *controllers = strchr(line, ':');
    char *group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group)
        return;
    *group++ = '\0';
    group[strcspn(group, "\n")] = '\0';
    struct place place = {.root = root, .mount = ""};
    snprintf(place.group, sizeof(place.group), "%s", group);
    bool v2 = *++controllers == '\0';
    bool memory = v2 || lists(controllers, "memory"), cores = v2 || lists(controllers, "cpu");
    char mount[256];
    if (!v2) {
        snprintf(mount, sizeof(mount), "/%s", controllers);
        place.mount = mount;
    }
    climb(&place, memory, cores, v2, ret);
}

void kva_cgroup_read(const char *root, struct kva_cgroup *ret)
{
    char path[PATH_MAX], line[PATH_MAX];
    *ret = (struct kva_cgroup){.memory_limit = UINT64_MAX, .memory_room = UINT64_MAX};
    snprintf(path, sizeof(path), "%s/proc/self/cgroup", root);
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof(line), file))
        read_line(root, line, ret);
    if (file)
        fclose(file);
}
