/* etcd_process.h - an etcd of a test's own, on free ports of 127.0.0.1, with its data in a temporary
 * folder: it can be killed, stopped, and started again on the same data and ports. */
#ifndef KVA_TESTS_CLUSTER_MEMBERS_ETCD_PROCESS_H
#define KVA_TESTS_CLUSTER_MEMBERS_ETCD_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct etcd_process {
    char folder[64];
    int client_port;
    int peer_port;
    char endpoint[64]; /* http://127.0.0.1:PORT */
    char user[64];     /* for etcdctl, "NAME:PASSWORD", or "" */
    char name[16];     /* of this one of several */
    char cluster[256]; /* of all of them, for --initial-cluster */
    char ca[80];       /* the certificate of https, or "" */
    pid_t pid;         /* 0: not running */
};

/* Whether etcd and etcdctl are installed; says so where they are not. */
bool etcd_is_installed(void);

/* A port of 127.0.0.1 that nobody has. */
int free_port(void);

/* Make the folder, choose ports, start, and wait until it answers. */
void etcd_begin(struct etcd_process *etcd);
/* With a certificate for 127.0.0.1 that it has signed itself. */
void etcd_begin_https(struct etcd_process *etcd);
/* Several that make one etcd. */
void etcd_begin_several(struct etcd_process *all, unsigned count);
/* Kill it and remove its data. */
void etcd_end(struct etcd_process *etcd);

/* Start it, on the data that there are, and wait until it answers. */
void etcd_start(struct etcd_process *etcd);
/* Both halves of that: one of several answers when most are there. */
void etcd_launch(struct etcd_process *etcd);
void etcd_await(struct etcd_process *etcd);
void etcd_kill(struct etcd_process *etcd);
void etcd_signal(const struct etcd_process *etcd, int number);

/* Run `etcdctl ARGUMENTS`; what it says is in `ret`, cut to `size`. Returns its exit code. */
int etcd_ctl(const struct etcd_process *etcd, char *ret, size_t size, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

#endif
