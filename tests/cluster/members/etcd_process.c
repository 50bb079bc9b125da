/* etcd_process.c - starting, killing and asking an etcd of a test's own. */
#include "tests/cluster/members/etcd_process.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/cmocka.h"

#define START_MAX_S 30

bool etcd_is_installed(void)
{
    if (system("command -v etcd >/dev/null && command -v etcdctl >/dev/null") == 0)
        return true;
    fprintf(stderr, "SKIPPED: etcd and etcdctl are not installed\n");
    return false;
}

int free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET};
    socklen_t length = sizeof(address);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    assert_true(fd >= 0);
    assert_int_equal(0, bind(fd, (struct sockaddr *)&address, sizeof(address)));
    assert_int_equal(0, getsockname(fd, (struct sockaddr *)&address, &length));
    close(fd);
    return ntohs(address.sin_port);
}

int etcd_ctl(const struct etcd_process *etcd, char *ret, size_t size, const char *format, ...)
{
    char arguments[1024], command[1408];
    va_list list;
    va_start(list, format);
    vsnprintf(arguments, sizeof(arguments), format, list);
    va_end(list);
    snprintf(command, sizeof(command),
             "ETCDCTL_API=3 timeout 20 etcdctl --endpoints=%s%s%s%s%s %s 2>&1", etcd->endpoint,
             etcd->user[0] ? " --user=" : "", etcd->user, etcd->ca[0] ? " --cacert=" : "", etcd->ca,
             arguments);
    FILE *pipe = popen(command, "r");
    assert_non_null(pipe);
    size_t length = fread(ret, 1, size - 1, pipe);
    ret[length] = 0;
    while (fgetc(pipe) != EOF)
        ;
    return WEXITSTATUS(pclose(pipe));
}

static void run_etcd(const struct etcd_process *etcd)
{
    char data[96], log[96], key[96], peer[64];
    snprintf(data, sizeof(data), "%s/data", etcd->folder);
    snprintf(log, sizeof(log), "%s/log", etcd->folder);
    snprintf(key, sizeof(key), "%s/key.pem", etcd->folder);
    snprintf(peer, sizeof(peer), "http://127.0.0.1:%d", etcd->peer_port);
    int fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd >= 0) {
        dup2(fd, 1);
        dup2(fd, 2);
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const bool https = etcd->ca[0];
    const char *const arguments[] = {"etcd",
                                     "--unsafe-no-fsync",
                                     "--name",
                                     etcd->name,
                                     "--data-dir",
                                     data,
                                     "--listen-client-urls",
                                     etcd->endpoint,
                                     "--advertise-client-urls",
                                     etcd->endpoint,
                                     "--listen-peer-urls",
                                     peer,
                                     "--initial-advertise-peer-urls",
                                     peer,
                                     "--initial-cluster",
                                     etcd->cluster,
                                     https ? "--cert-file" : NULL,
                                     etcd->ca,
                                     "--key-file",
                                     key,
                                     NULL};
    execvp("etcd", (char **)(uintptr_t)arguments);
    _exit(127);
}

void etcd_launch(struct etcd_process *etcd)
{
    etcd->pid = fork();
    assert_true(etcd->pid >= 0);
    if (etcd->pid == 0)
        run_etcd(etcd);
}

void etcd_await(struct etcd_process *etcd)
{
    char text[256];
    for (int i = 0; i < START_MAX_S * 10; i++) {
        if (etcd_ctl(etcd, text, sizeof(text), "get /") == 0)
            return;
        usleep(100000);
    }
    fail_msg("etcd does not start: %s", text);
}

void etcd_start(struct etcd_process *etcd)
{
    etcd_launch(etcd);
    etcd_await(etcd);
}

void etcd_kill(struct etcd_process *etcd)
{
    if (etcd->pid <= 0)
        return;
    kill(etcd->pid, SIGKILL);
    waitpid(etcd->pid, NULL, 0);
    etcd->pid = 0;
}

void etcd_signal(const struct etcd_process *etcd, int number)
{
    assert_int_equal(0, kill(etcd->pid, number));
}

static void prepare(struct etcd_process *etcd, const char *scheme, unsigned index)
{
    *etcd = (struct etcd_process){.folder = "/tmp/kvahead-etcd-XXXXXX"};
    assert_non_null(mkdtemp(etcd->folder));
    etcd->client_port = free_port();
    etcd->peer_port = free_port();
    snprintf(etcd->name, sizeof(etcd->name), "etcd%u", index);
    snprintf(etcd->endpoint, sizeof(etcd->endpoint), "%s://127.0.0.1:%d", scheme,
             etcd->client_port);
}

/* Each knows all of them. */
static void introduce(struct etcd_process *all, unsigned count)
{
    char cluster[sizeof(all->cluster)];
    size_t length = 0;
    for (unsigned i = 0; i < count; i++)
        length +=
            (size_t)snprintf(cluster + length, sizeof(cluster) - length, "%s%s=http://127.0.0.1:%d",
                             i ? "," : "", all[i].name, all[i].peer_port);
    assert_true(length < sizeof(cluster));
    for (unsigned i = 0; i < count; i++)
        memcpy(all[i].cluster, cluster, sizeof(cluster));
}

void etcd_begin_several(struct etcd_process *all, unsigned count)
{
    for (unsigned i = 0; i < count; i++)
        prepare(&all[i], "http", i);
    introduce(all, count);
    for (unsigned i = 0; i < count; i++)
        etcd_launch(&all[i]);
    for (unsigned i = 0; i < count; i++)
        etcd_await(&all[i]);
}

void etcd_begin(struct etcd_process *etcd)
{
    etcd_begin_several(etcd, 1);
}

void etcd_begin_https(struct etcd_process *etcd)
{
    char command[512];
    prepare(etcd, "https", 0);
    introduce(etcd, 1);
    snprintf(etcd->ca, sizeof(etcd->ca), "%s/cert.pem", etcd->folder);
    snprintf(command, sizeof(command),
             "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=etcd "
             "-addext subjectAltName=IP:127.0.0.1 -keyout %s/key.pem -out %s 2>%s/openssl",
             etcd->folder, etcd->ca, etcd->folder);
    assert_int_equal(0, system(command));
    etcd_start(etcd);
}

void etcd_end(struct etcd_process *etcd)
{
    char command[128];
    etcd_kill(etcd);
    snprintf(command, sizeof(command), "rm -rf %s", etcd->folder);
    if (system(command) != 0)
        fprintf(stderr, "%s stays behind\n", etcd->folder);
}
