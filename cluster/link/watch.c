/* watch.c - see transport.h and internal.h. */
#include "cluster/link/internal.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

static struct kva_link *link_at(struct kva_list *at)
{
    return KVA_CONTAINER_OF(at, struct kva_link, siblings);
}

enum kva_status kva_watch_open(struct kva_link *link, struct kva_err *err)
{
    struct epoll_event woken = {.events = EPOLLIN}, watched = {.events = 0};
    link->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    link->fd = epoll_create1(EPOLL_CLOEXEC);
    if (link->wake_fd >= 0 && link->fd >= 0 &&
        epoll_ctl(link->fd, EPOLL_CTL_ADD, link->wake_fd, &woken) == 0 &&
        epoll_ctl(link->fd, EPOLL_CTL_ADD, link->transport->fd, &watched) == 0)
        return KVA_OK;
    return kva_fail(err, KVA_EIO, "a descriptor for a link: %s", strerror(errno));
}

/* Whether the link's descriptor shows UCX's. */
static void set(struct kva_link *link, bool watches)
{
    struct epoll_event watched = {.events = watches ? EPOLLIN : 0};
    (void)epoll_ctl(link->fd, EPOLL_CTL_MOD, link->transport->fd, &watched);
}

static void watch(struct kva_link *link)
{
    struct kva_transport *transport = link->transport;
    if (transport->watcher == link)
        return;
    if (transport->watcher)
        set(transport->watcher, false);
    set(link, true);
    transport->watcher = link;
}

void kva_watch_close(struct kva_link *link)
{
    if (link->transport->watcher == link)
        link->transport->watcher = NULL;
    if (link->fd >= 0)
        close(link->fd);
    if (link->wake_fd >= 0)
        close(link->wake_fd);
    link->fd = link->wake_fd = -1;
}

void kva_watch_note(struct kva_link *link)
{
    link->noted = true;
}

void kva_watch_tell(struct kva_transport *transport, struct kva_link *self)
{
    for (struct kva_list *at = transport->links.next; at != &transport->links; at = at->next) {
        struct kva_link *link = link_at(at);
        if (!link->noted)
            continue;
        link->noted = false;
        watch(link);
        if (link != self)
            kva_watch_wake(link);
    }
}

bool kva_watch_sleep(struct kva_link *link)
{
    struct kva_transport *transport = link->transport;
    uint64_t count;
    if (read(link->wake_fd, &count, sizeof(count)) == (ssize_t)sizeof(count) ||
        kva_ucx.worker_arm(transport->worker) != UCS_OK)
        return false;
    link->asleep = true;
    if (!transport->watcher || !transport->watcher->asleep)
        watch(link);
    return true;
}

void kva_watch_wake(struct kva_link *link)
{
    const uint64_t one = 1;
    (void)!write(link->wake_fd, &one, sizeof(one));
}
