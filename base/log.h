/* log.h - one line per event: text on a terminal, JSON otherwise.
 *
 * A line is written with one write(2) by the thread that logs, until kva_log_start: from then on it
 * goes into a ring in memory, and a thread of the log's own writes. So a reader who does not read
 * (a full pipe, a stopped terminal) holds up that thread and nobody else: what does not fit into
 * the ring is dropped, counted, and told of by a line once lines flow again. The descriptor stays
 * blocking, since other processes may share it.
 *
 * Thread rule: any thread logs, and waits for nothing but a short lock. Set up, started and stopped
 * by the main thread, set up before threads start. */
#ifndef KVA_BASE_LOG_H
#define KVA_BASE_LOG_H

#include "base/err.h"

/* Room of the ring: some thousand lines. */
#define KVA_LOG_RING_BYTES ((size_t)1 << 20)

enum kva_log_level {
    KVA_LOG_DEBUG,
    KVA_LOG_INFO,
    KVA_LOG_WARN,
    KVA_LOG_ERROR,
    KVA_LOG_OFF,
};

enum kva_log_format {
    KVA_LOG_AUTO, /* text if the descriptor is a terminal */
    KVA_LOG_TEXT,
    KVA_LOG_JSON,
};

void kva_log_setup(int fd, enum kva_log_level level, enum kva_log_format format);

/* Write from a thread of the log's own from now on. Fails: KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_log_start(struct kva_err *err);

/* Wait until everything has been written, at most `wait_ms`, and let callers write again, or, where
 * the wait was in vain, drop what they say: the descriptor is as it was. */
void kva_log_stop(uint32_t wait_ms);

/* Lines that were dropped since the start. */
uint64_t kva_log_dropped(void);

/* Whether lines of `level` are written: spares the work of composing them. */
int kva_log_enabled(enum kva_log_level level);

void kva_log(enum kva_log_level level, const char *format, ...) KVA_PRINTF(2, 3);

/* A line with structured fields. `json_fields` is the inside of a JSON object
 * ("\"id\":\"x\",\"ms\":3") used by the JSON format; `text` is what a person reads. */
void kva_log_fields(enum kva_log_level level, const char *text, const char *json_fields);

#endif
