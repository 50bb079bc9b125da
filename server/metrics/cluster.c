/* cluster.c - the metrics of a server that is in a cluster. */
#include "server/metrics/metrics.h"

static void put_pair(struct kva_buf *out, const char *name, const char *type, const char *help,
                     const char *labels, const char *key, const char *const *values,
                     const double *numbers, uint32_t count)
{
    kva_metrics_head(out, name, type, help);
    for (uint32_t i = 0; i < count; i++)
        kva_metrics_labelled(out, name, labels, key, values[i], numbers[i]);
}

#define COUNTED(out, name, type, help, labels, key, values, numbers)                               \
    put_pair(out, name, type, help, labels, key, values, numbers, KVA_COUNT_OF(values))

static void put_membership(struct kva_buf *out, const struct kva_cluster_view *view,
                           const char *labels)
{
    static const char *const states[KVA_CLUSTER_STATE_COUNT] = {"joining", "joined", "apart",
                                                                "left"};
    double is[KVA_CLUSTER_STATE_COUNT] = {0};
    is[view->state] = 1;
    COUNTED(out, "kvahead_cluster_state", "gauge",
            "1: how this server stands with its cluster; apart: etcd keeps no lease alive.", labels,
            "state", states, is);
    kva_metrics_single(out, "kvahead_cluster_node", "gauge", labels, view->node,
                       "Number of this server in its cluster; 0: none yet.");
    kva_metrics_single(out, "kvahead_cluster_members", "gauge", labels, view->members,
                       "Servers in the cluster, this one included.");
    kva_metrics_single(out, "kvahead_cluster_links", "gauge", labels, view->linked,
                       "Other servers with which there is a connection.");
    kva_metrics_single(out, "kvahead_cluster_leader", "gauge", labels, view->leader,
                       "Number of the server that plans; 0: none is known.");
    kva_metrics_single(out, "kvahead_cluster_leads", "gauge", labels, view->leads,
                       "1: this server plans.");
    kva_metrics_single(out, "kvahead_cluster_etcd_failures_total", "counter", labels,
                       (double)view->etcd_failures, "Questions that etcd did not answer well.");
}

static void put_messages(struct kva_buf *out, const struct kva_cluster_view *view,
                         const char *labels)
{
    static const char *const ways[] = {"in", "out"};
    const double messages[] = {(double)view->messages_in, (double)view->messages_out};
    const double moved[] = {(double)view->content_bytes_in, (double)view->content_bytes_out};
    const double asked[] = {(double)view->remote.bytes_in, (double)view->remote.bytes_out};
    COUNTED(out, "kvahead_cluster_messages_total", "counter", "Messages between servers.", labels,
            "direction", ways, messages);
    kva_metrics_single(out, "kvahead_cluster_messages_bad_total", "counter", labels,
                       (double)view->messages_bad, "Messages that were not taken.");
    COUNTED(out, "kvahead_cluster_moved_bytes_total", "counter",
            "Keys and values that were lent or brought home.", labels, "direction", ways, moved);
    COUNTED(out, "kvahead_cluster_attention_bytes_total", "counter",
            "Answers that came and queries that went, as a debtor.", labels, "direction", ways,
            asked);
}

static void put_loans(struct kva_buf *out, const struct kva_cluster_view *view, const char *labels)
{
    static const char *const roles[] = {"debtor", "creditor"};
    static const char *const events[] = {"begun", "lent", "home", "lost"};
    static const char *const ends[] = {"accepted", "refused", "expired"};
    const struct kva_rmanager_stats *l = &view->loans;
    const double loans[] = {l->loans, l->guests};
    const double bytes[] = {(double)l->borrowed_pages * (double)view->page_bytes,
                            (double)l->lent_pages * (double)view->page_bytes};
    const double own[] = {(double)l->loans_begun, (double)l->loans_lent, (double)l->loans_home,
                          (double)l->loans_lost};
    const double guests[] = {(double)l->guests_accepted, (double)l->guests_refused,
                             (double)l->guests_expired};
    COUNTED(out, "kvahead_cluster_loans", "gauge",
            "Loans: keys and values of this server elsewhere (debtor), of others here (creditor).",
            labels, "role", roles, loans);
    COUNTED(out, "kvahead_cluster_loan_bytes", "gauge", "The same in bytes.", labels, "role", roles,
            bytes);
    COUNTED(out, "kvahead_cluster_loans_total", "counter",
            "Loans of this server, by what became "
            "of them.",
            labels, "event", events, own);
    COUNTED(out, "kvahead_cluster_guests_total", "counter",
            "Loans of others, by what became of "
            "them.",
            labels, "event", ends, guests);
    kva_metrics_single(out, "kvahead_cluster_orders_refused_total", "counter", labels,
                       (double)(l->orders_refused + l->orders_stale),
                       "Orders of a leader that could not be followed, or were old.");
}

static void put_attention(struct kva_buf *out, const struct kva_cluster_view *view,
                          const char *labels)
{
    const struct {
        const char *name;
        double value;
        const char *help;
    } counters[] = {
        {"kvahead_cluster_questions_total", (double)view->remote.questions,
         "Layers that another server was asked to attend for."},
        {"kvahead_cluster_question_rows_total", (double)view->remote.rows, "Rows in them."},
        {"kvahead_cluster_wait_seconds_total", (double)view->remote.wait_ns / 1e9,
         "Time that steps have waited for answers."},
        {"kvahead_cluster_lost_total", (double)view->remote.lost,
         "Answers that did not come, or without a result."},
        {"kvahead_cluster_answers_total", (double)view->remote.answers,
         "Layers attended to for other servers."},
        {"kvahead_cluster_answer_rows_total", (double)view->remote.answered_rows, "Rows in them."},
        {"kvahead_cluster_answer_seconds_total", (double)view->remote.attend_ns / 1e9,
         "Time that this took."},
        {"kvahead_cluster_questions_refused_total", (double)view->remote.refused,
         "Questions that were none."},
    };
    for (uint32_t i = 0; i < KVA_COUNT_OF(counters); i++)
        kva_metrics_single(out, counters[i].name, "counter", labels, counters[i].value,
                           counters[i].help);
}

static void put_plans(struct kva_buf *out, const struct kva_cluster_view *view, const char *labels)
{
    static const char *const kinds[] = {"lend", "return"};
    static const char *const times[] = {"before", "after"};
    const double moves[] = {(double)view->plans.moves, (double)view->plans.returns};
    static const char *const loans[] = {"without", "with"};
    const double paces[] = {view->plans.pace, view->plans.loan_pace};
    const double rates[] = {view->plans.tokens_per_s_before, view->plans.tokens_per_s_after};
    kva_metrics_single(out, "kvahead_cluster_plans_total", "counter", labels,
                       (double)view->plans.plans, "Plans that this server has made.");
    COUNTED(out, "kvahead_cluster_moves_total", "counter", "Orders in them.", labels, "kind", kinds,
            moves);
    COUNTED(out, "kvahead_cluster_plan_tokens_per_second", "gauge",
            "What the last plan expected of all servers, without its orders and with them.", labels,
            "plan", times, rates);
    COUNTED(out, "kvahead_cluster_pace", "gauge",
            "What steps take by what plans expect of them: 1 as expected, 2 twice as long. With "
            "loans: by what is expected of steps with loans.",
            labels, "loans", loans, paces);
}

void kva_metrics_cluster_text(struct kva_buf *out, const struct kva_cluster_view *view,
                              const char *labels)
{
    put_membership(out, view, labels);
    put_messages(out, view, labels);
    put_loans(out, view, labels);
    put_attention(out, view, labels);
    put_plans(out, view, labels);
}
