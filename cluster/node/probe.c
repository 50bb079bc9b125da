/* probe.c - how fast the link to a member is. When a connection is there, a few frames go out that
 * the other side sends back without their data: the shortest round trip without data is twice the
 * latency, and what the shortest one with data takes longer is the time of its bytes. */
#include "base/clock.h"
#include "base/log.h"
#include "cluster/node/node_internal.h"

#include <stdlib.h>
#include <string.h>

#define ROUNDS 8u /* every other one with data */

static void ask(struct kva_node *node, struct kva_peer *peer, uint64_t now_ns)
{
    size_t bytes = peer->probe.asked % 2 == 1 ? KVA_PROBE_BYTES : 0;
    const struct kva_probe_mark mark = {.sent_ns = now_ns, .bytes = bytes};
    void *data = bytes ? calloc(1, bytes) : NULL;
    peer->probe.asked++;
    if (!bytes || data)
        (void)!kva_link_send(node->link, peer->member.node, KVA_NODE_PROBE, &mark, sizeof(mark),
                             data, bytes);
    free(data);
}

void kva_probe_begin(struct kva_node *node, struct kva_peer *peer, uint64_t now_ns)
{
    peer->probe = (struct kva_probe){0};
    ask(node, peer, now_ns);
}

void kva_probe_answer(struct kva_node *node, const struct kva_link_frame *frame)
{
    if (frame->header_bytes == sizeof(struct kva_probe_mark))
        (void)!kva_link_send(node->link, frame->node, KVA_NODE_PROBED, frame->header,
                             frame->header_bytes, NULL, 0);
}

/* Said each time: it is what plans are made with. */
static void conclude(struct kva_node *node, struct kva_peer *peer)
{
    struct kva_probe *probe = &peer->probe;
    double longer_s = probe->least_s[1] - probe->least_s[0];
    probe->latency_s = probe->least_s[0] / 2;
    if (longer_s > 0)
        probe->bytes_per_s = (double)KVA_PROBE_BYTES / longer_s;
    kva_log(KVA_LOG_INFO, "cluster       link to node %u: %.1f us one way, %.0f MB/s",
            peer->member.node, probe->latency_s * 1e6, probe->bytes_per_s / 1e6);
    kva_node_manager_link_measured(node);
}

void kva_probe_take(struct kva_node *node, const struct kva_link_frame *frame, uint64_t now_ns)
{
    struct kva_peer *peer = kva_node_find_peer(node, frame->node);
    struct kva_probe_mark mark;
    if (!peer || frame->header_bytes != sizeof(mark) || peer->probe.answered >= peer->probe.asked)
        return;
    memcpy(&mark, frame->header, sizeof(mark));
    if (mark.sent_ns > now_ns || (mark.bytes != 0 && mark.bytes != KVA_PROBE_BYTES))
        return;
    double *least_s = &peer->probe.least_s[mark.bytes > 0];
    double took_s = (double)(now_ns - mark.sent_ns) / 1e9;
    *least_s = *least_s == 0 || took_s < *least_s ? took_s : *least_s;
    peer->probe.answered++;
    if (peer->probe.asked < ROUNDS)
        ask(node, peer, now_ns);
    else
        conclude(node, peer);
}
