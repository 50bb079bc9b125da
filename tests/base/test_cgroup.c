/* Limits of control groups of both versions, in a folder that looks like a system's. */
#include "tests/cmocka.h"

#include "base/cgroup.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[64];

static int setup(void **state KVA_UNUSED)
{
    snprintf(root, sizeof(root), "/tmp/kvahead-cgroup-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int teardown(void **state KVA_UNUSED)
{
    char command[128];
    snprintf(command, sizeof(command), "rm -r %s", root);
    return system(command);
}

/* A file below the root, and the folders above it. */
static void put(const char *path, const char *text)
{
    char whole[512];
    snprintf(whole, sizeof(whole), "%s/%s", root, path);
    for (char *slash = strchr(whole + strlen(root) + 1, '/'); slash;
         slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(whole, 0700);
        *slash = '/';
    }
    FILE *file = fopen(whole, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void expect(uint64_t limit, uint64_t room, double cores)
{
    struct kva_cgroup cgroup;
    kva_cgroup_read(root, &cgroup);
    assert_true(cgroup.memory_limit == limit);
    assert_true(cgroup.memory_room == room);
    assert_true(cgroup.cores == cores);
}

static void test_cgroup__none(void **state KVA_UNUSED)
{
    expect(UINT64_MAX, UINT64_MAX, 0);
    put("proc/self/cgroup", "0::/\nnonsense\n\n7:\n");
    expect(UINT64_MAX, UINT64_MAX, 0);
    put("sys/fs/cgroup/memory.max", "max\n");
    put("sys/fs/cgroup/memory.current", "100\n");
    put("sys/fs/cgroup/cpu.max", "max 100000\n");
    expect(UINT64_MAX, UINT64_MAX, 0);
}

static void test_cgroup__the_least_of_all_groups(void **state KVA_UNUSED)
{
    put("proc/self/cgroup", "0::/system.slice/kvahead.service\n");
    put("sys/fs/cgroup/system.slice/memory.max", "5000\n");
    put("sys/fs/cgroup/system.slice/memory.current", "4500\n");
    put("sys/fs/cgroup/system.slice/cpu.max", "350000 100000\n");
    put("sys/fs/cgroup/system.slice/kvahead.service/memory.max", "4000\n");
    put("sys/fs/cgroup/system.slice/kvahead.service/memory.current", "1000\n");
    put("sys/fs/cgroup/system.slice/kvahead.service/cpu.max", "max 100000\n");
    expect(5000, 500, 3.5);
    /* Caches of files are given back when memory is wanted. */
    put("sys/fs/cgroup/system.slice/memory.stat", "anon 1\ninactive_file 4000\n");
    expect(4000, 3000, 3.5);
    put("sys/fs/cgroup/system.slice/memory.stat", "inactive_file 400000\n");
    expect(4000, 3000, 3.5);
    put("sys/fs/cgroup/system.slice/kvahead.service/memory.current", "9000\n");
    put("sys/fs/cgroup/system.slice/kvahead.service/cpu.max", "50000 100000\n");
    expect(4000, 0, 0.5);
}

/* A container sees its own group's files at the root, whatever its path outside is. */
static void test_cgroup__inside_a_container(void **state KVA_UNUSED)
{
    put("proc/self/cgroup", "0::/docker/0123456789\n");
    put("sys/fs/cgroup/memory.max", "4096\n");
    put("sys/fs/cgroup/memory.current", "96\n");
    put("sys/fs/cgroup/cpu.max", "200000 100000\n");
    expect(4096, 4000, 2);
}

static void test_cgroup__version_1(void **state KVA_UNUSED)
{
    put("proc/self/cgroup", "5:memory:/a/b\n3:cpu,cpuacct:/a\n2:cpuset:/\n1:name=systemd:/\n");
    put("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
    put("sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "700\n");
    put("sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1000\n");
    put("sys/fs/cgroup/memory/a/memory.usage_in_bytes", "700\n");
    put("sys/fs/cgroup/memory/a/memory.stat", "inactive_file 1\ntotal_inactive_file 200\n");
    put("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "-1\n");
    put("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_period_us", "100000\n");
    expect(1000, 500, 0);
    put("sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "125000\n");
    expect(1000, 500, 1.25);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_cgroup__none, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cgroup__the_least_of_all_groups, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cgroup__inside_a_container, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cgroup__version_1, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
