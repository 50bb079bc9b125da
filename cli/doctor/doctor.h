/* doctor.h - the command `doctor`: what this machine offers, what would fit, what is misconfigured.
 *
 *     doctor.c     asks the server's front end and the model, as `serve` would
 *     machine.c    judges what the machine offers
 *     report.c     findings, for people and for programs
 *
 * Thread rule: main thread. */
#ifndef KVA_CLI_DOCTOR_DOCTOR_H
#define KVA_CLI_DOCTOR_DOCTOR_H

#include "base/buf.h"
#include "cli/machine.h"
#include "config/options.h"

#include <stdbool.h>

enum kva_verdict {
    KVA_VERDICT_OK,
    KVA_VERDICT_NOTE, /* worth knowing, nothing to do */
    KVA_VERDICT_WARN, /* it works, but not as well as it could */
    KVA_VERDICT_FAIL, /* `serve` with these options would not start, or not work */
    KVA_VERDICT_COUNT,
};

#define KVA_FINDINGS_MAX 64u

struct kva_finding {
    enum kva_verdict verdict;
    const char *subject; /* "memory"; constant */
    char *found;
    char *advice; /* what to do; NULL: nothing */
};

struct kva_findings {
    struct kva_finding items[KVA_FINDINGS_MAX];
    uint32_t count;
    uint32_t lost; /* that found no memory */
};

/* `advice`: a sentence, or NULL; `found` as printf's. */
void kva_findings_add(struct kva_findings *findings, enum kva_verdict verdict, const char *subject,
                      const char *advice, const char *found, ...) KVA_PRINTF(5, 6);
void kva_findings_finish(struct kva_findings *findings);

uint32_t kva_findings_count(const struct kva_findings *findings, enum kva_verdict verdict);

/* For people: a line a finding, its advice below; then what it comes to. */
void kva_findings_print(const struct kva_findings *findings, struct kva_buf *out);

/* For programs: {"verdict", "findings": [{"verdict", "subject", "found", "advice"}]}; `verdict` of
 * all is the worst. Fails: KVA_ENOMEM. */
KVA_MUST_CHECK enum kva_status kva_findings_json(const struct kva_findings *findings,
                                                 struct kva_buf *out, struct kva_err *err);

/* What `machine` means for a server with these options. Reads nothing else. */
void kva_doctor_judge_machine(const struct kva_machine *machine, const struct kva_config *config,
                              struct kva_findings *findings);

/* Whether tiers of so many bytes fit; `gpu`: it is the host tier alone. */
void kva_doctor_judge_tiers(const struct kva_machine *machine, uint64_t tiers, bool gpu,
                            struct kva_findings *findings);

#endif
