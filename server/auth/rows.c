/* rows.c - what keys have used, by name: rows that a reload neither moves nor takes back. */
#include "server/auth/internal.h"

#include <string.h>

/* 0: no row has that name. */
static uint32_t find_row(const struct kva_auth *auth, const char *name)
{
    for (uint32_t i = 1; i < auth->row_count; i++) {
        if (strcmp(auth->rows[i].name, name) == 0)
            return i;
    }
    return 0;
}

/* A row for a new name: one more, or that of a name which no key has. 0: there is none. */
static uint32_t take_row(struct kva_auth *auth, const char *name)
{
    uint32_t at = 1;
    while (at < auth->row_count && (auth->row_count <= KVA_KEY_ROWS_MAX || auth->rows[at].live))
        at++;
    if (at > KVA_KEY_ROWS_MAX)
        return 0;
    if (at == auth->row_count)
        auth->row_count++;
    /* Calls of removed keys may still run. */
    for (uint32_t i = 0; i < auth->count; i++) {
        if (auth->keys[i].row == at)
            auth->keys[i].row = 0;
    }
    auth->rows[at] = (struct kva_row){.live = true};
    memcpy(auth->rows[at].name, name, strlen(name) + 1);
    return at;
}

void kva_rows_assign(struct kva_auth *auth)
{
    auth->row_count = auth->row_count > 0 ? auth->row_count : 1;
    for (uint32_t i = 0; i < auth->row_count; i++)
        auth->rows[i].live = false;
    for (uint32_t i = 0; i < auth->count; i++) {
        struct kva_key *key = &auth->keys[i];
        if (!key->live)
            continue;
        key->row = key->name[0] ? find_row(auth, key->name) : 0;
        auth->rows[key->row].live = true;
    }
    for (uint32_t i = 0; i < auth->count; i++) {
        struct kva_key *key = &auth->keys[i];
        if (key->live && key->name[0] && key->row == 0)
            key->row = take_row(auth, key->name);
    }
}

uint32_t kva_auth_get_rows(const struct kva_auth *auth, struct kva_key_row *ret)
{
    for (uint32_t i = 0; i < auth->row_count; i++) {
        const struct kva_row *row = &auth->rows[i];
        ret[i] = (struct kva_key_row){row->name, row->requests, row->tokens, 0};
    }
    for (uint32_t i = 0; i < auth->count; i++)
        ret[auth->keys[i].row].waiting += auth->keys[i].waiting;
    return auth->row_count;
}
