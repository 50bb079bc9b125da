/* test_mailbox.c - what two threads of a node tell each other, and what is lost of it. */
#include "tests/cmocka.h"

#include "cluster/node/node_internal.h"

#include <stdlib.h>
#include <string.h>

static uint32_t drain(struct kva_mailbox *mailbox, size_t content_bytes)
{
    struct kva_list notes;
    uint32_t count = 0;
    kva_mailbox_take(mailbox, &notes);
    while (!kva_list_empty(&notes)) {
        struct kva_note *note = KVA_CONTAINER_OF(notes.next, struct kva_note, link);
        assert_int_equal(note->content_bytes, content_bytes);
        kva_list_remove(&note->link);
        kva_note_free(mailbox, note);
        count++;
    }
    return count;
}

/* SmolLM2-135M, Qwen2.5-1.5B, LLaMA2-7B and LLaMA-65B in 16 bits; and larger than any. */
static void test_mailbox__all_pages_that_go_at_once_find_room(void **state KVA_UNUSED)
{
    static const size_t page_bytes[] = {1440 << 10, 1792 << 10, 32 << 20, 160 << 20, 1 << 30};
    for (size_t i = 0; i < KVA_COUNT_OF(page_bytes); i++) {
        const size_t pages = kva_node_unacked_pages(page_bytes[i]);
        assert_in_range(pages, 1, KVA_NODE_UNACKED_PAGES);
        assert_true(pages == 1 || pages * page_bytes[i] <= KVA_NODE_UNACKED_BYTES);
        assert_true(kva_node_queue_bytes(page_bytes[i]) >=
                    4 * (pages * page_bytes[i] + KVA_MESSAGE_BYTES_MAX));
    }
}

static void test_mailbox__a_loan_of_large_pages_goes_through(void **state KVA_UNUSED)
{
    const size_t page_bytes = 32 << 20;
    const size_t bytes = kva_node_unacked_pages(page_bytes) * page_bytes;
    struct kva_mailbox mailbox;
    unsigned char *content = calloc(1, bytes);
    assert_non_null(content);
    kva_mailbox_init(&mailbox, kva_node_queue_bytes(page_bytes));
    kva_mailbox_put_message(&mailbox, "pages", 5, content, bytes);
    kva_mailbox_put_message(&mailbox, "pages", 5, content, bytes);
    assert_int_equal(mailbox.lost, 0);
    assert_int_equal(drain(&mailbox, bytes), 2);
    kva_mailbox_finish(&mailbox);
    free(content);
}

static void test_mailbox__what_is_too_much_is_lost_and_counted(void **state KVA_UNUSED)
{
    static const char content[1000];
    const struct kva_member member = {.node = 3, .life = 4};
    struct kva_mailbox mailbox;
    kva_mailbox_init(&mailbox, 10000);
    for (uint32_t i = 0; i < 100; i++)
        kva_mailbox_put_message(&mailbox, "pages", 5, content, sizeof(content));
    assert_true(mailbox.lost > 90);
    const uint64_t lost = mailbox.lost;
    assert_int_equal(drain(&mailbox, sizeof(content)), 100 - lost);
    for (uint32_t i = 0; i < 100; i++) /* what membership says never is */
        assert_true(kva_mailbox_put_member(&mailbox, KVA_NOTE_MEMBER, &member));
    assert_int_equal(mailbox.lost, lost);
    assert_int_equal(drain(&mailbox, 0), 100);
    kva_mailbox_finish(&mailbox);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mailbox__all_pages_that_go_at_once_find_room),
        cmocka_unit_test(test_mailbox__a_loan_of_large_pages_goes_through),
        cmocka_unit_test(test_mailbox__what_is_too_much_is_lost_and_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
