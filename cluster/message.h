/* message.h - what rManagers and gManagers tell each other: formats, and their bounds.
 *
 * Infinite-LLM's Listing 1 has heartbeat, move_kvcache and try_move_kvcache. What it lacks to be
 * carried out over a network that loses, doubles, delays and reorders is here: who speaks, in which
 * life, in which order; leases; a way back; and the way home that section 5.2 of the paper asks for.
 *
 *   gManager -> rManager      LEAD     I lead, a round begins: report
 *                             MOVE     lend pages of a request           (the paper's move_kvcache)
 *                             RETURN   bring the pages of a loan home
 *   rManager -> gManager      HEARTBEAT
 *   debtor -> creditor        RESERVE  (the paper's try_move_kvcache)
 *                             PAGES    content follows, which the transport carries
 *                             SWITCH   from now on yours are the only ones
 *                             RENEW    the lease
 *                             PULL     send pages back
 *                             RELEASE
 *   creditor -> debtor        ACCEPT, REFUSE, ACK, RENEWED, PAGES (home), RECALL
 *                             RELEASED this loan is not held here
 *   any                       HELLO    first on a connection; its MAC is the transport's to check
 *
 * On the wire: little-endian integers without padding, a header of KVA_MESSAGE_HEADER_BYTES, then
 * the fields of the type, exactly; a heartbeat ends with its entries. Every number is checked
 * before it is handed on: whoever reads a decoded message adds no check of ranges of its own.
 *
 * Thread rule: none; no state. */
#ifndef KVA_CLUSTER_MESSAGE_H
#define KVA_CLUSTER_MESSAGE_H

#include "base/err.h"

#include <stdbool.h>

#define KVA_MESSAGE_VERSION      6u
#define KVA_MESSAGE_HEADER_BYTES 40u
#define KVA_MESSAGE_NONCE_BYTES  16u
#define KVA_MESSAGE_MAC_BYTES    32u

#define KVA_MESSAGE_ENTRIES_MAX  512u
#define KVA_MESSAGE_BYTES_MAX    32768u
#define KVA_MESSAGE_PAGES_MAX    (1u << 26)                /* of a request or a tier: 2^32 tokens */
#define KVA_MESSAGE_TTL_MAX_NS   (3600ull * 1000000000ull) /* of a lease or a deadline */

enum kva_message_type {
    KVA_MESSAGE_HELLO = 1,
    KVA_MESSAGE_LEAD,
    KVA_MESSAGE_HEARTBEAT,
    KVA_MESSAGE_MOVE,
    KVA_MESSAGE_RETURN,
    KVA_MESSAGE_RESERVE,
    KVA_MESSAGE_ACCEPT,
    KVA_MESSAGE_REFUSE,
    KVA_MESSAGE_PAGES,
    KVA_MESSAGE_ACK,
    KVA_MESSAGE_SWITCH,
    KVA_MESSAGE_RENEW,
    KVA_MESSAGE_RENEWED,
    KVA_MESSAGE_RECALL,
    KVA_MESSAGE_PULL,
    KVA_MESSAGE_RELEASE,
    KVA_MESSAGE_RELEASED,
    KVA_MESSAGE_TYPE_END,
};

enum kva_refusal {
    KVA_REFUSAL_ROLE = 1, /* it has borrowed itself */
    KVA_REFUSAL_MEMORY,
    KVA_REFUSAL_LOANS,    /* its table of loans is full */
    KVA_REFUSAL_DRAINING, /* it is about to leave */
    KVA_REFUSAL_END,
};

enum kva_entry_flag {
    KVA_ENTRY_LOCAL = 1,   /* pages of a request that may be moved; without: a loan */
    KVA_ENTRY_HEAD = 2,    /* the first in line, whose need is head_pages: its prompt is in */
    KVA_ENTRY_REMOVED = 4, /* no longer so */
    KVA_ENTRY_APART = 8,   /* no loan: pages cannot go to `instance`, whatever room it has */
    KVA_ENTRY_FLAGS = 15,
};

/* One line of the request placement map: what of a request lies where. */
struct kva_message_entry {
    uint64_t request;
    uint64_t loan; /* 0: KVA_ENTRY_LOCAL; of KVA_ENTRY_APART: the instance */
    uint32_t generation;
    uint32_t instance; /* the creditor of a loan */
    uint32_t pages;
    uint8_t flags;
};

/* What an instance is doing; the same words as in planner.h. */
struct kva_message_load {
    uint32_t pages;
    uint32_t free_pages;
    uint32_t batch;
    uint32_t batch_max;
    uint64_t tokens;
    uint32_t waiting;
    uint32_t head_pages;
    uint64_t waiting_pages;
    uint32_t borrowed_pages;
    uint32_t lendable_pages; /* that it would lend yet, if they are free */
    uint8_t moving;          /* pages are on their way, or it drains */
    uint8_t keeps;           /* what is free: for its own that wait */
    /* Its last steps without prompts, on average, with loans all the time or with none; 0: too few
     * yet. */
    uint8_t step_loans;
    uint64_t step_ns;
    uint64_t step_tokens;    /* that their rows attended to */
    uint32_t step_millirows; /* a thousand for each row */
    uint64_t prompt_ns;      /* that prompts take for each token it says; 0: not known */
};

struct kva_message {
    enum kva_message_type type;
    uint32_t source; /* nodes; not 0 */
    uint32_t target;
    uint64_t source_life; /* grows with every start of the node; not 0 */
    uint64_t target_life; /* for which it is meant; 0: any */
    uint64_t sequence;    /* of the source in this life, from 1; a repeated message has a new one */
    union {
        struct {
            uint8_t nonce[KVA_MESSAGE_NONCE_BYTES];
            uint8_t mac[KVA_MESSAGE_MAC_BYTES]; /* over all that precedes it on the wire */
        } hello;
        struct {
            uint64_t revision; /* of the election: the fencing token */
            uint64_t round;
            uint8_t full; /* report everything */
        } lead;
        struct {
            uint64_t revision;
            uint64_t round; /* that it answers */
            uint64_t index; /* of this report in this life, from 1 */
            uint64_t base;  /* index of the report that it changes; 0: it is the whole */
            struct kva_message_load load;
            uint16_t entry_count;
            const struct kva_message_entry *entries;
        } heartbeat;
        struct {
            uint64_t revision;
            uint64_t round;
            uint64_t loan; /* unique: chosen by the leader, from its revision */
            uint64_t request;
            uint32_t generation;
            uint32_t creditor;
            uint64_t creditor_life;
            uint32_t pages;
            uint64_t ttl_ns;
        } move;
        struct {
            uint64_t revision;
            uint64_t round;
            uint64_t loan;
        } home;
        struct {
            uint64_t loan;
            uint64_t sent_ns; /* on the debtor's clock; comes back in ACCEPT */
            uint64_t request;
            uint32_t generation;
            uint32_t first_page;
            uint32_t pages; /* with first_page less than KVA_MESSAGE_PAGES_MAX */
            uint64_t ttl_ns;
        } reserve;
        struct {
            uint64_t loan;
            uint64_t sent_ns; /* of what it answers */
        } accept;             /* RENEWED has the same */
        struct {
            uint64_t loan;
            uint64_t sent_ns;
            uint8_t switched; /* the debtor has none of the pages any more */
        } renew;
        struct {
            uint64_t loan;
            uint8_t reason; /* enum kva_refusal */
        } refuse;
        struct {
            uint64_t loan;
            uint32_t first_page; /* within the loan */
            uint32_t pages;
            uint8_t home; /* from the creditor back */
        } pages;
        struct {
            uint64_t loan;
            uint32_t pages; /* that have come, from the first on */
        } ack;
        struct {
            uint64_t loan;
            uint64_t within_ns; /* after which the lease is not renewed any more */
        } recall;
        struct {
            uint64_t loan;
            uint32_t first_page;
            uint32_t pages;
        } pull;
        struct {
            uint64_t loan;
        } loan; /* SWITCH, RELEASE, RELEASED */
    };
};

/* "RESERVE"; "unknown" for what is no type. */
const char *kva_message_name(enum kva_message_type type);

/* Write a message, which has to be one that decoding accepts. Fails: KVA_EINVAL (a defect of the
 * caller's, named), KVA_ELIMIT (`capacity` bytes are too few). */
KVA_MUST_CHECK enum kva_status kva_message_encode(const struct kva_message *message, uint8_t *bytes,
                                                  size_t capacity, size_t *ret_size,
                                                  struct kva_err *err);

/* Read one. Entries of a heartbeat go to `entries`, at most `entries_max`, to which the result
 * points. Fails: KVA_EFORMAT; err says what is wrong, with both numbers. */
KVA_MUST_CHECK enum kva_status
kva_message_decode(const uint8_t *bytes, size_t size, struct kva_message_entry *entries,
                   uint32_t entries_max, struct kva_message *ret_message, struct kva_err *err);

#endif
