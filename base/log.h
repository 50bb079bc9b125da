/* log.h - one line per event: text on a terminal, JSON otherwise.
 *
 * Thread rule: any thread; a line is written with one write(2). Set up once, before threads start.
 */
#ifndef KVA_BASE_LOG_H
#define KVA_BASE_LOG_H

#include "base/kva.h"

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

/* Whether lines of `level` are written: spares the work of composing them. */
int kva_log_enabled(enum kva_log_level level);

void kva_log(enum kva_log_level level, const char *format, ...) KVA_PRINTF(2, 3);

/* A line with structured fields. `json_fields` is the inside of a JSON object
 * ("\"id\":\"x\",\"ms\":3") used by the JSON format; `text` is what a person reads. */
void kva_log_fields(enum kva_log_level level, const char *text, const char *json_fields);

#endif
