/* fake_etcd.h - a server on a thread that answers etcd's paths as a test says: badly, mostly. */
#ifndef KVA_TESTS_CLUSTER_MEMBERS_FAKE_ETCD_H
#define KVA_TESTS_CLUSTER_MEMBERS_FAKE_ETCD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum fake_way {
    FAKE_WHOLE,  /* the body, and its length */
    FAKE_STREAM, /* the body, then nothing; the connection stays */
    FAKE_CUT,    /* the body, of a longer one that was announced; the connection ends */
    FAKE_END,    /* the connection ends without an answer */
    FAKE_HANG,   /* no answer */
    FAKE_DRIP,   /* the body over and over, a byte at a time, without an end */
    FAKE_HUGE,   /* the body over and over, as fast as it is taken */
};

struct fake_rule {
    const char *path; /* that the request's begins with */
    enum fake_way way;
    int code; /* 0: 200 */
    const char *body;
};

struct fake_etcd;

/* `rules` end with a path of NULL; the first one that fits counts, others get a 404. They are used as
 * long as it runs. */
struct fake_etcd *fake_etcd_create(const struct fake_rule *rules);
void fake_etcd_destroy(struct fake_etcd *fake);

/* http://127.0.0.1:PORT */
const char *fake_etcd_endpoint(const struct fake_etcd *fake);

uint32_t fake_etcd_requests(const struct fake_etcd *fake);

#endif
