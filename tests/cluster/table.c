/* table.c - a table of instances, and what a plan makes of it. */
#include "tests/cluster/table.h"

#include <string.h>

void table_init(struct table *t)
{
    memset(t, 0, sizeof(*t));
    t->cost = a100_llama7b();
    t->params = kva_plan_defaults(&t->cost);
    t->state = (struct kva_plan_state){
        .instances = t->instances, .requests = t->requests, .loans = t->loans};
}

uint32_t table_add(struct table *t, uint32_t count, uint32_t pages, uint32_t waiting)
{
    uint32_t index = t->state.instance_count++;
    t->instances[index] = (struct kva_plan_instance){
        .id = 100 + index,
        .cost = &t->cost,
        .pages = A100_PAGES,
        .free_pages = A100_PAGES - count * pages,
        .batch = count,
        .batch_max = 512,
        .tokens = (uint64_t)count * pages * 64,
        .waiting = waiting,
        .head_pages = waiting > 0 ? 8 : 0,
        .waiting_pages = waiting * 8ull,
        .keeps = waiting > 0,
    };
    for (uint32_t i = 0; i < count && t->state.request_count < REQUESTS_MAX; i++) {
        uint32_t at = t->state.request_count++;
        t->requests[at] = (struct kva_plan_request){
            .id = 1000 * (index + 1) + i, .instance = index, .pages = pages};
    }
    return index;
}

enum kva_status table_try(struct table *t, struct kva_err *err)
{
    struct kva_arena arena;
    kva_arena_init(&arena, 16u << 20);
    enum kva_status status = kva_plan_make(&t->params, &t->state, MOVES_MAX, &arena, &t->plan, err);
    if (!status) {
        if (t->plan.move_count > 0)
            memcpy(t->moves, t->plan.moves, t->plan.move_count * sizeof(t->moves[0]));
        t->plan.moves = t->moves;
    }
    kva_arena_finish(&arena);
    return status;
}

void table_plan(struct table *t)
{
    struct kva_err err = {0};
    if (table_try(t, &err))
        fail_msg("%s", err.message);
}

void table_carry_out(struct table *t)
{
    for (uint32_t i = 0; i < t->plan.move_count; i++) {
        const struct kva_plan_move *move = &t->plan.moves[i];
        bool lends = move->kind == KVA_PLAN_LEND;
        uint32_t pages = move->pages;
        t->instances[move->debtor].free_pages += lends ? pages : -pages;
        t->instances[move->creditor].free_pages -= lends ? pages : -pages;
        for (uint32_t r = 0; r < t->state.request_count; r++)
            if (t->requests[r].id == move->request)
                t->requests[r].pages -= lends ? pages : -pages;
        for (uint32_t n = 0; n < t->state.loan_count && !lends; n++)
            if (t->loans[n].id == move->loan)
                t->loans[n] = t->loans[--t->state.loan_count];
        if (!lends)
            continue;
        assert_true(t->state.loan_count < LOANS_MAX);
        t->loans[t->state.loan_count] = (struct kva_plan_loan){.id = 1 + t->state.loan_count,
                                                               .request = move->request,
                                                               .debtor = move->debtor,
                                                               .creditor = move->creditor,
                                                               .pages = pages};
        t->state.loan_count++;
    }
}

void table_let_in(struct table *t)
{
    for (uint32_t i = 0; i < t->state.instance_count; i++) {
        struct kva_plan_instance *instance = &t->instances[i];
        while (instance->waiting > 0 && instance->free_pages >= instance->head_pages &&
               instance->batch < instance->batch_max) {
            instance->free_pages -= instance->head_pages;
            instance->waiting_pages -= instance->head_pages;
            instance->tokens += instance->head_pages * 64ull;
            instance->batch++;
            instance->waiting--;
        }
    }
}
