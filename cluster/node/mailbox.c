/* mailbox.c - two threads' letters. */
#include "cluster/node/mailbox.h"

#include <string.h>

/* Of pages that come and go: those of a loan that are on their way, and some. */
#define SPARE_BYTES ((size_t)32 << 20)

void kva_mailbox_init(struct kva_mailbox *mailbox, size_t bytes_max)
{
    *mailbox = (struct kva_mailbox){.bytes_max = bytes_max};
    pthread_mutex_init(&mailbox->lock, NULL);
    kva_spares_init(&mailbox->spares, SPARE_BYTES);
    kva_list_init(&mailbox->notes);
}

void kva_mailbox_finish(struct kva_mailbox *mailbox)
{
    struct kva_list rest;
    kva_mailbox_take(mailbox, &rest);
    while (!kva_list_empty(&rest)) {
        struct kva_note *note = KVA_CONTAINER_OF(rest.next, struct kva_note, link);
        kva_list_remove(&note->link);
        kva_note_free(mailbox, note);
    }
    kva_spares_finish(&mailbox->spares);
    pthread_mutex_destroy(&mailbox->lock);
}

static size_t bytes_of(const struct kva_note *note)
{
    return sizeof(*note) + note->size + note->content_bytes;
}

/* One block: the note, the content, the message. */
static struct kva_note *make(struct kva_mailbox *mailbox, enum kva_note_kind kind, size_t size,
                             size_t content_bytes)
{
    size_t head = kva_align_up(sizeof(struct kva_note), KVA_CACHE_LINE);
    size_t body = kva_align_up(content_bytes, KVA_CACHE_LINE);
    struct kva_note *note = kva_spares_take(&mailbox->spares, head + body + size);
    if (!note)
        return NULL;
    *note = (struct kva_note){.kind = kind,
                              .size = size,
                              .content_bytes = content_bytes,
                              .message = (unsigned char *)note + head + body,
                              .content = (unsigned char *)note + head};
    kva_list_init(&note->link);
    return note;
}

static bool put(struct kva_mailbox *mailbox, struct kva_note *note, bool may_be_lost)
{
    pthread_mutex_lock(&mailbox->lock);
    bool fits = !may_be_lost || mailbox->bytes + bytes_of(note) <= mailbox->bytes_max;
    if (fits) {
        kva_list_append(&mailbox->notes, &note->link);
        mailbox->bytes += bytes_of(note);
    } else {
        mailbox->lost++;
    }
    pthread_mutex_unlock(&mailbox->lock);
    return fits;
}

void kva_mailbox_put_message(struct kva_mailbox *mailbox, const void *message, size_t size,
                             const void *content, size_t content_bytes)
{
    struct kva_note *note = make(mailbox, KVA_NOTE_MESSAGE, size, content_bytes);
    if (!note)
        return;
    memcpy(note->message, message, size);
    if (content_bytes > 0)
        memcpy(note->content, content, content_bytes);
    if (!put(mailbox, note, true))
        kva_note_free(mailbox, note);
}

bool kva_mailbox_put_member(struct kva_mailbox *mailbox, enum kva_note_kind kind,
                            const struct kva_member *member)
{
    struct kva_note *note = make(mailbox, kind, 0, 0);
    if (!note)
        return false;
    note->member = *member;
    return put(mailbox, note, false);
}

void kva_mailbox_take(struct kva_mailbox *mailbox, struct kva_list *ret)
{
    kva_list_init(ret);
    pthread_mutex_lock(&mailbox->lock);
    kva_list_splice(ret, &mailbox->notes);
    mailbox->bytes = 0;
    pthread_mutex_unlock(&mailbox->lock);
}

void kva_note_free(struct kva_mailbox *mailbox, struct kva_note *note)
{
    kva_spares_give(&mailbox->spares, note);
}
