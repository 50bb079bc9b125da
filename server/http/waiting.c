/* waiting.c - connections that hold a place without a request, and who makes room for whom. */
#include "server/http/internal.h"

void kva_conn_wait(struct kva_conn *conn)
{
    struct kva_http *http = conn->http;
    kva_conn_wait_over(conn);
    if (conn->admin)
        return; /* it has a place of its own, and makes no room for others */
    kva_list_append(&http->waiting, &conn->waiting);
    kva_list_append(&conn->address->waiting_list, &conn->of_address);
    conn->address->waiting++;
    http->counts.waiting++;
}

void kva_conn_wait_over(struct kva_conn *conn)
{
    if (kva_list_empty(&conn->waiting))
        return;
    kva_list_remove(&conn->waiting);
    kva_list_remove(&conn->of_address);
    conn->address->waiting--;
    conn->http->counts.waiting--;
}

bool kva_http_evict(struct kva_http *http, struct kva_account *address)
{
    struct kva_list *list = address ? &address->waiting_list : &http->waiting;
    if (kva_list_empty(list))
        return false;
    struct kva_conn *conn = address ? KVA_CONTAINER_OF(list->next, struct kva_conn, of_address)
                                    : KVA_CONTAINER_OF(list->next, struct kva_conn, waiting);
    http->counts.evicted++;
    kva_conn_close(conn);
    return true;
}
