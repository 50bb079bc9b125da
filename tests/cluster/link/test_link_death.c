/* Peers in processes of their own, which are killed, stopped and started again. */
#include "tests/cmocka.h"

#include "tests/cluster/link/ends.h"

#include "base/clock.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static char self[256];

/* --- the other process ------------------------------------------------------------------------- */

static void echo(struct end *end, const struct kva_link_frame *frame)
{
    (void)end_try(end, frame->node, 8, frame->data_bytes);
}

/* Connects with node 1 and answers each frame, until it is killed or the node is gone. */
static int be_peer(char **args)
{
    struct end peer, node = {.node = 1, .life = strtoull(args[0], NULL, 10)};
    struct end *only = &peer;
    struct kva_link_params params = ends_params();
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    snprintf(node.address, sizeof(node.address), "%s", args[1]);
    end_open(&peer, (uint32_t)strtoul(args[2], NULL, 10), strtoull(args[3], NULL, 10), &params);
    peer.then = echo;
    end_connect(&peer, &node);
    while (peer.downs[1] == 0)
        ends_idle(&only, 1, 1);
    end_close(&peer);
    return 0;
}

static pid_t start_peer(const struct end *end, uint32_t node, uint64_t life)
{
    char our_life[24], its_node[24], its_life[24];
    snprintf(our_life, sizeof(our_life), "%llu", (unsigned long long)end->life);
    snprintf(its_node, sizeof(its_node), "%u", node);
    snprintf(its_life, sizeof(its_life), "%llu", (unsigned long long)life);
    char *const args[] = {self,     (char *)"--peer", our_life, (char *)end->address,
                          its_node, its_life,         NULL};
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        execv(self, args);
        _exit(127);
    }
    return pid;
}

static int wait_for(pid_t pid)
{
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

/* --- this one ---------------------------------------------------------------------------------- */

static void run_until(struct end *end, const uint32_t *value, uint32_t least)
{
    const uint64_t limit_ns = kva_time_ns() + ENDS_LIMIT_NS;
    while (*value < least) {
        ends_idle(&end, 1, 1);
        assert_true(kva_time_ns() < limit_ns);
    }
}

static void run_until_frames(struct end *end, uint32_t node, uint64_t least)
{
    const uint64_t limit_ns = kva_time_ns() + ENDS_LIMIT_NS;
    while (end->frames[node] < least) {
        ends_idle(&end, 1, 1);
        assert_true(kva_time_ns() < limit_ns);
    }
}

/* In the middle of frames of all kinds, of which some may be on their way in both directions. */
static void test_link__a_killed_peer_is_noticed_and_comes_again(void **state KVA_UNUSED)
{
    static const size_t sizes[] = {100, 30000, 2 << 20, ENDS_DATA_MAX};
    struct end a;
    end_open(&a, 1, 5, NULL);
    for (uint32_t life = 1; life <= 8; life++) {
        pid_t pid = start_peer(&a, 2, life);
        run_until(&a, &a.ups[2], life);
        assert_int_equal(a.lives[2], life);
        end_send(&a, 2, 8, 1000);
        run_until_frames(&a, 2, 1);
        for (int i = 0; i < 4; i++)
            end_send(&a, 2, 8, sizes[life % KVA_COUNT_OF(sizes)]);
        struct end *only = &a;
        ends_idle(&only, 1, life * 3);
        kill(pid, SIGKILL);
        assert_true(WIFSIGNALED(wait_for(pid)));
        run_until(&a, &a.downs[2], life);
        assert_int_equal(kva_link_send(a.link, 2, 0, NULL, 0, NULL, 0), KVA_ENOTFOUND);
    }
    end_close(&a);
}

/* The peer ends when it notices, which is the check. */
static void test_link__a_peer_notices_the_end_too(void **state KVA_UNUSED)
{
    for (int i = 0; i < 4; i++) {
        struct end a;
        end_open(&a, 1, 5, NULL);
        pid_t pid = start_peer(&a, 2, 1);
        run_until(&a, &a.ups[2], 1);
        if (i > 1)
            end_send(&a, 2, 8, i == 2 ? 30000 : ENDS_DATA_MAX);
        if (i % 2)
            kva_link_disconnect(a.link, 2);
        else
            end_close(&a);
        if (i % 2) {
            struct end *only = &a;
            ends_idle(&only, 1, 100);
        }
        assert_int_equal(wait_for(pid), 0);
        end_close(&a);
    }
}

/* Nothing is lost, and nothing grows without bound. */
static void test_link__a_stopped_peer_holds_up_nobody_else(void **state KVA_UNUSED)
{
    struct end a, b, *both[] = {&a, &b};
    struct kva_link_params params = ends_params();
    params.unsent_bytes_max = 20 << 20;
    end_open(&a, 1, 5, &params);
    end_open(&b, 3, 6, NULL);
    pid_t pid = start_peer(&a, 2, 1);
    run_until(&a, &a.ups[2], 1);
    ends_meet(&b, &a);
    kill(pid, SIGSTOP);
    enum kva_status status = KVA_OK;
    for (int i = 0; i < 1000 && !status; i++)
        status = end_try(&a, 2, 8, 1 << 20);
    assert_int_equal(status, KVA_EBUSY);
    for (int i = 0; i < 50; i++)
        end_send(&a, 3, 8, 100000);
    while (b.frames[1] < 50)
        ends_idle(both, 2, 1);
    assert_int_equal(a.downs[2], 0);
    kill(pid, SIGCONT);
    run_until_frames(&a, 2, a.numbered[2]);
    kill(pid, SIGSTOP);
    kill(pid, SIGKILL);
    run_until(&a, &a.downs[2], 1);
    wait_for(pid);
    end_close(&a);
    end_close(&b);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_link__a_killed_peer_is_noticed_and_comes_again),
        cmocka_unit_test(test_link__a_peer_notices_the_end_too),
        cmocka_unit_test(test_link__a_stopped_peer_holds_up_nobody_else),
    };
    if (argc == 6 && strcmp(argv[1], "--peer") == 0)
        return be_peer(argv + 2);
    ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
    self[length > 0 ? length : 0] = '\0';
    return cmocka_run_group_tests(tests, NULL, NULL);
}
